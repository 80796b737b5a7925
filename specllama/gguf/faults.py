"""Reasons why llama.cpp cannot load a file, from its header.

The rules are those of llama.cpp's loader (b11434: ggml/src/gguf.cpp, src/llama-model-loader.cpp,
load_hparams of src/llama-model.cpp and create_tensor of src/models/*.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specllama.gguf import architectures, foreign
from specllama.gguf.header import Header, Tensor
from specllama.gguf.types import BLOCKS
from specllama.gguf.values import STRING, LazyArray

# Who rejects a file: every build and fork; llama.cpp itself, but perhaps not its forks; llama.cpp
# up to the build that these lists are from, but perhaps not a newer one.
ALWAYS, MAINLINE, KNOWN_BUILDS = "always", "mainline", "known builds"

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_DIMS, _MAX_NAME = 4, 63  # GGML_MAX_DIMS, GGML_MAX_NAME without its NUL
# Arrays with one entry per block, MTP blocks included (get_key_or_arr), that are read for every
# architecture. Unused ones may have any length.
_PER_BLOCK = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_used_count",
)
_REQUIRED = ("block_count", "context_length", "embedding_length")
_REQUIRED_BY_SIDECARS = {
    "eagle3": ("target_layers", "target_hidden_size", "attention.layer_norm_rms_epsilon"),
    "dflash": ("target_layers", "attention.layer_norm_rms_epsilon"),
}
# Tensors with one row per token of the file's own vocabulary.
_PER_TOKEN = ("token_embd.weight", "output.weight")
_PER_TOKEN_OF_A_HEAD = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")
_OTHER_ROWS = frozenset({"wavtokenizer-dec", "qwen3tts"})  # their output is not a vocabulary
# codeshell.cpp: the output matrix is also the token table
_EMBEDS_BY_OUTPUT = frozenset({"codeshell"})
_NO_TOKENIZER = ("none", "no_vocab")
_UP_TO = f"llama.cpp up to b{architectures.KNOWN_BUILD}"


@dataclass(frozen=True)
class Fault:
    """One reason. `rule`: its name; `detail`: one line; `by`: who rejects the file; `fork`: the
    fork that such files are made for, if specllama supports it."""

    rule: str
    detail: str
    by: str
    fork: str = ""


def find_faults(headers: Sequence[Header], kind: str, tokens: int | None) -> tuple[Fault, ...]:
    """All reasons, the most certain first. `headers`: of all parts, in order; `kind`: ModelInfo's;
    `tokens`: size of the vocabulary, None without one."""
    if kind in ("mmproj", "adapter", "unknown", "vocab-only", "p-eagle"):
        return ()  # not models, as their kind says
    h = headers[0]
    arch = h.text("general.architecture")
    tensors = [t for header in headers for t in header.tensors]
    if h.text("tokenizer.ggml.model") in _NO_TOKENIZER:
        tokens = None  # a token list is ignored then
    found = [*_architecture(arch), *_parts(h, len(headers), len(tensors)), *_types(tensors)]
    if arch in architectures.KNOWN:
        found += [*_keys(h, arch), *_tokenizer(h), *_sidecar(h, arch), *_names(tensors)]
        found += _layers_read(h, arch, tensors)
        found += _rows(arch, kind, tensors, tokens)
    for header in headers:
        found += _as_written(header)
    order = (ALWAYS, MAINLINE, KNOWN_BUILDS)
    return tuple(sorted(found, key=lambda f: order.index(f.by)))


def _architecture(arch: str) -> Iterator[Fault]:
    if arch not in architectures.KNOWN:
        detail = f"the architecture {arch!r} is not supported by {_UP_TO}"
        yield Fault("architecture", detail + foreign.maker_of_architecture(arch), KNOWN_BUILDS)


def _keys(h: Header, arch: str) -> Iterator[Fault]:
    """load_hparams: required keys, and arrays with one entry per block."""
    for name in _REQUIRED:
        if f"{arch}.{name}" not in h.fields:
            yield Fault("key", f"the key {arch}.{name} is missing", ALWAYS)
    blocks = h.number(f"{arch}.block_count")
    if f"{arch}.block_count" in h.fields and not 1 <= blocks <= MAX_LAYERS:
        detail = f"{arch}.block_count is {blocks}; llama.cpp supports 1 to {MAX_LAYERS}"
        yield Fault("layers", detail, ALWAYS)
        return
    heads = h.number(f"{arch}.nextn_predict_layers")
    if heads > blocks:
        detail = f"{arch}.nextn_predict_layers is {heads}, but there are only {blocks} blocks"
        yield Fault("layers", detail, ALWAYS)
    for name in _PER_BLOCK:
        value = h.fields.get(f"{arch}.{name}")
        if isinstance(value, LazyArray) and value.kind != STRING and value.count != blocks:
            detail = f"{arch}.{name} has {value.count} entries for {blocks} blocks"
            yield Fault("array length", detail, ALWAYS)


def _tokenizer(h: Header) -> Iterator[Fault]:
    """llama-vocab.cpp: a file without a tokenizer has the model "none", and Kimi K2 needs no
    merges."""
    model = h.text("tokenizer.ggml.model")
    required = ["tokenizer.ggml.model"]
    if model not in _NO_TOKENIZER:
        required.append("tokenizer.ggml.tokens")
    if model == "gpt2" and h.text("tokenizer.ggml.pre") != "kimi-k2":
        required.append("tokenizer.ggml.merges")
    missing = next((key for key in required if key not in h.fields), None)
    if missing is not None:
        yield Fault("tokenizer", f"the key {missing} is missing", ALWAYS)


def _sidecar(h: Header, arch: str) -> Iterator[Fault]:
    """Keys of drafters (load_arch_hparams of src/models/eagle3.cpp and dflash.cpp), and
    assertions of their graphs, which a newer build may drop."""
    for name in _REQUIRED_BY_SIDECARS.get(arch, ()):
        if f"{arch}.{name}" not in h.fields:
            yield Fault("key", f"the key {arch}.{name} is missing", ALWAYS)
    if arch == "dflash" and h.number("dflash.hyper_connection.count"):
        return  # DeepSeek V4's blocks: a graph of its own, one width for both
    if arch in ("eagle3", "dflash"):
        k, v = (h.number(f"{arch}.attention.{n}_length") for n in ("key", "value"))
        if k and v and k != v:
            detail = f"K heads have {k} elements but V heads {v}"
            yield Fault("head size", detail, KNOWN_BUILDS)


def _layers_read(h: Header, arch: str, tensors: Sequence[Tensor]) -> Iterator[Fault]:
    """The input of a drafter's first matrix is the hidden states of all the layers it reads."""
    fc = next((t for t in tensors if t.name == "fc.weight"), None)
    ids = h.fields.get(f"{arch}.target_layers")
    if fc is None or not fc.shape or not isinstance(ids, LazyArray):
        return
    width = h.number(
        "eagle3.target_hidden_size" if arch == "eagle3" else f"{arch}.embedding_length"
    )
    if width and fc.shape[0] != ids.count * width:
        inputs = f"{ids.count} target layers of {width} give {ids.count * width}"
        yield Fault("target layers", f"fc.weight has {fc.shape[0]} inputs, but {inputs}", ALWAYS)


