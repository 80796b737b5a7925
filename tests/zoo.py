"""Small files that imitate real model families: real vocabulary sizes and special tokens, tiny
shapes, weights of zeros (sparse files).

Tokenizer sizes and special IDs are those of the families' own files. llama-server can load the
models of architecture `llama`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.gguf.files import shard_names
from specllama.gguf.types import TENSOR_TYPES, nbytes

_TYPE_IDS = {name: i for i, (name, _, _) in TENSOR_TYPES.items()}
Value = bool | int | float | str | Sequence[int] | Sequence[str]


def write(
    path: Path,
    arch: str,
    fields: Mapping[str, Value | bytes],
    tensors: Mapping[str, Sequence[int]],
    types: Mapping[str, str] | None = None,
) -> Path:
    """A GGUF 3 file with tensors of zeros, F32 unless `types` names another type. A file
    named like a part of a split model gets the key split.count."""
    all_fields: dict[str, Value | bytes] = {"general.architecture": arch, **fields}
    if len(parts := shard_names(path.name)) > 1:
        all_fields["split.count"] = len(parts)
    body = b"".join(key_value(k, v) for k, v in all_fields.items())
    table, offset = b"", 0
    for name, shape in tensors.items():
        dims = b"".join(struct.pack("<Q", n) for n in shape)
        table += _string(name) + struct.pack("<I", len(shape)) + dims
        kind = _TYPE_IDS[(types or {}).get(name, "F32")]
        table += struct.pack("<IQ", kind, offset)
        size = nbytes(kind, math.prod(shape)) or 0
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(all_fields)) + body + table
    start = -(-len(head) // 32) * 32
    with path.open("wb") as f:
        f.write(head)
        f.truncate(start + offset)
    return path


def key_value(key: str, value: Value | bytes) -> bytes:
    """An entry of the header; bytes: the raw type and value."""
    return _string(key) + (value if isinstance(value, bytes) else _value(value))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(v: Value) -> bytes:
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + _string(v)
    if v and isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(_string(str(s)) for s in v)
    return struct.pack("<IIQ", 9, 4, len(v)) + struct.pack(f"<{len(v)}I", *(int(n) for n in v))


@dataclass(frozen=True)
class Vocab:
    """A tokenizer: `n` tokens named by `letter` and ID, except the `special` ones."""

    model: str
    pre: str
    letter: str
    n: int
    special: Mapping[int, str] = field(default_factory=dict)
    ids: Mapping[str, Value] = field(default_factory=dict)

    def fields(self) -> dict[str, Value]:
        tokens = [f"{self.letter}{i}" for i in range(self.n)]
        for i, text in self.special.items():
            if i < self.n:
                tokens[i] = text
        out: dict[str, Value] = {"tokenizer.ggml.model": self.model}
        if self.pre:
            out["tokenizer.ggml.pre"] = self.pre
        out["tokenizer.ggml.tokens"] = tokens
        if self.model != "llama":
            out["tokenizer.ggml.merges"] = [f"{self.letter} 1"]
        return out | {f"tokenizer.ggml.{k}": v for k, v in self.ids.items()}


_LLAMA3 = {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>", 128009: "<|eot_id|>"}
_R1 = {151643: "<|end|>", 151646: "<|begin|>"}
_QWEN25 = {151643: "<|endoftext|>", 151645: "<|im_end|>", 151646: "<|object_ref_start|>"}
_QWEN3 = {151665: "<tool_response>", 151667: "<think>", 151668: "</think>"}
_QWEN_IDS = {"bos_token_id": 151643, "eos_token_id": 151645, "add_bos_token": False}
_R1_IDS = {"bos_token_id": 151646, "eos_token_id": 151643, "add_bos_token": True}
_GEMMA_IDS = {"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": True}

LLAMA30 = Vocab(
    "gpt2",
    "llama-bpe",
    "l",
    128256,
    {**_LLAMA3, 128004: "<|reserved_special_token_2|>"},
    {"bos_token_id": 128000, "eos_token_id": 128001},
)
LLAMA31 = Vocab(
    "gpt2",
    "llama-bpe",
    "l",
    128256,
    {**_LLAMA3, 128004: "<|finetune_right_pad_id|>"},
    {"bos_token_id": 128000, "eos_token_id": 128009},
)
QWEN25 = Vocab("gpt2", "qwen2", "q", 151936, _QWEN25, _QWEN_IDS)
QWEN25_LARGE = Vocab("gpt2", "qwen2", "q", 152064, _QWEN25, _QWEN_IDS)
QWEN25_ONE_MORE = Vocab("gpt2", "qwen2", "q", 152065, _QWEN25, _QWEN_IDS)
R1_QWEN = Vocab("gpt2", "deepseek-r1-qwen", "q", 151936, _R1, _R1_IDS)
R1_QWEN_LARGE = Vocab("gpt2", "deepseek-r1-qwen", "q", 152064, _R1, _R1_IDS)
QWEN3 = Vocab("gpt2", "qwen2", "q", 151936, {**_QWEN25, **_QWEN3}, _QWEN_IDS)
QWEN35 = Vocab("gpt2", "qwen35", "w", 248320, {}, {"eos_token_id": 248046, "add_bos_token": False})
GEMMA2 = Vocab("llama", "default", "g", 256000, {139: "▁▁▁"}, _GEMMA_IDS)
GEMMA2_OTHER = Vocab("llama", "default", "g", 256000, {139: "   "}, _GEMMA_IDS)
GEMMA3 = Vocab("llama", "default", "h", 262144, {}, _GEMMA_IDS)
GEMMA3_LARGE = Vocab("llama", "default", "h", 262208, {}, _GEMMA_IDS)
GEMMA4 = Vocab("gemma4", "", "i", 262144, {}, {"bos_token_id": 2, "eos_token_id": 1})
LLAMA2 = Vocab("llama", "default", "m", 32000, {}, {"bos_token_id": 1, "eos_token_id": 2})


def llama(path: Path, name: str, vocab: Vocab, d: int, arch: str = "llama") -> Path:
    """A whole model that llama-server can load when `arch` is llama. Width `d`, one layer."""
    return write(path, arch, shape(arch, name, d, 1) | vocab.fields(), llama_tensors(vocab, d))


def llama_tensors(vocab: Vocab, d: int) -> dict[str, Sequence[int]]:
    """The tensors of `llama`."""
    tensors: dict[str, Sequence[int]] = {
        "token_embd.weight": (d, vocab.n),
        "output_norm.weight": (d,),
        "blk.0.attn_norm.weight": (d,),
        "blk.0.ffn_norm.weight": (d,),
        "blk.0.ffn_gate.weight": (d, 2 * d),
        "blk.0.ffn_up.weight": (d, 2 * d),
        "blk.0.ffn_down.weight": (2 * d, d),
    }
    return tensors | {f"blk.0.attn_{p}.weight": (d, d) for p in ("q", "k", "v", "output")}


def shape(arch: str, name: str, d: int, blocks: int) -> dict[str, Value]:
    return {
        "general.name": name,
        f"{arch}.block_count": blocks,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": d,
        f"{arch}.feed_forward_length": 2 * d,
        f"{arch}.attention.head_count": 1,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": d,
    }


def with_head(path: Path, name: str, vocab: Vocab, arch: str, trunk: bool, head: bool) -> Path:
    """An MTP model in one of its three layouts: whole, trunk only, head only."""
    d, last = 256, 2
    tensors: dict[str, Sequence[int]] = {
        "token_embd.weight": (d, vocab.n),
        "output_norm.weight": (d,),
    }
    if trunk:
        tensors |= {f"blk.{i}.attn_norm.weight": (d,) for i in range(last)}
        tensors |= {f"blk.{i}.ffn_up.weight": (d, 64 * d) for i in range(last)}
    if head:
        tensors[f"blk.{last}.nextn.eh_proj.weight"] = (2 * d, d)
        tensors[f"blk.{last}.attn_norm.weight"] = (d,)
    fields = shape(arch, name, d, last + 1) | {f"{arch}.nextn_predict_layers": 1}
    return write(path, arch, fields | vocab.fields(), tensors)


def sidecar(
    path: Path,
    arch: str,
    d: int,
    fields: Mapping[str, Value],
    tensors: Sequence[str],
    vocab: Vocab,
) -> Path:
    """A drafter of its own architecture, `fields` under its prefix, with the target's tokens."""
    keys = {f"{arch}.{k}": v for k, v in fields.items()}
    keys = shape(arch, path.stem, d, 1) | keys | vocab.fields()
    shapes: dict[str, Sequence[int]] = dict.fromkeys(tensors, (d, d))
    target_layers = fields.get("target_layers")
    if "fc.weight" in shapes and isinstance(target_layers, Sequence):
        shapes["fc.weight"] = (
            len(target_layers) * int(str(fields.get("target_hidden_size", d))),
            d,
        )
    return write(path, arch, keys, shapes)
