"""Which blocks of a model have a sliding window or recurrent state, and how much state: llama.cpp's
rules by architecture (b11434: src/llama-hparams.cpp and load_arch_hparams of src/models/*.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.gguf import architectures
from specllama.gguf.header import Header

# Architectures with sliding-window layers but no array that lists them: every n-th layer has full
# attention (load_swa_pattern). The second number is the default window.
_PERIOD: Mapping[str, tuple[int, int]] = {
    "gemma2": (2, 4096),
    "gemma3": (6, 0),
    "gemma3n": (5, 0),
    "gpt-oss": (2, 0),
    "cohere2": (4, 0),
    "olmo2": (4, 0),
    "muse-glimmer": (4, 0),
    "plamo3": (8, 0),
}
_NO_WINDOW = frozenset({"phi3"})  # the key is there, llama.cpp ignores it
# Hybrids in which every n-th layer is attention, unless the file lists the recurrent ones.
_INTERVAL: Mapping[str, int] = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen4exp": 4,
    "minimax-01": 8,
}


def per_block(h: Header, key: str, count: int) -> tuple[int, ...]:
    """One number per block; () if the key is missing."""
    if numbers := h.numbers(key):
        return numbers
    return (h.number(key),) * count if key in h.fields else ()


def window_size(h: Header, arch: str) -> int:
    if arch in _NO_WINDOW:
        return 0
    return h.number(f"{arch}.attention.sliding_window") or _PERIOD.get(arch, (0, 0))[1]


def sliding_window_blocks(h: Header, arch: str, count: int) -> tuple[bool, ...]:
    """Which blocks cache a sliding window only. Unknown patterns count as full: an upper bound."""
    if not window_size(h, arch):
        return (False,) * count
    key = f"{arch}.attention.sliding_window_pattern"
    flags = h.numbers(key)
    if flags:
        return tuple(bool(flags[i]) if i < len(flags) else False for i in range(count))
    if arch in ("lfm2", "lfm2moe"):
        return (True,) * count  # of its attention layers
    period = h.number(key) or _PERIOD.get(arch, (0, 0))[0]
    if arch not in _PERIOD or period < 1:
        return (False,) * count
    trunk = h.number(f"{arch}.block_count") - h.number(f"{arch}.nextn_predict_layers")
    return tuple(i < trunk and i % period < period - 1 for i in range(count))


def recurrent_blocks(
    h: Header, arch: str, count: int, kv_sizes: Sequence[tuple[int, int]]
) -> tuple[bool, ...]:
    """Which blocks have recurrent state (is_recr_impl)."""
    if arch in architectures.RECURRENT:
        return (True,) * count
    if arch not in architectures.HYBRID:
        return (False,) * count
    trunk = count - h.number(f"{arch}.nextn_predict_layers")
    if arch == "falcon-h1":
        return (True,) * count
    if arch in _INTERVAL:
        listed = h.numbers(f"{arch}.attention.recurrent_layers")
        if listed:
            return tuple(i < len(listed) and bool(listed[i]) for i in range(count))
        n = h.number(f"{arch}.full_attention_interval") or _INTERVAL[arch]
        return tuple(i < trunk and (i + 1) % n != 0 for i in range(count))
    if arch.startswith("nemotron_h"):  # a block without KV heads may be an FFN
        ff = per_block(h, f"{arch}.feed_forward_length", count)
        return tuple(
            i < trunk and kv_sizes[i][0] == 0 and (i >= len(ff) or ff[i] == 0) for i in range(count)
        )
    return tuple(i < trunk and kv_sizes[i][0] == 0 for i in range(count))


def state_elements(h: Header, arch: str) -> int:
    """State elements of one recurrent block per sequence: n_embd_r() + n_embd_s()."""
    width = h.number(f"{arch}.embedding_length")
    heads = per_block(h, f"{arch}.attention.head_count", 1)
    n_head = heads[0] if heads else 0
    if size := h.number(f"{arch}.wkv.head_size"):
        return ((h.number(f"{arch}.token_shift_count") or 2) + size) * width
    if taps := h.number(f"{arch}.shortconv.l_cache"):
        return width * (taps - 1)
    conv, inner = h.number(f"{arch}.ssm.conv_kernel"), h.number(f"{arch}.ssm.inner_size")
    state = h.number(f"{arch}.ssm.state_size")
    if dim := h.number(f"{arch}.kda.head_dim"):
        return (3 * ((conv or 4) - 1) * dim + dim * dim) * n_head
    groups = h.number(f"{arch}.ssm.group_count")
    rolling = max(0, conv - 1) * (inner + 2 * groups * state)
    if arch == "minimax-01":
        return rolling + h.number(f"{arch}.attention.key_length") ** 2 * n_head
    return rolling + state * inner
