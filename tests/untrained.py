"""Drafters of their own architecture for the tiny target, with all weights zero: llama-server loads
them and drafts with them, and almost nothing is accepted.

Keys, tensors and shapes: llama.cpp b11434, src/models/eagle3.cpp and src/models/dflash.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from specllama.gguf.files import read_headers
from specllama.gguf.values import LazyArray
from tests import zoo
from tests.support import MODELS

WIDTH, FEED_FORWARD, HEADS, CONTEXT, VOCABULARY = 256, 640, 4, 2048, 4096
BLOCK = 4  # tokens that a DFlash or DSpark file drafts at once
Tensors = dict[str, Sequence[int]]


def eagle3(path: Path, **keys: zoo.Value) -> Path:
    """An EAGLE-3 head that uses the target's token tables. `keys` replace the default ones."""
    tensors: Tensors = {"fc.weight": (3 * WIDTH, WIDTH), "output_norm.weight": (WIDTH,)}
    tensors |= _block(0, 2 * WIDTH) | {"blk.0.attn_norm_2.weight": (WIDTH,)}
    defaults: dict[str, zoo.Value] = {"target_layers": [0, 1, 2], "target_hidden_size": WIDTH}
    return _write(path, "eagle3", 1, {**defaults, **keys}, tensors)


def dflash(path: Path, **keys: zoo.Value) -> Path:
    """A DFlash drafter of two layers."""
    return _dflash(path, {}, keys)


def dspark(path: Path, **keys: zoo.Value) -> Path:
    """The same with DSpark's Markov head, but without a confidence head."""
    markov: Tensors = {f"markov_w{i}.weight": (32, VOCABULARY) for i in (1, 2)}
    return _dflash(path, markov, {"sample_from_anchor": True, "has_confidence_head": False, **keys})


ALL = {"eagle3": eagle3, "dflash": dflash, "dspark": dspark}


def _dflash(path: Path, more: Tensors, keys: dict[str, zoo.Value]) -> Path:
    tensors: Tensors = {"fc.weight": (2 * WIDTH, WIDTH), **more}
    tensors |= {f"{name}.weight": (WIDTH,) for name in ("enc.output_norm", "output_norm")}
    for i in range(2):
        tensors |= _block(i, WIDTH)
        tensors |= {f"blk.{i}.attn_{p}_norm.weight": (WIDTH // HEADS,) for p in "qk"}
    defaults: dict[str, zoo.Value] = {
        "target_layers": [1, 2],
        "block_size": BLOCK,
        "attention.head_count_kv": HEADS,
        "attention.key_length": WIDTH // HEADS,
        "attention.value_length": WIDTH // HEADS,
    }
    return _write(path, "dflash", 2, {**defaults, **keys}, tensors)


def _block(i: int, attention_in: int) -> Tensors:
    """The tensors of layer `i`, whose attention input is `attention_in` wide."""
    tensors: Tensors = {f"blk.{i}.{n}.weight": (WIDTH,) for n in ("attn_norm", "ffn_norm")}
    tensors |= {f"blk.{i}.attn_{p}.weight": (attention_in, WIDTH) for p in "qkv"}
    tensors |= {f"blk.{i}.ffn_{p}.weight": (WIDTH, FEED_FORWARD) for p in ("gate", "up")}
    return tensors | {
        f"blk.{i}.attn_output.weight": (WIDTH, WIDTH),
        f"blk.{i}.ffn_down.weight": (FEED_FORWARD, WIDTH),
    }


def _write(
    path: Path, arch: str, blocks: int, keys: dict[str, zoo.Value], tensors: Tensors
) -> Path:
    fields: dict[str, zoo.Value | bytes] = {
        f"{arch}.block_count": blocks,
        f"{arch}.context_length": CONTEXT,
        f"{arch}.embedding_length": WIDTH,
        f"{arch}.feed_forward_length": FEED_FORWARD,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
    }
    fields |= tokenizer() | {f"{arch}.{k}": v for k, v in keys.items()}
    if arch == "dflash":
        fields["tokenizer.ggml.mask_token_id"] = VOCABULARY - 1
    return zoo.write(path, arch, fields, tensors)


def tokenizer() -> dict[str, zoo.Value | bytes]:
    """The tiny target's tokenizer: a drafter has the same tokens."""
    (header,) = read_headers(MODELS / "target.gguf")
    fields = header.fields.items()
    return {k: _raw_value(v) for k, v in fields if k.startswith("tokenizer.ggml.")}


def _raw_value(v: object) -> zoo.Value | bytes:
    if isinstance(v, LazyArray):
        return struct.pack("<IIQ", 9, v.kind, v.count) + v.raw()
    assert isinstance(v, bool | int | float | str)
    return v
