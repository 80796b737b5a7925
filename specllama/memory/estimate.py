"""What a model needs on each device, line by line. Pure: no file is opened here.

Source of the sums: llama.cpp b11434, named at each formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specllama.gguf import ModelInfo
from specllama.gguf.architectures import ROLLBACK
from specllama.gguf.layout import Block
from specllama.memory.cache import kv_bytes, state_bytes
from specllama.memory.compute import compute_bytes, input_bytes
from specllama.memory.errors import MemoryInputError
from specllama.memory.overrides import EMBEDDING, Moved
from specllama.memory.place import RAM, place
from specllama.memory.use import ModelUse

FORMULA, LLAMA_CPP, MEASURED = "formula", "llama.cpp", "measured"
_NGRAM_MOD_TABLE = 4 * 1024 * 1024 * 4  # common/speculative.cpp: entries of an int32 each
_NGRAM_MAP = 262144 * 4  # common/ngram-map.h, COMMON_NGRAM_HASH_MAP_SIZE
# gemma4 asks for its tied output before the embedding, so the two are loaded apart
# (src/models/gemma4.cpp).
_TWO_COPIES = frozenset({"gemma4"})
# Methods that keep a state for every drafted token, on the architectures that can
# (common.h, need_n_rs_seq; llama-arch.cpp, llm_arch_supports_rs_rollback).
KEEPS_STATES = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
# Methods whose drafter reads inputs of the target's layers.
READS_LAYERS = frozenset({"draft-eagle3", "draft-dflash", "draft-dspark"})


@dataclass(frozen=True)
class MemoryLine:
    """Bytes that `who` (target, draft, MTP head, …) needs for `what` on `device`.
    `upper`: at most that much. `on_disk`: the part of it that may stay on disk, read as it is
    used: routed experts in mapped pages. `source`: formula, llama.cpp or measured."""

    who: str
    what: str
    device: str
    bytes: int
    upper: bool = False
    source: str = FORMULA
    on_disk: int = 0


@dataclass(frozen=True)
class Places:
    """GPUs in llama.cpp's order, and how models are split over them."""

    devices: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()

    def only(self, names: Sequence[str] | None) -> Places:
        """Those of the devices with these names; None = all."""
        if names is None:
            return self
        at = [i for i, d in enumerate(self.devices) if d in names]
        return Places(tuple(self.devices[i] for i in at), tuple(self.shares[i] for i in at))


@dataclass(frozen=True)
class Drafting:
    """How tokens are drafted. `model` None: by the target's own head, or n-grams.
    `longest`: tokens of the longest draft, of any method. `moved`: as Use has it; `devices`:
    the GPUs it may use, None = the target's."""

    methods: tuple[str, ...]
    model: ModelInfo | None = None
    longest: int = 3
    cache_k: str = "f16"
    cache_v: str = "f16"
    gpu_layers: int | None = None
    moved: tuple[Moved, ...] = ()
    devices: tuple[str, ...] | None = None

    @property
    def method(self) -> str:
        """The method that drafts with a model or head; "" when only n-grams do."""
        return next((m for m in self.methods if m.startswith("draft-")), "")


def estimate(
    target: ModelInfo, use: ModelUse, places: Places, drafting: Drafting | None = None
) -> tuple[MemoryLine, ...]:
    """Everything a server needs. Raises MemoryInputError for a file that contradicts itself."""
    use = target_use(target, use, drafting)
    lines = list(model_lines("target", target, use, places))
    if drafting is None:
        return tuple(lines)
    method = drafting.method
    if method == "draft-mtp" and drafting.model is None:
        lines += context_lines("MTP head", target, draft_use(use, drafting), places, mtp=True)
    elif drafting.model is not None:
        head = drafting.model.kind == "mtp-head"
        places = places.only(drafting.devices)
        model = _with_tables(drafting.model, target)
        lines += model_lines("draft", model, draft_use(use, drafting), places, mtp=head)
    if "ngram-mod" in drafting.methods:
        lines.append(MemoryLine("n-gram", "table", RAM, _NGRAM_MOD_TABLE))
    elif any(m.startswith("ngram-map") for m in drafting.methods):
        lines.append(MemoryLine("n-gram", "table", RAM, _NGRAM_MAP, upper=True))
    return tuple(lines)


def _with_tables(draft: ModelInfo, target: ModelInfo) -> ModelInfo:
    """A drafter whose logits are the target's: it borrows its output matrix, or spreads its own
    few rows over all of the target's tokens (d2t)."""
    if f"draft-{draft.kind}" not in READS_LAYERS:
        return draft
    rows = max(draft.layout.vocabulary, target.layout.vocabulary)
    return replace(draft, layout=replace(draft.layout, vocabulary=rows))


def target_use(target: ModelInfo, use: ModelUse, drafting: Drafting | None) -> ModelUse:
    """The target's context as this way of drafting needs it: rows of logits for a whole
    draft (server-context.cpp, server_output_limits), states to go back to, the MTP blocks."""
    if drafting is None:
        return use
    outputs = use.outputs
    if outputs is not None:
        outputs = min(use.batch, use.parallel * (1 + drafting.longest))
    back = drafting.method in KEEPS_STATES and target.architecture in ROLLBACK
    own_head = drafting.method == "draft-mtp" and drafting.model is None
    reads = drafting.model is not None and drafting.method in READS_LAYERS
    return replace(
        use,
        outputs=outputs,
        rollback=drafting.longest if back else 0,
        mtp=use.mtp or own_head,
        kept_inputs=len(drafting.model.sidecar.target_layers) if drafting.model and reads else 0,
    )


