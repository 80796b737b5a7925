"""Bytes of the KV cache and of recurrent state. Exact for the architectures of
`gguf.layout.EXACT`."""

from __future__ import annotations

from specllama.gguf.layout import Block, Layout
from specllama.memory.use import CACHE_TYPES, ModelUse, pad


def kv_bytes(layout: Layout, block: Block, use: ModelUse) -> int:
    """Bytes of one block's KV cache (src/llama-kv-cache.cpp). A sliding-window block stores the
    window and one ubatch, padded to 256 (src/llama-kv-cache-iswa.cpp)."""
    if not block.k and not block.v:
        return 0
    cells = window_cells(layout, use) if block.window and not use.swa_full else use.cells
    # Without flash attention, V is stored transposed, with all rows as wide as the widest.
    v = block.v if use.flash else layout.v_padded
    return (_row(block.k, use.cache_k) + _row(v, use.cache_v)) * cells * use.streams


def window_cells(layout: Layout, use: ModelUse) -> int:
    """Tokens that a sliding-window block stores for one stream."""
    slots = use.parallel if use.unified else 1
    return pad(min(use.cells, layout.window * slots + use.tokens), 256)


def state_bytes(block: Block, use: ModelUse) -> int:
    """Bytes of one block's recurrent state: f32, one per slot, with its rollback copies
    (src/llama-memory-recurrent.cpp: n_rows = mem_size * (1 + n_rs_seq))."""
    return block.state * 4 * use.parallel * (1 + use.rollback)


def _row(elements: int, kind: str) -> int:
    per_block, size = CACHE_TYPES[kind]
    return -(-elements // per_block) * size
