"""Layout: the size of each block of a model, and of its KV cache and state per token.

Per-block values of llama.cpp's hyperparameters (b11434: src/llama-hparams.cpp and
load_arch_hparams of src/models/*.cpp) for memory estimates. For architectures in EXACT they were
compared with llama-fit-params (drafters with a server's log); for others, sizes come from the
tensor table and are upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specllama.gguf import architectures
from specllama.gguf.block_kinds import (
    per_block,
    recurrent_blocks,
    sliding_window_blocks,
    state_elements,
    window_size,
)
from specllama.gguf.header import Header, Tensor
from specllama.gguf.weights import block_number

EXACT = frozenset(
    "llama qwen2 qwen3 qwen3moe qwen3next qwen35 qwen35moe gemma2 gemma3 gemma4 phi3 gpt-oss "
    "glm4moe deepseek2 minimax-m2 lfm2 mamba2 falcon-h1 granitehybrid rwkv7 command-r mimo2 "
    "eagle3 dflash".split()
)
_KV_FROM_START = {"gemma3n": 20}
_MAX_BLOCKS = 10_000


@dataclass(frozen=True)
class Block:
    """`weights`, `experts` (its share of routed experts): bytes. `k`, `v`: elements per token in
    the KV cache, 0 = none. `window`: the cache holds a sliding window only. `state`: f32 elements
    of recurrent state per sequence."""

    weights: int
    experts: int
    k: int
    v: int
    window: bool
    state: int


@dataclass(frozen=True)
class Layout:
    """Blocks in order, MTP blocks last. Sizes in bytes: `embedding` and `side_embedding` (read by
    row, stay in RAM), `output` (0 = the embedding is used), `rest` (on the device of the output).
    Widths in elements per token: `query`, `ff` (dense), `expert_ff` (one expert), `mixer` (input
    of a recurrent block), `side_input` (per-layer embeddings). `v_padded`: without flash attention
    every V row is as wide as the widest. `problem`: where the header contradicts its tensors or
    their sizes are unknown, "" if nowhere."""

    blocks: tuple[Block, ...]
    embedding: int
    side_embedding: int
    output: int
    rest: int
    vocabulary: int
    query: int
    ff: int
    expert_ff: int
    mixer: int
    side_input: int
    v_padded: int
    window: int
    exact: bool
    problem: str


def layout(h: Header, tensors: Sequence[Tensor]) -> Layout:
    """The layout described by header and tensors."""
    arch = h.text("general.architecture")
    count = min(h.number(f"{arch}.block_count"), _MAX_BLOCKS)
    sizes = _sizes(tensors)
    by_name = {t.name: t for t in tensors}
    windows = sliding_window_blocks(h, arch, count)
    kv_sizes = _kv_sizes(h, arch, by_name, windows)
    recurrent = recurrent_blocks(h, arch, count, kv_sizes)
    states = state_elements(h, arch)
    blocks = tuple(
        Block(
            *sizes.get(i, (0, 0)),
            *((0, 0) if recurrent[i] and arch != "falcon-h1" else kv_sizes[i]),
            window=windows[i],
            state=states if recurrent[i] else 0,
        )
        for i in range(count)
    )
    shared = h.number(f"{arch}.attention.shared_kv_layers")
    first_without = _KV_FROM_START.get(arch, count - shared)
    blocks = tuple(_without_kv(b) if i >= first_without else b for i, b in enumerate(blocks))
    table = by_name.get("token_embd.weight")
    heads = max(per_block(h, f"{arch}.attention.head_count", count), default=0)
    return Layout(
        blocks=blocks,
        embedding=_bytes(by_name, "token_embd.weight"),
        side_embedding=_bytes(by_name, "per_layer_token_embd.weight"),
        output=_bytes(by_name, "output.weight"),
        rest=sizes.get(-1, (0, 0))[0],
        vocabulary=table.shape[-1] if table and table.shape else 0,
        query=heads * _head_sizes(h, arch, False)[0],
        ff=_ff(h, by_name, arch),
        expert_ff=h.number(f"{arch}.expert_feed_forward_length"),
        mixer=max((_rows(by_name, t.name) for t in tensors if t.name.endswith(_MIXERS)), default=0),
        side_input=h.number(f"{arch}.embedding_length_per_layer_input") * count,
        v_padded=max((v for _, v in kv_sizes), default=0),
        window=window_size(h, arch),
        exact=arch in EXACT,
        problem=_problem(h, arch, by_name, count, kv_sizes),
    )


_MIXERS = (".ssm_in.weight", ".attn_qkv.weight", ".shortconv.in_proj.weight")
_APART = ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")


def _sizes(tensors: Sequence[Tensor]) -> dict[int, tuple[int, int]]:
    """Block → (bytes, bytes of routed experts); -1: tensors outside of blocks."""
    out: dict[int, tuple[int, int]] = {}
    for t in tensors:
        if t.name in _APART:
            continue
        i = block_number(t.name)
        size, experts = out.get(i, (0, 0))
        n = t.nbytes or 0
        out[i] = (size + n, experts + (n if "_exps." in t.name else 0))
    return out


def _bytes(by_name: Mapping[str, Tensor], name: str) -> int:
    return (by_name[name].nbytes or 0) if name in by_name else 0


def _kv_sizes(
    h: Header, arch: str, by_name: Mapping[str, Tensor], windows: Sequence[bool]
) -> list[tuple[int, int]]:
    """(k, v) of each block by head counts and sizes: llama_hparams::n_embd_k_gqa. MLA caches
    one compressed row and no V (llama-kv-cache.cpp)."""
    count = len(windows)
    if arch in architectures.RECURRENT or arch == "gemma4-assistant":
        return [(0, 0)] * count  # the assistant reads the target's cache
    heads = per_block(h, f"{arch}.attention.head_count_kv", count)
    if not heads:
        heads = per_block(h, f"{arch}.attention.head_count", count)
    sizes = {windowed: _head_sizes(h, arch, windowed) for windowed in (False, True)}
    mla = h.number(f"{arch}.attention.key_length_mla") > 0
    out = []
    for i, windowed in enumerate(windows):
        n = max(0, heads[i]) if i < len(heads) else 0
        k, v = n * sizes[windowed][0], 0 if mla else n * sizes[windowed][1]
        if arch not in EXACT:
            k = max(k, _rows(by_name, f"blk.{i}.attn_k.weight"))
            v = max(v, 0 if mla else _rows(by_name, f"blk.{i}.attn_v.weight"))
        out.append((k, v))
    return out


def _rows(by_name: Mapping[str, Tensor], name: str) -> int:
    t = by_name.get(name)
    return t.shape[-1] if t is not None and len(t.shape) > 1 else 0


def _head_sizes(h: Header, arch: str, windowed: bool) -> tuple[int, int]:
    """(K, V) elements of one head; sliding-window layers may have other sizes."""
    heads = h.number(f"{arch}.attention.head_count")
    default = h.number(f"{arch}.embedding_length") // heads if heads else 0
    k = h.number(f"{arch}.attention.key_length") or default
    v = h.number(f"{arch}.attention.value_length") or default
    if windowed:
        k = h.number(f"{arch}.attention.key_length_swa") or k
        v = h.number(f"{arch}.attention.value_length_swa") or v
    return k, v


def _without_kv(b: Block) -> Block:
    return Block(b.weights, b.experts, 0, 0, b.window, b.state)


def _ff(h: Header, by_name: Mapping[str, Tensor], arch: str) -> int:
    """The width of the dense feed-forward; 0 without one."""
    ff = h.number(f"{arch}.feed_forward_length")
    dense = any(
        n.endswith((".ffn_up.weight", ".ffn_gate.weight", ".channel_mix_key.weight"))
        for n in by_name
    )
    return ff if dense else 0


def _problem(
    h: Header,
    arch: str,
    by_name: Mapping[str, Tensor],
    count: int,
    kv_sizes: Sequence[tuple[int, int]],
) -> str:
    """The first contradiction between header and tensors."""
    unknown = next((t for t in by_name.values() if t.nbytes is None), None)
    if unknown is not None:
        return f"{unknown.name} is of unknown size ({unknown.kind})"
    width = h.number(f"{arch}.embedding_length")
    table = by_name.get("token_embd.weight")
    if table is not None and width and table.shape and table.shape[0] != width:
        return f"embedding_length is {width}, but token_embd.weight has {table.shape[0]} columns"
    present = {block_number(name) for name in by_name} - {-1}
    if present and max(present) >= count:
        return f"block_count is {count}, but there are tensors of block {max(present)}"
    trunk = count - h.number(f"{arch}.nextn_predict_layers")
    missing = [i for i in range(trunk) if i not in present]
    if present and missing and len(missing) < trunk:
        return f"block_count is {count}, but block {missing[0]} has no tensors"
    if arch not in EXACT:
        return ""
    for i, (k, _) in enumerate(kv_sizes):
        rows = _rows(by_name, f"blk.{i}.attn_k.weight")
        if rows and rows != k:
            return f"block {i} should have {k} K elements per token, but attn_k has {rows}"
    return ""
