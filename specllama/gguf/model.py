"""ModelInfo: what a GGUF file is, as far as choosing and launching needs it.

Layers are counted without the MTP head: `block_count` includes it (llama.cpp,
llama-hparams.h, `n_layer()`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specllama.gguf.header import GgufError, Header, LazyArray, Scalar, read_header

# Pre-tokenizers that make add_bos default to true for BPE vocabularies
# (llama.cpp b11434, llama-vocab.cpp; an explicit key overrides).
_BOS_BY_PRE = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split()
)
# tokenizer.ggml.model → (vocabulary type, default add_bos, add_eos, bos id, eos id):
# llama.cpp b11434, llama-vocab.cpp. -1 = no such token.
_TYPES: dict[str, tuple[str, bool, bool, int, int]] = {
    "llama": ("SPM", True, False, 1, 2),
    "gpt2": ("BPE", False, False, 11, 11),
    "hybriddna": ("BPE", False, False, 11, 11),
    "whitespace": ("BPE", False, False, 11, 11),
    "gemma4": ("BPE", True, False, 2, 1),
    "bert": ("WPM", True, False, 101, -1),
    "t5": ("UGM", False, True, -1, 1),
    "rwkv": ("RWKV", False, False, -1, -1),
    "plamo2": ("PLAMO2", False, False, 1, 2),
}
_SIDECARS = {"eagle3": "eagle3", "dflash": "dflash", "gemma4-assistant": "gemma4-assistant"}


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer facts that decide whether two models can share tokens.

    `type` is llama.cpp's (SPM, BPE, …), drawn from `tokenizer.ggml.model`. `add_bos`/`add_eos` are effective: the key, else llama.cpp's default.
    """

    type: str
    pre: str
    n_tokens: int
    add_bos: bool
    bos_id: int
    add_eos: bool
    eos_id: int
    tokens_ref: LazyArray

    @cached_property
    def tokens(self) -> list[bytes]:
        """Every token's text, in id order. Read on first use."""
        return self.tokens_ref.strings()


@dataclass(frozen=True)
class ModelInfo:
    """One model file. `kind` is one of model, mtp-head, eagle3, dflash, dspark,
    gemma4-assistant, mmproj, adapter, vocab-only. Sizes in bytes."""

    path: Path
    kind: str
    architecture: str
    name: str
    file_bytes: int
    parameters: int
    layers: int
    embedding_length: int
    context_length: int | None
    mtp_heads: int
    mtp_tensors: bool
    vocabulary: Vocabulary | None
    has_chat_template: bool

    @property
    def has_mtp_head(self) -> bool:
        """A head that can draft: both the key and its tensors (names are not believed)."""
        return self.mtp_heads > 0 and self.mtp_tensors


def inspect(path: Path) -> ModelInfo:
    """Reads `path` and says what it is. Raises GgufError when it cannot be a usable GGUF."""
    header = read_header(_first_shard(path))
    missing = header.missing_bytes
    if missing:
        raise GgufError(
            f"{header.path}: truncated, {missing:,} bytes of tensor data are missing",
            "The download is incomplete; resume it or download the file again.",
        )
    return model_info(header)


def model_info(header: Header) -> ModelInfo:
    """Draws ModelInfo from a header. Every absent field is tolerated but the architecture."""
    arch = _text(header, "general.architecture")
    if not arch:
        raise GgufError(
            f"{header.path}: no general.architecture, so this is not a llama.cpp model",
            "If it is part of a split model, give the part ending in -00001-of-….gguf.",
        )
    names = {t.name for t in header.tensors}
    blocks = _number(header, f"{arch}.block_count")
    heads = _number(header, f"{arch}.nextn_predict_layers")
    if f"{arch}.router_layer" in header.fields:
        heads = 0  # granite-switch keeps its router in the nextn count (llama.cpp b11434)
    mtp_tensors = any(
        f"blk.{i}.nextn.eh_proj.weight" in names for i in range(max(0, blocks - heads), blocks)
    )
    return ModelInfo(
        path=header.path,
        kind=_kind(header, arch, names, heads, mtp_tensors),
        architecture=arch,
        name=_text(header, "general.name") or header.path.stem,
        file_bytes=header.file_size,
        parameters=sum(t.elements for t in header.tensors),
        layers=max(0, blocks - heads),
        embedding_length=_number(header, f"{arch}.embedding_length"),
        context_length=_number(header, f"{arch}.context_length") or None,
        mtp_heads=heads,
        mtp_tensors=mtp_tensors,
        vocabulary=_vocabulary(header),
        has_chat_template="tokenizer.chat_template" in header.fields,
    )


def _kind(h: Header, arch: str, names: set[str], heads: int, mtp_tensors: bool) -> str:
    declared = _text(h, "general.type")
    if declared == "mmproj" or arch == "clip":
        return "mmproj"
    if declared == "adapter":
        return "adapter"
    if arch in _SIDECARS:
        return "dspark" if arch == "dflash" and "markov_w1.weight" in names else _SIDECARS[arch]
    if not names:
        return "vocab-only"
    if heads and mtp_tensors and "blk.0.attn_norm.weight" not in names:
        return "mtp-head"  # llama.cpp's own test for a head-only file (qwen35.cpp, mimo2.cpp)
    return "model"


def _vocabulary(h: Header) -> Vocabulary | None:
    tokens = h.fields.get("tokenizer.ggml.tokens")
    model = _text(h, "tokenizer.ggml.model")
    if not isinstance(tokens, LazyArray) or tokens.kind != 8 or not model:
        return None
    pre = _text(h, "tokenizer.ggml.pre")
    kind, add_bos, add_eos, bos, eos = _TYPES.get(model, (model, False, False, -1, -1))
    if kind == "BPE" and model != "gemma4":
        add_bos = pre in _BOS_BY_PRE
    forced = model == "gemma4"  # llama.cpp sets add_bos for it whatever the key says
    return Vocabulary(
        type=kind,
        pre=pre,
        n_tokens=tokens.count,
        add_bos=add_bos if forced else _flag(h, "tokenizer.ggml.add_bos_token", add_bos),
        bos_id=_special(h, "bos", bos, tokens.count),
        add_eos=_flag(h, "tokenizer.ggml.add_eos_token", add_eos),
        eos_id=_special(h, "eos", eos, tokens.count),
        tokens_ref=tokens,
    )


def _special(h: Header, which: str, default: int, count: int) -> int:
    """A special id; one out of range falls back to the default, as in llama-vocab.cpp."""
    value = h.fields.get(f"tokenizer.ggml.{which}_token_id")
    return value if isinstance(value, int) and 0 <= value < count else default


def _text(h: Header, key: str) -> str:
    value = h.fields.get(key)
    return value if isinstance(value, str) else ""


def _flag(h: Header, key: str, default: bool) -> bool:
    value = h.fields.get(key)
    return value if isinstance(value, bool) else default


def _number(h: Header, key: str) -> int:
    """A count; of a per-layer array, the largest entry; 0 when absent."""
    value: Scalar | LazyArray | None = h.fields.get(key)
    if isinstance(value, LazyArray):
        numbers = [int(n) for n in value.numbers()] if value.kind not in (8, 9) else []
        return max(numbers, default=0)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else 0


def _first_shard(path: Path) -> Path:
    """The first part of a split model, which alone carries the metadata."""
    match = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not match or match[2] == "00001":
        return path
    first = path.with_name(f"{match[1]}-00001-of-{match[3]}.gguf")
    if not first.is_file():
        raise GgufError(
            f"{path}: part of a split model whose first part is missing", f"Expected {first}"
        )
    return first
