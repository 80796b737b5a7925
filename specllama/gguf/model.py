"""ModelInfo: the properties of a GGUF model.

Layers are counted without the MTP head: `block_count` includes it (llama.cpp,
llama-hparams.h, `n_layer()`). Every absent field is tolerated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specllama.gguf import architectures
from specllama.gguf.faults import Fault, find_faults
from specllama.gguf.header import Header
from specllama.gguf.layout import Layout, layout
from specllama.gguf.types import FILE_TYPES
from specllama.gguf.vocabulary import Vocabulary, read_vocabulary
from specllama.gguf.weights import active_bytes, block_number, head_bits, main_type


def file_of_kind(kind: str) -> str:
    """`a model file`, `an eagle3 file`, `an mtp-head file`."""
    return f"{'an' if re.match('[aeiou]|m[^aeiou]', kind) else 'a'} {kind} file"


@dataclass(frozen=True)
class ModelNames:
    """The names in the file. Hints for ranking, never for decisions."""

    name: str
    basename: str
    size_label: str
    finetune: str
    base_models: tuple[str, ...]


@dataclass(frozen=True)
class Sidecar:
    """A separate drafter's data about its target (eagle3, dflash, …). `mask_token`: placeholder id
    for tokens to draft, -1 if none."""

    target_layers: tuple[int, ...]
    target_hidden_size: int
    block_size: int
    sample_from_anchor: bool
    has_confidence_head: bool
    mask_token: int


@dataclass(frozen=True)
class ModelInfo:
    """One model, including all its parts. Sizes in bytes; `parameters`: tensor elements.

    `quantization`: the tensor type with the most bytes; `file_type`: as declared by the file.
    `kind` is one of model, mtp-head, eagle3, dflash, dspark, gemma4-assistant, p-eagle, mmproj,
    adapter, embedding, vocab-only, unknown. `heads`/`kv_heads` have one entry per block.
    `active_bytes`: read per token, with the share of experts used and the output matrix
    (`output_bytes`), without the MTP head (`mtp_bytes`). `mtp_bits`: per weight of the head's own
    matrices. `faults`: reasons why llama.cpp cannot load it.
    """

    path: Path
    shards: tuple[Path, ...]
    kind: str
    architecture: str
    names: ModelNames
    file_bytes: int
    tensor_bytes: int
    active_bytes: int
    parameters: int
    tensors: int
    quantization: str
    file_type: str
    layers: int
    mtp_heads: int
    mtp_tensors: bool
    mtp_bits: float
    mtp_bytes: int
    output_bytes: int
    embedding_length: int
    embedding_length_out: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    mla_rank: int
    sliding_window: int
    window_pattern: tuple[int, ...]
    memory: str
    experts: int
    experts_used: int
    context_length: int | None
    sidecar: Sidecar
    layout: Layout
    vocabulary: Vocabulary | None
    template_hash: str
    template_has_tools: bool = False  # its chat template shows a request's `tools` to the model
    missing_bytes: int = 0
    faults: tuple[Fault, ...] = ()
    called: str = ""  # its name in a program that keeps models without file names

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.called or self.path.name

    @property
    def has_mtp_head(self) -> bool:
        """Whether it has an MTP head that can draft: both the key and the tensors."""
        return self.mtp_heads > 0 and self.mtp_tensors

    @property
    def stops_when_unsure(self) -> bool:
        """Whether it supports --spec-draft-p-min as a draft: DSpark compares with its confidence
        head, and without one does not draft at all (speculative.cpp, b11434)."""
        return self.kind != "dspark" or self.sidecar.has_confidence_head

    @property
    def has_chat_template(self) -> bool:
        return bool(self.template_hash)

    @property
    def bits_per_weight(self) -> float:
        return self.tensor_bytes * 8 / self.parameters if self.parameters else 0.0


def shows_tools(template: str) -> bool:
    """Whether a chat template uses `tools`: llama.cpp adds nothing to its output (common/chat.cpp,
    b11434; b10068 likewise)."""
    return re.search(r"\btools\b", template) is not None


def model_info(headers: Sequence[Header], paths: Sequence[Path]) -> ModelInfo:
    """ModelInfo from the headers of all parts of a model, in order."""
    h = headers[0]
    tensors = [t for header in headers for t in header.tensors]
    arch = h.text("general.architecture")
    names = {t.name for t in tensors}
    blocks = h.number(f"{arch}.block_count")
    nextn = h.number(f"{arch}.nextn_predict_layers")
    if f"{arch}.router_layer" in h.fields:
        nextn = 0  # granite-switch keeps its router in the nextn count (llama.cpp b11434)
    head_tensors = any(n.endswith(".nextn.eh_proj.weight") for n in names)
    layers = max(0, blocks - nextn)
    head = [t for t in tensors if block_number(t.name) >= layers]
    output = "output.weight" if "output.weight" in names else "token_embd.weight"
    heads = _per_block(h, f"{arch}.attention.head_count", blocks)
    width = h.number(f"{arch}.embedding_length")
    head_size = width // max(1, max(heads, default=1))
    experts = h.number(f"{arch}.expert_count")
    used = h.number(f"{arch}.expert_used_count")
    template = h.text("tokenizer.chat_template")
    kind = _kind(h, arch, names, nextn, head_tensors)
    vocabulary = read_vocabulary(h)
    return ModelInfo(
        path=paths[0],
        shards=tuple(paths),
        kind=kind,
        architecture=arch,
        names=_names(h),
        file_bytes=sum(header.file_size for header in headers),
        tensor_bytes=sum(t.nbytes or 0 for t in tensors),
        active_bytes=active_bytes(tensors, layers, experts, used),
        parameters=sum(t.elements for t in tensors),
        tensors=len(tensors),
        quantization=main_type(tensors),
        file_type=_file_type(h),
        layers=layers,
        mtp_heads=nextn,
        mtp_tensors=head_tensors,
        mtp_bits=head_bits(head) if nextn else 0.0,
        mtp_bytes=sum(t.nbytes or 0 for t in head),
        output_bytes=sum(t.nbytes or 0 for t in tensors if t.name == output),
        embedding_length=width,
        embedding_length_out=h.number(f"{arch}.embedding_length_out"),
        heads=heads,
        kv_heads=_per_block(h, f"{arch}.attention.head_count_kv", blocks) or heads,
        key_length=h.number(f"{arch}.attention.key_length") or head_size,
        value_length=h.number(f"{arch}.attention.value_length") or head_size,
        mla_rank=h.number(f"{arch}.attention.kv_lora_rank"),
        sliding_window=h.number(f"{arch}.attention.sliding_window"),
        window_pattern=_pattern(h, f"{arch}.attention.sliding_window_pattern"),
        memory=architectures.memory(arch),
        experts=experts,
        experts_used=used,
        context_length=h.number(f"{arch}.context_length") or None,
        sidecar=_sidecar(h, arch, names),
        layout=layout(h, tensors),
        vocabulary=vocabulary,
        template_hash=hashlib.sha256(template.encode()).hexdigest() if template else "",
        template_has_tools=shows_tools(template)
        or bool(h.text("tokenizer.chat_template.tool_use")),
        missing_bytes=max(header.missing_bytes for header in headers),
        faults=find_faults(headers, kind, vocabulary.n_tokens if vocabulary else None),
    )


def _kind(h: Header, arch: str, names: set[str], nextn: int, head_tensors: bool) -> str:
    declared = h.text("general.type")
    if declared in ("mmproj", "adapter"):
        return declared
    if arch == "clip":
        return "mmproj"
    if not arch:
        return "unknown"
    if arch in architectures.P_EAGLE or _drafts_in_parallel(h, arch, names):
        return "p-eagle"
    if arch in architectures.SIDECARS:
        return "dspark" if arch == "dflash" and "markov_w1.weight" in names else arch
    if not names:
        return "vocab-only"
    if nextn and head_tensors and "blk.0.attn_norm.weight" not in names:
        return "mtp-head"  # llama.cpp's own test for a head-only file (qwen35.cpp, mimo2.cpp)
    # pooling_type: 0 = none, 1… = mean, cls, last, rank (llama.h)
    if arch in architectures.EMBEDDING or h.number(f"{arch}.pooling_type"):
        return "embedding"
    return "model"


def _drafts_in_parallel(h: Header, arch: str, names: set[str]) -> bool:
    """Whether it is an EAGLE-3 head trained to draft all tokens in one pass: with a placeholder
    hidden state, or several layers (an EAGLE-3 head has one)."""
    if any(n.startswith("mask_hidden") for n in names):
        return True
    key = h.fields.get(f"{arch}.parallel_drafting") is True or f"{arch}.ptd_token_id" in h.fields
    return arch == "eagle3" and (key or h.number("eagle3.block_count") > 1)


def _names(h: Header) -> ModelNames:
    count = min(h.number("general.base_model.count"), 8)
    bases = (
        h.text(f"general.base_model.{i}.repo_url") or h.text(f"general.base_model.{i}.name")
        for i in range(count)
    )
    return ModelNames(
        name=h.text("general.name"),
        basename=h.text("general.basename"),
        size_label=h.text("general.size_label"),
        finetune=h.text("general.finetune"),
        base_models=tuple(b for b in bases if b),
    )


def _sidecar(h: Header, arch: str, names: set[str]) -> Sidecar:
    layers = h.numbers(f"{arch}.target_layers")
    mask = "tokenizer.ggml.mask_token_id"
    return Sidecar(
        target_layers=layers,
        target_hidden_size=h.number(f"{arch}.target_hidden_size"),
        block_size=h.number(f"{arch}.block_size"),
        sample_from_anchor=h.fields.get(f"{arch}.sample_from_anchor") is not False,
        has_confidence_head=h.fields.get(f"{arch}.has_confidence_head") is not False
        and "conf_proj.weight" in names,
        mask_token=h.number(mask) if mask in h.fields else -1,
    )


def _file_type(h: Header) -> str:
    """The quantisation declared by the file, "" if none."""
    value = h.fields.get("general.file_type")
    name = FILE_TYPES.get(value, "") if isinstance(value, int) else ""
    return "" if name == "." else name


def _pattern(h: Header, key: str) -> tuple[int, ...]:
    """For each block whether it has a sliding window, or (n,): every n-th has not."""
    return h.numbers(key) or ((h.number(key),) if h.number(key) else ())


def _per_block(h: Header, key: str, blocks: int) -> tuple[int, ...]:
    """A count per block, from an array or one number for all. () if missing or implausible."""
    numbers = h.numbers(key)
    if numbers or blocks > 10_000:
        return numbers[:10_000]
    one = h.number(key)
    return (one,) * blocks if one else ()
