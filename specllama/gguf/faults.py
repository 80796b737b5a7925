"""What keeps llama.cpp from loading a file, as far as its header tells.

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

# Who refuses a file: every build and fork; llama.cpp itself, whatever forks do; llama.cpp up
# to the build that these lists are from, and a newer one may know better.
ALWAYS, MAINLINE, KNOWN_BUILDS = "always", "mainline", "known builds"

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
_MOST_DIMS, _MOST_NAME = 4, 63  # GGML_MAX_DIMS, GGML_MAX_NAME less its NUL
# Keys whose arrays have one entry per block, MTP blocks included (get_key_or_arr), of those that
# are read whatever the architecture: one that nothing reads may be as it likes.
_PER_BLOCK = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_used_count",
)
_NEEDED = ("block_count", "context_length", "embedding_length")
_NEEDED_BY_SIDECARS = {
    "eagle3": ("target_layers", "target_hidden_size", "attention.layer_norm_rms_epsilon"),
    "dflash": ("target_layers", "attention.layer_norm_rms_epsilon"),
}
# Tensors with one row per token of the file's own vocabulary.
_PER_TOKEN = ("token_embd.weight", "output.weight")
_PER_TOKEN_OF_A_HEAD = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")
_OTHER_ROWS = frozenset({"wavtokenizer-dec", "qwen3tts"})  # their output is no vocabulary
# codeshell.cpp: the output matrix stands in for the token table
_EMBEDS_BY_OUTPUT = frozenset({"codeshell"})
_NO_TOKENIZER = ("none", "no_vocab")


@dataclass(frozen=True)
class Fault:
    """One reason. `rule`: its name; `detail`: what was found, in one line; `by`: who refuses;
    `fork`: the one such files are made for, if specllama runs it."""

    rule: str
    detail: str
    by: str
    fork: str = ""


def faults(headers: Sequence[Header], kind: str, tokens: int | None) -> tuple[Fault, ...]:
    """All reasons, the surest first. `headers`: of all parts, in order; `kind`: ModelInfo's;
    `tokens`: of the vocabulary, None without one."""
    if kind in ("mmproj", "adapter", "unknown", "vocab-only", "p-eagle"):
        return ()  # no model by themselves: their kind says it
    h = headers[0]
    arch = h.text("general.architecture")
    tensors = [t for header in headers for t in header.tensors]
    if h.text("tokenizer.ggml.model") in _NO_TOKENIZER:
        tokens = None  # a list that is there all the same is not read
    found = [*_architecture(arch), *_parts(h, len(headers), len(tensors)), *_types(tensors)]
    if arch in architectures.KNOWN:  # of another, neither keys nor tensors are known
        found += [*_keys(h, arch), *_tokenizer(h), *_sidecar(h, arch), *_names(tensors)]
        found += _layers_read(h, arch, tensors)
        found += _rows(arch, kind, tensors, tokens)
    for header in headers:
        found += _as_written(header)
    order = (ALWAYS, MAINLINE, KNOWN_BUILDS)
    return tuple(sorted(found, key=lambda f: order.index(f.by)))


def _architecture(arch: str) -> Iterator[Fault]:
    if arch not in architectures.KNOWN:
        build = f"llama.cpp up to b{architectures.KNOWN_BUILD}"
        said = f"{build} knows no architecture {arch!r}{foreign.maker_of_architecture(arch)}"
        yield Fault("architecture", said, KNOWN_BUILDS)


def _keys(h: Header, arch: str) -> Iterator[Fault]:
    """load_hparams: keys every model has, and arrays with one entry per block."""
    for name in _NEEDED:
        if f"{arch}.{name}" not in h.fields:
            yield Fault("key", f"the key {arch}.{name} is missing", ALWAYS)
    blocks = h.number(f"{arch}.block_count")
    if f"{arch}.block_count" in h.fields and not 1 <= blocks <= MOST_LAYERS:
        said = f"{arch}.block_count is {blocks}; llama.cpp takes 1 to {MOST_LAYERS}"
        yield Fault("layers", said, ALWAYS)
        return
    heads = h.number(f"{arch}.nextn_predict_layers")
    if heads > blocks:
        said = f"{arch}.nextn_predict_layers is {heads}, of {blocks} blocks in all"
        yield Fault("layers", said, ALWAYS)
    for name in _PER_BLOCK:
        value = h.fields.get(f"{arch}.{name}")
        if isinstance(value, LazyArray) and value.kind != STRING and value.count != blocks:
            said = f"{arch}.{name} has {value.count} entries for {blocks} blocks"
            yield Fault("array length", said, ALWAYS)


def _tokenizer(h: Header) -> Iterator[Fault]:
    """llama-vocab.cpp: a file without a tokenizer says so by the model "none", and Kimi K2 needs
    no merges."""
    model = h.text("tokenizer.ggml.model")
    needed = ["tokenizer.ggml.model"]
    if model not in _NO_TOKENIZER:
        needed.append("tokenizer.ggml.tokens")
    if model == "gpt2" and h.text("tokenizer.ggml.pre") != "kimi-k2":
        needed.append("tokenizer.ggml.merges")
    missing = next((key for key in needed if key not in h.fields), None)
    if missing is not None:
        yield Fault("tokenizer", f"the key {missing} is missing", ALWAYS)


def _sidecar(h: Header, arch: str) -> Iterator[Fault]:
    """Keys of drafters (load_arch_hparams of src/models/eagle3.cpp and dflash.cpp), and
    assertions of their graphs, which a newer build may do without."""
    for name in _NEEDED_BY_SIDECARS.get(arch, ()):
        if f"{arch}.{name}" not in h.fields:
            yield Fault("key", f"the key {arch}.{name} is missing", ALWAYS)
    if arch == "dflash" and h.number("dflash.hyper_connection.count"):
        return  # DeepSeek V4's blocks: a graph of its own, one width for both
    if arch in ("eagle3", "dflash"):
        k, v = (h.number(f"{arch}.attention.{n}_length") for n in ("key", "value"))
        if k and v and k != v:
            yield Fault("head size", f"its keys are {k} wide and its values {v}", KNOWN_BUILDS)


def _layers_read(h: Header, arch: str, tensors: Sequence[Tensor]) -> Iterator[Fault]:
    """A drafter's first matrix takes the hidden states of all the layers that it reads."""
    fc = next((t for t in tensors if t.name == "fc.weight"), None)
    ids = h.fields.get(f"{arch}.target_layers")
    if fc is None or not fc.shape or not isinstance(ids, LazyArray):
        return
    width = h.number(
        "eagle3.target_hidden_size" if arch == "eagle3" else f"{arch}.embedding_length"
    )
    if width and fc.shape[0] != ids.count * width:
        said = f"its fc.weight takes {fc.shape[0]} numbers, {ids.count} layers of {width} give"
        yield Fault("target layers", f"{said} {ids.count * width}", ALWAYS)