def _parts(h: Header, parts: int, tensors: int) -> Iterator[Fault]:
    """The keys of a split model against its files."""
    count = h.number("split.count")
    if count > 1 and parts == 1:
        detail = f"split.count says {count} parts, but the file is not named like a part of a split model"
        yield Fault("parts", f"{detail}: give all parts their original names", ALWAYS)
    elif count != parts and parts > 1:
        detail = f"its name says {parts} parts, but split.count is {count or 'missing'}"
        yield Fault("parts", detail, ALWAYS)
    elif count > 1:
        total = h.number("split.tensors.count")
        if total != tensors:
            detail = f"split.tensors.count is {total}, but its parts contain {tensors}"
            yield Fault("parts", detail, ALWAYS)


def _types(tensors: Sequence[Tensor]) -> Iterator[Fault]:
    unknown = next((t for t in tensors if t.nbytes is None), None)
    if unknown is not None:
        detail = f"tensor {unknown.kind} (of {unknown.name!r}) is not supported by {_UP_TO}"
        detail += foreign.maker_of_type(unknown.kind)
        yield Fault("tensor type", detail, KNOWN_BUILDS, foreign.fork_of_type(unknown.kind))


def _names(tensors: Sequence[Tensor]) -> Iterator[Fault]:
    """Tensors that no llama.cpp model uses: it rejects a file with unused tensors."""
    counts = Counter(t.name for t in tensors)
    repeated = next((name for name, times in counts.items() if times > 1), None)
    if repeated is not None:
        yield Fault("repeated tensor", f"the tensor {repeated!r} is repeated", ALWAYS)
    unknown = [t for t in tensors if t.name.split(".", 1)[0] not in architectures.TENSORS]
    if unknown:
        name = unknown[0].name
        detail = f"{len(unknown)} tensors such as {name!r} are unknown to {_UP_TO}"
        yield Fault("foreign tensors", detail + foreign.maker_of_tensor(name), KNOWN_BUILDS)


