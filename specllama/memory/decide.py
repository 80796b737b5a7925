"""Whether a plan fits, and the options if it does not, each with its flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specllama.gguf import ModelInfo
from specllama.memory.devices import MIB, Machine, overcommitted
from specllama.memory.estimate import (
    KEEPS_STATES,
    Drafting,
    GpuSplit,
    MemoryLine,
    estimate,
    needed,
    per_device,
)
from specllama.memory.overrides import MovedTensors
from specllama.memory.place import RAM
from specllama.memory.use import ModelUse

FITS, PARTLY, TOO_BIG = "fits", "fits only if", "does not fit"
MIN_CONTEXT = 4096  # the lower limit of llama.cpp's --fit (--fit-ctx)
_STEP = 256  # llama.cpp pads contexts to it
# Minimum share of a draft's layers on the GPU: the others run many times slower.
_MIN_ON_GPU = 0.5
# Minimum share of the target's GPU layers (those that fit without a draft) to keep with a draft.
_KEEPS_LAYERS = 0.9


@dataclass(frozen=True)
class FitVerdict:
    """`kind`: fits, fits only if, does not fit. `missing`: the device that is short, and by how
    much. `gpu_layers`: target layers on GPUs (including the output), if not all."""

    kind: str
    detail: str = ""
    missing: str = ""
    gpu_layers: int | None = None


@dataclass(frozen=True)
class MemoryOption:
    """One way to run. `flags`: the specllama flags that select it. `automatic`: may be chosen
    without those flags. `lines`: its memory."""

    name: str
    flags: tuple[str, ...]
    use: ModelUse
    drafting: Drafting | None
    lines: tuple[MemoryLine, ...] = field(repr=False)
    verdict: FitVerdict
    automatic: bool = True
    warning: str = ""


@dataclass(frozen=True)
class FitRequest:
    """The question: a target with its use on a machine, drafts to choose from (the preferred one
    first), n-grams if none fits. `context_limit`: the longest useful context. `split`: shares
    from -ts. `extra`: other memory needed (a multimodal projector)."""

    target: ModelInfo
    use: ModelUse
    machine: Machine
    drafting: Drafting | None
    others: tuple[Drafting, ...] = ()
    ngram: Drafting | None = None
    context_limit: int = 0
    split: tuple[float, ...] = ()
    extra: tuple[MemoryLine, ...] = ()

    @property
    def places(self) -> GpuSplit:
        return GpuSplit(self.machine.names, self.machine.shares(self.split))

    def lines(self, use: ModelUse, drafting: Drafting | None) -> tuple[MemoryLine, ...]:
        """The estimate by formula."""
        return (*estimate(self.target, use, self.places, drafting), *self.extra)


def verdict_of(
    q: FitRequest, use: ModelUse, drafting: Drafting | None
) -> tuple[FitVerdict, tuple[MemoryLine, ...]]:
    """The verdict on one way to run, and its lines (with as many layers on GPUs as fit)."""
    lines = q.lines(use, drafting)
    missing = overcommitted(needed(lines), q.machine)
    if not missing:
        return FitVerdict(FITS, _from_disk(q, lines)), lines
    device, short = max(missing, key=lambda x: x[1])
    shortfall = f"{device.name} is {size_text(short)} short"
    if q.machine.gpus and use.gpu_layers is None:
        layers = len(q.target.layout.blocks) + 1
        most = _most(0, layers - 1, lambda n: _gpus_hold(q, replace(use, gpu_layers=n), drafting))
        partly = q.lines(replace(use, gpu_layers=most), drafting)
        if most is not None and not overcommitted(needed(partly), q.machine):
            stay = "stays" if layers - most == 1 else "stay"
            detail = f"{layers - most} of {layers} target layers {stay} in RAM (-ngl {most})"
            if note := _from_disk(q, partly):
                detail += f"; {note}"
            return FitVerdict(PARTLY, detail, shortfall, most), partly
    return FitVerdict(TOO_BIG, shortfall, shortfall), lines


def _from_disk(q: FitRequest, lines: Sequence[MemoryLine]) -> str:
    """A note on what is read from disk while serving; "" if nothing is."""
    sums = per_device(lines)
    most = sum(line.on_disk for line in lines)
    shared = sum(n for d, n in sums.items() if (x := q.machine.device(d)) is not None and x.shared)
    over = shared - q.machine.ram.usable
    if not most or over <= 0:
        return ""
    return f"{size_text(over)} of the experts are read from disk on demand (mmap): much slower"


def size_text(n: int) -> str:
    """Bytes for display."""
    if n >= 10 * 1024 * MIB:
        return f"{n / MIB / 1024:,.1f} GiB"
    return f"{n / MIB:,.0f} MiB" if n >= 10 * MIB else f"{n / MIB:.1f} MiB"


def with_lines(q: FitRequest, option: MemoryOption, lines: tuple[MemoryLine, ...]) -> MemoryOption:
    """The option with other memory lines; it becomes TOO_BIG if they do not fit."""
    missing = overcommitted(needed(lines), q.machine)
    if not missing:
        return replace(option, lines=lines)
    device, short = max(missing, key=lambda x: x[1])
    shortfall = f"{device.name} is {size_text(short)} short"
    return replace(option, lines=lines, verdict=FitVerdict(TOO_BIG, shortfall, shortfall))


def longest_context(q: FitRequest, drafting: Drafting | None, partly: bool = False) -> int:
    """The longest context that fits completely, or with some of the target's layers in RAM (`partly`):
    the limit, or a multiple of 256; 0 if none fits."""
    limit = q.context_limit or q.use.context

    def fits(tokens: int) -> bool:
        use = replace(q.use, context=tokens)
        return (
            verdict_of(q, use, drafting)[0].kind != TOO_BIG if partly else _fits(q, use, drafting)
        )

    if limit % _STEP and fits(limit):
        return limit
    most = _most(1, max(1, limit // _STEP), lambda n: fits(n * _STEP))
    return (most or 0) * _STEP


def memory_options(q: FitRequest) -> tuple[MemoryOption, ...]:
    """The options, the requested one first; if that fits, no others."""
    requested = _option(q, "as requested", (), q.use, q.drafting)
    return (requested,) if requested.verdict.kind == FITS else (requested, *alternatives(q))


def alternatives(q: FitRequest) -> tuple[MemoryOption, ...]:
    """The alternatives, by what is given up: states, another draft, the draft's layers or cache, the
    draft. Only those that fit, and those without a draft."""
    if q.drafting is None:
        return ()
    out = [o for o in _smaller(q, q.drafting) if o.verdict.kind == FITS]
    if q.ngram is not None and q.drafting.method:
        name = f"n-gram only ({q.ngram.methods[0]}, no VRAM)"
        out.append(_option(q, name, ("--method", ",".join(q.ngram.methods)), q.use, q.ngram))
    out.append(_option(q, "no speculation", ("--method", "none"), q.use, None))
    return tuple(out)


def experts_in_ram(q: FitRequest, drafting: Drafting | None) -> int:
    """The number of layers whose experts must be in RAM (--n-cpu-moe N) so that all layers stay on
    the GPUs; 0 if that is not needed, or does not help."""
    blocks = q.target.layout.blocks
    if not q.target.experts or not q.machine.gpus or q.use.moved or q.use.gpu_layers is not None:
        return 0

    def fits(on_gpu: int) -> bool:
        """With the experts of `on_gpu` layers on GPUs."""
        out = tuple(
            MovedTensors(i, RAM, b.experts, b.experts)
            for i, b in enumerate(blocks[: len(blocks) - on_gpu])
        )
        return _fits(q, replace(q.use, moved=out), drafting)

    most = _most(0, len(blocks), fits)
    return 0 if most is None else len(blocks) - most


def best_option(found: Sequence[MemoryOption]) -> MemoryOption:
    """The first that fits completely. If not even the target alone does, the first that keeps
    nearly as many of its layers on GPUs; else the last."""
    allowed = [o for o in found if o.automatic]
    whole = next((o for o in allowed if o.verdict.kind == FITS), None)
    if whole is not None:
        return whole
    plain = found[-1].verdict.gpu_layers or 0
    for option in allowed:
        layers = option.verdict.gpu_layers
        if option.verdict.kind == PARTLY and layers and layers >= _KEEPS_LAYERS * plain:
            return option
    return found[-1]


def _smaller(q: FitRequest, drafting: Drafting) -> list[MemoryOption]:
    out = []
    if drafting.method in KEEPS_STATES and q.target.memory != "attention":
        out += _fewer_states(q, drafting)
    for other in q.others:
        name = other.model.title if other.model else "the target's MTP head"
        flags: tuple[str, ...] = ("--method", "mtp")
        if other.model is not None:
            flags = ("--draft", str(other.model.path))
        out.append(_option(q, f"another draft: {name}", flags, q.use, other))
    if drafting.model is not None and drafting.model.kind == "model":
        out += _fewer_layers(q, drafting)
    if drafting.method and drafting.cache_k == "f16":
        small = replace(drafting, cache_k="q8_0", cache_v="q8_0")
        flags = ("--draft-cache", "q8_0")
        warning = "acceptance may halve or drop to zero"
        option = _option(q, "the draft's KV cache in q8_0", flags, q.use, small)
        out.append(replace(option, automatic=False, warning=warning))
    context = longest_context(q, drafting)
    if context >= min(MIN_CONTEXT, q.use.context) and context < q.use.context:
        name = f"a context of {context:,} tokens with this draft"
        use = replace(q.use, context=context)
        out.append(replace(_option(q, name, ("-c", str(context)), use, drafting), automatic=False))
    return out


def _fewer_states(q: FitRequest, drafting: Drafting) -> list[MemoryOption]:
    """Hybrid models store a state per drafted token: shorter drafts need fewer."""
    most = _most(1, drafting.longest - 1, lambda n: _fits(q, q.use, replace(drafting, longest=n)))
    if most is None:
        return []
    shorter = replace(drafting, longest=most)
    name = f"draft length {most} instead of {drafting.longest}"
    return [_option(q, name, ("--n-max", str(most)), q.use, shorter)]


def _fewer_layers(q: FitRequest, drafting: Drafting) -> list[MemoryOption]:
    """The option with some of a draft model's layers in RAM."""
    assert drafting.model is not None
    layers = len(drafting.model.layout.blocks) + 1
    if not q.machine.gpus or drafting.gpu_layers is not None:
        return []
    most = _most(0, layers - 1, lambda n: _fits(q, q.use, replace(drafting, gpu_layers=n)))
    if most is None:
        return []
    option = _option(
        q,
        f"{layers - most} of the draft's {layers} layers in RAM",
        ("--draft-layers", str(most)),
        q.use,
        replace(drafting, gpu_layers=most),
    )
    slow = most < _MIN_ON_GPU * layers
    warning = "most of the draft would run on the CPU, too slow to pay off" if slow else ""
    return [replace(option, automatic=not slow, warning=warning)]


def _option(
    q: FitRequest, name: str, flags: tuple[str, ...], use: ModelUse, drafting: Drafting | None
) -> MemoryOption:
    verdict, lines = verdict_of(q, use, drafting)
    return MemoryOption(name, flags, use, drafting, lines, verdict)


def _fits(q: FitRequest, use: ModelUse, drafting: Drafting | None) -> bool:
    return not overcommitted(needed(q.lines(use, drafting)), q.machine)


def _gpus_hold(q: FitRequest, use: ModelUse, drafting: Drafting | None) -> bool:
    missing = overcommitted(needed(q.lines(use, drafting)), q.machine)
    return all(device is q.machine.ram for device, _ in missing)


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number in [low, high] that fits, None if none does. Memory grows with it."""
    if high < low or not fits(low):
        return None
    if fits(high):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