def _parts(h: Header, parts: int, tensors: int) -> Iterator[Fault]:
    """The keys of a split model against the files that are there."""
    count = h.number("split.count")
    if count > 1 and parts == 1:
        said = f"split.count says it is one of {count} parts, and its name is not a part's"
        yield Fault("parts", f"{said}: name them all as they were published", ALWAYS)
    elif count != parts and parts > 1:
        said = f"its name says {parts} parts, split.count {count or 'nothing'}"
        yield Fault("parts", said, ALWAYS)
    elif count > 1:
        total = h.number("split.tensors.count")
        if total != tensors:
            said = f"split.tensors.count is {total}, its parts hold {tensors}"
            yield Fault("parts", said, ALWAYS)


def _types(tensors: Sequence[Tensor]) -> Iterator[Fault]:
    unknown = next((t for t in tensors if t.nbytes is None), None)
    if unknown is not None:
        build = f"llama.cpp up to b{architectures.KNOWN_BUILD}"
        said = f"{build} knows no tensor {unknown.kind} (of {unknown.name!r})"
        who = foreign.maker_of_type(unknown.kind)
        yield Fault("tensor type", said + who, KNOWN_BUILDS, foreign.fork_of_type(unknown.kind))


def _names(tensors: Sequence[Tensor]) -> Iterator[Fault]:
    """Tensors that nothing in llama.cpp asks for: it loads all of a file or nothing."""
    counted = Counter(t.name for t in tensors)
    twice = next((name for name, times in counted.items() if times > 1), None)
    if twice is not None:
        yield Fault("repeated tensor", f"the tensor {twice!r} comes more than once", ALWAYS)
    strange = [t for t in tensors if t.name.split(".", 1)[0] not in architectures.TENSORS]
    if strange:
        name = strange[0].name
        build = f"llama.cpp up to b{architectures.KNOWN_BUILD}"
        said = f"{len(strange)} tensors such as {name!r} have names unknown to {build}"
        yield Fault("foreign tensors", said + foreign.maker_of_tensor(name), KNOWN_BUILDS)


