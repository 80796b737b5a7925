"""Tokenizer properties that decide whether two models can share tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from specllama.gguf.header import Header
from specllama.gguf.values import STRING, LazyArray

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


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of one file. `type`: llama.cpp's (SPM, BPE, …), from `tokenizer.ggml.model`.
    `add_bos`/`add_eos`: effective values, from the key or llama.cpp's default. Ids are -1 if there
    is no such token. `fingerprint`: SHA-256 of the token table; equal means equal tokens."""

    type: str
    pre: str
    n_tokens: int
    add_bos: bool
    bos_id: int
    add_eos: bool
    eos_id: int
    eot_id: int
    pad_id: int
    fingerprint: str
    table: LazyArray = field(repr=False, compare=False)

    @cached_property
    def tokens(self) -> list[bytes]:
        """Every token's text, in id order. Read from the file on first use."""
        return self.table.strings()


def read_vocabulary(h: Header) -> Vocabulary | None:
    """The tokenizer in a header; None if it has no token table."""
    tokens = h.fields.get("tokenizer.ggml.tokens")
    model = h.text("tokenizer.ggml.model")
    if not isinstance(tokens, LazyArray) or tokens.kind != STRING or not model:
        return None
    pre = h.text("tokenizer.ggml.pre")
    kind, add_bos, add_eos, bos, eos = _TYPES.get(model, (model, False, False, -1, -1))
    if kind == "BPE" and model != "gemma4":
        add_bos = pre in _BOS_BY_PRE
    forced = model == "gemma4"  # llama.cpp always sets add_bos for it
    return Vocabulary(
        type=kind,
        pre=pre,
        n_tokens=tokens.count,
        add_bos=add_bos if forced else _flag(h, "tokenizer.ggml.add_bos_token", add_bos),
        bos_id=_special(h, "bos", bos, tokens.count),
        add_eos=_flag(h, "tokenizer.ggml.add_eos_token", add_eos),
        eos_id=_special(h, "eos", eos, tokens.count),
        eot_id=_special(h, "eot", -1, tokens.count),
        pad_id=_special(h, "padding", -1, tokens.count),
        fingerprint=hashlib.sha256(tokens.raw()).hexdigest(),
        table=tokens,
    )


def _special(h: Header, which: str, default: int, count: int) -> int:
    """A special token id; if out of range, the default, as in llama-vocab.cpp."""
    value = h.fields.get(f"tokenizer.ggml.{which}_token_id")
    return value if isinstance(value, int) and 0 <= value < count else default


def _flag(h: Header, key: str, default: bool) -> bool:
    value = h.fields.get(key)
    return value if isinstance(value, bool) else default