def _rows(arch: str, kind: str, tensors: Sequence[Tensor], tokens: int | None) -> Iterator[Fault]:
    """Tables with one row per token of the file's own vocabulary."""
    by_name = {t.name: t for t in tensors}
    if arch in architectures.SIDECARS:
        yield from _mapped_rows(arch, by_name, tokens)
        return
    if arch in _OTHER_ROWS or not by_name:
        return
    mapped = "d2t" in by_name
    if mapped:  # FastMTP: a head over the most common tokens only
        detail = f"it uses d2t, which {_UP_TO} supports for EAGLE-3 and DFlash only"
        yield Fault("d2t", detail, KNOWN_BUILDS)
    if kind == "mtp-head":
        missing = [n for n in _required_with_a_head(arch) if n not in by_name]
        if missing:
            detail = f"{missing[0]} is missing, which {_UP_TO} requires in a separate MTP head file"
            yield Fault("tables", detail, KNOWN_BUILDS)
    elif "token_embd.weight" not in by_name and not (
        arch in _EMBEDS_BY_OUTPUT and "output.weight" in by_name
    ):
        yield Fault("tables", "token_embd.weight is missing", ALWAYS)
    for t in tensors:
        if t.name in _PER_TOKEN or t.name.endswith(_PER_TOKEN_OF_A_HEAD):
            yield from _row_count(t, tokens, KNOWN_BUILDS if mapped else ALWAYS)


def _required_with_a_head(arch: str) -> Iterator[str]:
    """Tensors that are not shared with the target (load_arch_tensors of src/models/*.cpp)."""
    yield "token_embd.weight"
    if arch in ("mimo2", "deepseek4"):
        yield "output.weight"
    if arch != "qwen4exp":
        yield "output_norm.weight"


def _mapped_rows(arch: str, by_name: Mapping[str, Tensor], tokens: int | None) -> Iterator[Fault]:
    """EAGLE-3 and DFlash may draft from fewer tokens: d2t has their ids, one per row."""
    d2t = by_name.get("d2t")
    if d2t is not None and d2t.kind != "I64":
        yield Fault("d2t", f"d2t has type {d2t.kind}, but must be I64", ALWAYS)
    reduced = d2t is not None and d2t.elements != tokens
    if reduced and "output.weight" not in by_name and arch == "eagle3":
        yield Fault("d2t", "it has d2t, but no output.weight", ALWAYS)
    drafted = d2t.elements if d2t is not None else tokens
    for name, rows in (
        ("output.weight", drafted),
        ("markov_w2.weight", drafted),
        ("markov_w1.weight", tokens),
        ("token_embd.weight", None if arch == "eagle3" else tokens),
    ):
        if name in by_name:
            yield from _row_count(by_name[name], rows, ALWAYS)


def _row_count(t: Tensor, rows: int | None, by: str) -> Iterator[Fault]:
    if rows is not None and len(t.shape) > 1 and t.shape[1] != rows:
        yield Fault("rows", f"{t.name} has {t.shape[1]} rows for {rows} tokens", by)


def _as_written(h: Header) -> Iterator[Fault]:
    """Checks of llama.cpp's reader (gguf.cpp) for each file."""
    if h.repeated:
        yield Fault("repeated key", f"the key {h.repeated[0]!r} is repeated", MAINLINE)
    alignment = h.fields.get("general.alignment", 32)
    step = alignment if isinstance(alignment, int) else 32
    expected = 0
    for t in h.tensors:
        if len(t.name.encode()) > _MAX_NAME or len(t.shape) > _MAX_DIMS:
            detail = f"the tensor {t.name[:80]!r} has too long a name or too many dimensions"
            yield Fault("tensor table", detail, MAINLINE)
            return
        if t.nbytes is None:
            return  # of unknown size, so the next offset is unknown
        if t.shape and t.shape[0] % BLOCKS[t.kind]:
            size = f"{t.shape[0]} elements, not a multiple of {t.kind}'s block size"
            yield Fault("tensor table", f"a row of {t.name!r} has {size}", ALWAYS)
            return
        if t.offset != expected:
            detail = f"the tensor {t.name!r} is at offset {t.offset}, expected {expected}"
            yield Fault("tensor table", detail, MAINLINE)
            return
        expected += -(-t.nbytes // step) * step