def _rows(arch: str, kind: str, tensors: Sequence[Tensor], tokens: int | None) -> Iterator[Fault]:
    """Tables with one row per token of the file's own vocabulary."""
    by_name = {t.name: t for t in tensors}
    if arch in architectures.SIDECARS:
        yield from _mapped_rows(arch, by_name, tokens)
        return
    if arch in _OTHER_ROWS or not by_name:
        return
    build = f"llama.cpp up to b{architectures.KNOWN_BUILD}"
    mapped = "d2t" in by_name
    if mapped:  # FastMTP: a head over the commonest tokens only
        said = f"its rows are mapped to tokens by d2t, as {build} does for EAGLE-3 and DFlash only"
        yield Fault("d2t", said, KNOWN_BUILDS)
    if kind == "mtp-head":
        missing = [n for n in _needed_beside_a_head(arch) if n not in by_name]
        if missing:
            said = f"it has no {missing[0]}, which a head in a file of its own needs for {build}"
            yield Fault("tables", said, KNOWN_BUILDS)
    elif "token_embd.weight" not in by_name and not (
        arch in _EMBEDS_BY_OUTPUT and "output.weight" in by_name
    ):
        yield Fault("tables", "it has no token_embd.weight", ALWAYS)
    for t in tensors:
        if t.name in _PER_TOKEN or t.name.endswith(_PER_TOKEN_OF_A_HEAD):
            yield from _row_count(t, tokens, KNOWN_BUILDS if mapped else ALWAYS)


def _needed_beside_a_head(arch: str) -> Iterator[str]:
    """Nothing of them is borrowed from the target (load_arch_tensors of src/models/*.cpp)."""
    yield "token_embd.weight"
    if arch in ("mimo2", "deepseek4"):
        yield "output.weight"
    if arch != "qwen4exp":
        yield "output_norm.weight"


def _mapped_rows(arch: str, by_name: Mapping[str, Tensor], tokens: int | None) -> Iterator[Fault]:
    """EAGLE-3 and DFlash may draft from fewer tokens: d2t names those, one per row."""
    d2t = by_name.get("d2t")
    if d2t is not None and d2t.kind != "I64":
        yield Fault("d2t", f"its d2t is {d2t.kind}, it must be I64", ALWAYS)
    short = d2t is not None and d2t.elements != tokens
    if short and "output.weight" not in by_name and arch == "eagle3":
        yield Fault("d2t", "it has d2t, but no output.weight of its own", ALWAYS)
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
    """What the reader of llama.cpp (gguf.cpp) checks in each file."""
    if h.repeated:
        said = f"the key {h.repeated[0]!r} comes more than once"
        yield Fault("repeated key", said, MAINLINE)
    alignment = h.fields.get("general.alignment", 32)
    step = alignment if isinstance(alignment, int) else 32
    expected = 0
    for t in h.tensors:
        if len(t.name.encode()) > _MOST_NAME or len(t.shape) > _MOST_DIMS:
            said = f"the tensor {t.name[:80]!r} has too long a name or too many dimensions"
            yield Fault("tensor table", said, MAINLINE)
            return
        if t.nbytes is None:
            return  # its size, and so the next one's place, is not known
        if t.shape and t.shape[0] % BLOCKS[t.kind]:
            said = f"a row of {t.name!r} has {t.shape[0]} elements, no multiple of {t.kind}'s block"
            yield Fault("tensor table", said, ALWAYS)
            return
        if t.offset != expected:
            said = f"the tensor {t.name!r} lies at byte {t.offset} of the data, not {expected}"
            yield Fault("tensor table", said, MAINLINE)
            return
        expected += -(-t.nbytes // step) * step