def draft_use(use: ModelUse, drafting: Drafting) -> ModelUse:
    """The draft's context: as long as the target's in all, its own cache types, one row of
    logits per slot (common/speculative.cpp, common_base_params_to_speculative). Drafters that
    read the target's layers have an encoder, and then room for a whole batch is kept
    (llama-context.cpp: n_outputs_max), twice, since their tokens are picked on the device
    (backend_sampling). Compared with the log of b11434's server."""
    outputs = use.outputs if use.outputs is None else use.parallel
    reads = drafting.method in READS_LAYERS
    return replace(
        use,
        context=use.total_cells,
        cache_k=drafting.cache_k,
        cache_v=drafting.cache_v,
        outputs=use.tokens if reads else outputs,
        sampled=reads,
        rollback=0,
        gpu_layers=drafting.gpu_layers if drafting.model is not None else use.gpu_layers,
        moved=drafting.moved,
    )


def model_lines(
    who: str, m: ModelInfo, use: ModelUse, places: Places, mtp: bool = False
) -> Iterator[MemoryLine]:
    """Weights and context of one model."""
    if m.layout.problem:
        raise MemoryInputError(
            f"{m.path.name} contradicts itself: {m.layout.problem}",
            "llama.cpp would refuse it; download it again or convert it anew.",
        )
    yield from _weights(who, m, use, places)
    yield from context_lines(who, m, use, places, mtp)


def _weights(who: str, m: ModelInfo, use: ModelUse, places: Places) -> Iterator[MemoryLine]:
    """From the tensor table: blocks and output go to their device, the embedding to RAM
    (src/llama-model.cpp, load_tensors), and what the user moved elsewhere."""
    layout = m.layout
    where = _where(m, use, places)
    sums: dict[str, int] = {RAM: layout.embedding + layout.side_embedding}
    experts = 0  # in RAM
    loaded = [i for i in range(len(layout.blocks)) if _loaded(m, use, i)]
    for i in loaded:
        sums[where[i]] = sums.get(where[i], 0) + layout.blocks[i].weights
        experts += layout.blocks[i].experts if where[i] == RAM else 0
    output = layout.output
    if not output and (where[-1] != RAM or m.architecture in _TWO_COPIES):
        output = layout.embedding  # tied: a second copy where the output is
    sums[where[-1]] = sums.get(where[-1], 0) + output + layout.rest
    for x in use.moved:
        if x.block >= 0 and x.block not in loaded:
            continue
        home = where[x.block] if x.block >= 0 else RAM if x.block == EMBEDDING else where[-1]
        sums[home] = sums.get(home, 0) - x.bytes
        sums[x.device] = sums.get(x.device, 0) + x.bytes
        experts += x.experts * ((x.device == RAM) - (home == RAM))
    for device, size in sums.items():
        if size:
            on_disk = experts if device == RAM and use.mapped else 0
            yield MemoryLine(who, "weights", device, size, on_disk=on_disk)


def _loaded(m: ModelInfo, use: ModelUse, block: int) -> bool:
    """MTP blocks are loaded with draft-mtp only (b10218)."""
    return block < m.layers or use.mtp or m.kind == "mtp-head"


def context_lines(
    who: str, m: ModelInfo, use: ModelUse, places: Places, mtp: bool = False
) -> Iterator[MemoryLine]:
    """KV cache, recurrent state and compute buffers of one context; with `mtp`, of the
    context that runs the MTP blocks only."""
    layout = m.layout
    where = _where(m, use, places)
    kv: dict[str, int] = {}
    state: dict[str, int] = {}
    trunk = min(m.layers, len(layout.blocks))
    chosen = range(trunk, len(layout.blocks)) if mtp else range(trunk)
    for i in chosen:
        device = where[i] if use.kv_on_gpu else RAM
        kv[device] = kv.get(device, 0) + kv_bytes(layout, layout.blocks[i], use)
        if not mtp:
            state[device] = state.get(device, 0) + state_bytes(layout.blocks[i], use)
    upper = not layout.exact
    yield from (MemoryLine(who, "KV cache", d, n, upper) for d, n in kv.items() if n)
    yield from (MemoryLine(who, "recurrent state", d, n, upper) for d, n in state.items() if n)
    yield from _compute(who, m, use, where, [layout.blocks[i] for i in chosen])


def _compute(
    who: str, m: ModelInfo, use: ModelUse, where: Sequence[str], blocks: Sequence[Block]
) -> Iterator[MemoryLine]:
    """One buffer per device in use; several GPUs that hold all layers work on four batches
    at once and keep their inputs apart (llama-context.cpp, pipeline_parallel)."""
    gpus = [d for d in dict.fromkeys(where) if d != RAM]
    size = compute_bytes(m, use, blocks)
    copies = 3 * input_bytes(m, use) if len(gpus) > 1 and RAM not in where else 0
    for device in gpus:
        yield MemoryLine(who, "compute", device, size + copies, upper=True)
    host = size if not gpus or RAM in where[:-1] else input_bytes(m, use)
    yield MemoryLine(who, "compute", RAM, host, upper=True)


def _where(m: ModelInfo, use: ModelUse, places: Places) -> list[str]:
    return place(len(m.layout.blocks), use.gpu_layers, places.devices, places.shares)


def per_device(lines: Sequence[MemoryLine]) -> dict[str, int]:
    """Device → bytes of all lines there."""
    out: dict[str, int] = {}
    for line in lines:
        out[line.device] = out.get(line.device, 0) + line.bytes
    return out


def needed(lines: Sequence[MemoryLine]) -> dict[str, int]:
    """Device → bytes that must be there: without what may stay on disk."""
    out: dict[str, int] = {}
    for line in lines:
        out[line.device] = out.get(line.device, 0) + max(0, line.bytes - line.on_disk)
    return out


def total(lines: Sequence[MemoryLine]) -> int:
    """Bytes of all lines."""
    return sum(line.bytes for line in lines)
