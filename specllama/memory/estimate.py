"""Memory of a model on each device, line by line. Pure: no file is opened here.

Source of the formulas: llama.cpp b11434, with the file at each formula.
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
from specllama.memory.overrides import EMBEDDING, MovedTensors
from specllama.memory.place import RAM, assign_devices
from specllama.memory.use import ModelUse

FORMULA, LLAMA_CPP, MEASURED = "formula", "llama.cpp", "measured"
_NGRAM_MOD_TABLE = 4 * 1024 * 1024 * 4  # common/speculative.cpp: entries of an int32 each
_NGRAM_MAP = 262144 * 4  # common/ngram-map.h, COMMON_NGRAM_HASH_MAP_SIZE
# gemma4 creates its tied output before the embedding, so both are loaded
# (src/models/gemma4.cpp).
_TWO_COPIES = frozenset({"gemma4"})
# Methods that store a state for every drafted token, on architectures that support it
# (common.h, need_n_rs_seq; llama-arch.cpp, llm_arch_supports_rs_rollback).
KEEPS_STATES = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
# Methods whose drafter reads the inputs of target layers.
READS_LAYERS = frozenset({"draft-eagle3", "draft-dflash", "draft-dspark"})


@dataclass(frozen=True)
class MemoryLine:
    """Bytes that `who` (target, draft, MTP head, …) needs for `what` on `device`.
    `upper`: an upper bound. `on_disk`: the part that may stay on disk and is read on demand
    (routed experts in mapped pages). `source`: formula, llama.cpp or measured."""

    who: str
    what: str
    device: str
    bytes: int
    upper: bool = False
    source: str = FORMULA
    on_disk: int = 0


@dataclass(frozen=True)
class GpuSplit:
    """GPUs in llama.cpp's order, and the share of a model on each."""

    devices: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()

    def only(self, names: Sequence[str] | None) -> GpuSplit:
        """The split over the devices with these names; None = all."""
        if names is None:
            return self
        at = [i for i, d in enumerate(self.devices) if d in names]
        return GpuSplit(tuple(self.devices[i] for i in at), tuple(self.shares[i] for i in at))


@dataclass(frozen=True)
class Drafting:
    """How tokens are drafted. `model` None: with the target's own head, or n-grams. `longest`: the
    longest draft of any method, in tokens. `moved`: as in ModelUse; `devices`: the GPUs it may
    use, None = the target's."""

    methods: tuple[str, ...]
    model: ModelInfo | None = None
    longest: int = 3
    cache_k: str = "f16"
    cache_v: str = "f16"
    gpu_layers: int | None = None
    moved: tuple[MovedTensors, ...] = ()
    devices: tuple[str, ...] | None = None

    @property
    def method(self) -> str:
        """The method that drafts with a model or head; "" for n-grams only."""
        return next((m for m in self.methods if m.startswith("draft-")), "")


def estimate(
    target: ModelInfo, use: ModelUse, places: GpuSplit, drafting: Drafting | None = None
) -> tuple[MemoryLine, ...]:
    """All memory of a server. Raises MemoryInputError for an inconsistent file."""
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
    """A drafter with the target's logits: it uses the target's output matrix, or maps its own rows
    to the target's tokens (d2t)."""
    if f"draft-{draft.kind}" not in READS_LAYERS:
        return draft
    rows = max(draft.layout.vocabulary, target.layout.vocabulary)
    return replace(draft, layout=replace(draft.layout, vocabulary=rows))


def target_use(target: ModelInfo, use: ModelUse, drafting: Drafting | None) -> ModelUse:
    """The target's context for this kind of drafting: rows of logits for a whole draft
    (server-context.cpp, server_output_limits), rollback states, the MTP blocks."""
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
        exposed_inputs=len(drafting.model.sidecar.target_layers) if drafting.model and reads else 0,
    )


def draft_use(use: ModelUse, drafting: Drafting) -> ModelUse:
    """The draft's context: the target's total length, its own cache types, one row of logits per
    slot (common/speculative.cpp, common_base_params_to_speculative). Drafters that read the
    target's layers have an encoder, so logits are allocated for a whole batch (llama-context.cpp:
    n_outputs_max), twice, since tokens are sampled on the device (backend_sampling). Compared
    with the log of b11434's server."""
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
    who: str, m: ModelInfo, use: ModelUse, places: GpuSplit, mtp: bool = False
) -> Iterator[MemoryLine]:
    """Weights and context of one model."""
    if m.layout.problem:
        raise MemoryInputError(
            f"{m.path.name} is inconsistent: {m.layout.problem}",
            "llama.cpp would reject it. Download it again or reconvert it.",
        )
    yield from _weights(who, m, use, places)
    yield from context_lines(who, m, use, places, mtp)


def _weights(who: str, m: ModelInfo, use: ModelUse, places: GpuSplit) -> Iterator[MemoryLine]:
    """From the tensor table: blocks and output on their device, the embedding in RAM
    (src/llama-model.cpp, load_tensors), and overridden tensors on theirs."""
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
        output = layout.embedding  # tied: a second copy on the output's device
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
    """Whether a block is loaded: MTP blocks only with draft-mtp (b10218)."""
    return block < m.layers or use.mtp or m.kind == "mtp-head"


def context_lines(
    who: str, m: ModelInfo, use: ModelUse, places: GpuSplit, mtp: bool = False
) -> Iterator[MemoryLine]:
    """KV cache, recurrent state and compute buffers of one context; with `mtp`, of the context that
    only runs the MTP blocks."""
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
    """One buffer per device in use. Several GPUs that hold all layers process four batches at once,
    each with its own inputs (llama-context.cpp, pipeline_parallel)."""
    gpus = [d for d in dict.fromkeys(where) if d != RAM]
    size = compute_bytes(m, use, blocks)
    copies = 3 * input_bytes(m, use) if len(gpus) > 1 and RAM not in where else 0
    for device in gpus:
        yield MemoryLine(who, "compute", device, size + copies, upper=True)
    host = size if RAM in where else input_bytes(m, use)
    yield MemoryLine(who, "compute", RAM, host, upper=True)


def _where(m: ModelInfo, use: ModelUse, places: GpuSplit) -> list[str]:
    return assign_devices(len(m.layout.blocks), use.gpu_layers, places.devices, places.shares)


def per_device(lines: Sequence[MemoryLine]) -> dict[str, int]:
    """Device → bytes of all lines there."""
    out: dict[str, int] = {}
    for line in lines:
        out[line.device] = out.get(line.device, 0) + line.bytes
    return out


def needed(lines: Sequence[MemoryLine]) -> dict[str, int]:
    """Device → required bytes, without what may stay on disk."""
    out: dict[str, int] = {}
    for line in lines:
        out[line.device] = out.get(line.device, 0) + max(0, line.bytes - line.on_disk)
    return out


def total(lines: Sequence[MemoryLine]) -> int:
    """Bytes of all lines."""
    return sum(line.bytes for line in lines)
