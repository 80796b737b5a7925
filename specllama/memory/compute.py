"""The compute buffer: the maximum size of the intermediate results of one pass.

llama.cpp's allocator lays out the whole graph (ggml-alloc.c). The peak decides: attention,
feed-forward, recurrent mixer, or the logits. Each formula sums up the tensors alive at that point
(src/llama-graph.cpp, build_ffn, build_moe_ffn, build_attn_mha); the results were compared with
llama-fit-params (benchmarks/memory.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specllama.gguf import ModelInfo
from specllama.gguf.layout import Block
from specllama.memory.cache import window_cells
from specllama.memory.use import CACHE_TYPES, ModelUse

_F32 = 4
_RESIDUALS = 5  # next to a dense feed-forward; 4 in b11434's graphs, 5 in b11549's
_INDICES = 64  # bytes per token: ids, positions of four kinds, cells of K and V, rows
# Gaps between live tensors are too small for the logits, which then take extra space.
_FRAGMENTS = 0.28
# In these graphs, the logits cannot reuse the mask's memory.
_MASK_UNTIL_LOGITS = frozenset("qwen35 qwen35moe qwen3next gemma4".split())
_DELTA_NET = frozenset("qwen35 qwen35moe qwen3next qwen4exp".split())


def compute_bytes(m: ModelInfo, use: ModelUse, blocks: Sequence[Block] | None = None) -> int:
    """Bytes of the compute buffer of a context of `m` that runs `blocks` (None = all)."""
    if blocks is not None:
        m = replace(m, layout=replace(m.layout, blocks=tuple(blocks)))
    layers = max(_attention(m, use), _mask(m, use) + _feed_forward(m, use))
    # the side input of all blocks, and half as much again while it is computed
    side = 1.5 * m.layout.side_input * use.tokens * _F32
    side += use.exposed_inputs * _width(m, use)
    return int(max(layers + side, _logits(m, use)))


def input_bytes(m: ModelInfo, use: ModelUse) -> int:
    """Bytes that stay in RAM if the layers run on a GPU: token embeddings, space for embeddings as
    input (build_inp_embd has both), masks, positions and indices."""
    return 2 * _width(m, use) + _mask(m, use) + _INDICES * use.tokens


def _width(m: ModelInfo, use: ModelUse) -> int:
    return m.embedding_length * use.tokens * _F32


def _mask(m: ModelInfo, use: ModelUse) -> int:
    """One mask for full attention, one for sliding windows; f16 with flash attention."""
    size = 2 if use.flash else _F32
    keeping = [b for b in m.layout.blocks if b.k]
    cells = 0
    if any(not b.window for b in keeping):
        cells += use.cells
    if any(b.window for b in keeping):
        cells += window_cells(m.layout, use)
    return cells * use.streams * use.tokens * size


def _attention(m: ModelInfo, use: ModelUse) -> int:
    """Residual, Q, K, V and the result; without flash attention the scores of all heads."""
    q = m.layout.query * use.tokens * _F32
    k = max((b.k for b in m.layout.blocks), default=0) * use.tokens * _F32
    alive = _mask(m, use) + 3 * _width(m, use) + 2 * q + 2 * k
    if m.memory == "hybrid" and m.layout.mixer:
        alive += q  # the gate that comes with Q
    if use.flash:
        return alive
    heads = max(m.heads, default=0)
    alive += heads * use.cells * use.streams * use.tokens * _F32
    if m.mla_rank:
        alive += use.cells * m.mla_rank * 2  # V, transposed
        alive += heads * (m.key_length + m.mla_rank) * use.tokens * _F32 - 2 * q
    return alive


def _feed_forward(m: ModelInfo, use: ModelUse) -> int:
    width, layout = _width(m, use), m.layout
    dense = 3 * layout.ff * use.tokens * _F32 + _RESIDUALS * width
    experts = 0
    if m.experts_used:
        inner = (layout.expert_ff or layout.ff) * use.tokens * _F32
        experts = 2 * m.experts_used * width + max(2 * m.experts_used * inner, 6 * width)
    return max(dense, experts, _mixer(m, use))


def _mixer(m: ModelInfo, use: ModelUse) -> int:
    """Recurrent blocks: three copies of their input; RWKV mixes the input six ways."""
    if m.memory == "attention":
        return 0
    width = _width(m, use)
    if "rwkv" in m.architecture:
        return 19 * width
    residuals = 3 if m.architecture in _DELTA_NET else 1
    state = max((b.state for b in m.layout.blocks), default=0) * _F32
    return 3 * m.layout.mixer * use.tokens * _F32 + residuals * width + state


def _logits(m: ModelInfo, use: ModelUse) -> float:
    """All logits with the last layer's result, plus memory that they cannot reuse."""
    rows = use.tokens if use.outputs is None else min(use.outputs, use.tokens)
    logits = m.layout.vocabulary * rows * _F32 + 2 * m.embedding_length * rows * _F32
    if use.sampled:
        return logits + m.layout.vocabulary * rows * _F32
    if rows < use.tokens:
        return logits  # they fit in the memory of the layers
    mask = _mask_until_logits(m, use)
    feed = _feed_forward(m, use) if m.memory == "attention" else 0
    return logits + mask + (_FRAGMENTS * feed if feed < logits else 0)


def _mask_until_logits(m: ModelInfo, use: ModelUse) -> float:
    """Bytes of the mask that the logits cannot reuse: found empirically, not derived."""
    mask = _mask(m, use)
    if m.architecture in _MASK_UNTIL_LOGITS:
        quantised = CACHE_TYPES[use.cache_k][0] > 1
        return 0.53 * mask if quantised and m.architecture in _DELTA_NET else mask
    return 0 if use.flash else mask / 2
