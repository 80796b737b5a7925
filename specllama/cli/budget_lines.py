"""A memory budget as lines, table and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.units import mib, plural

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.memory.decide import MemoryOption
    from specllama.memory.devices import Device
    from specllama.memory.estimate import MemoryLine
    from specllama.planning.budget import Budget

SPARE = ("source",)  # columns left out first on a narrow terminal


def memory_lines(b: Budget) -> Iterator[str]:
    """serve's lines about memory: one, plus one if the context was shortened."""
    yield f"memory   {fit_text(b.chosen)}: {'; '.join(_by_device(b))}"
    yield from advice(b)
    if b.request.use.context < b.requested_context:
        with_what = "the draft" if b.request.drafting is not None else "the model"
        yield (
            f"context  {b.request.use.context:,} of {b.requested_context:,} tokens: the longest that fits "
            f"with {with_what}; -c N overrides it"
        )


def advice(b: Budget) -> Iterator[str]:
    """Options for a target that does not fit completely."""
    from specllama.memory.decide import FITS, TOO_BIG, experts_in_ram, longest_context

    q, v = b.request, b.chosen.verdict
    if v.kind == FITS:
        return
    if layers := experts_in_ram(q, q.drafting) or experts_in_ram(q, None):
        yield (
            f"advice   `-- --n-cpu-moe {layers}` keeps the experts of {layers} of "
            f"{plural(len(q.target.layout.blocks), 'layer')} in RAM and the rest on the GPU"
        )
        return
    if v.kind != TOO_BIG:
        return
    if longest := longest_context(q, None):
        yield f"advice   without a draft, a context of {longest:,} tokens fits: -c {longest} --method none"
    elif q.use.mapped:
        yield (
            "advice   llama.cpp reads weights that exceed RAM from disk (mmap), at the disk's "
            "speed; use a smaller quantisation"
        )


def fit_text(option: MemoryOption) -> str:
    """`fits`, or the reason why not."""
    v = option.verdict
    if not v.detail:
        return v.kind
    patterns = {"fits": "{}, but {}", "fits only if": "{} {}", "does not fit": "{}: {}"}
    return patterns[v.kind].format(v.kind, v.detail)


def _by_device(b: Budget) -> Iterator[str]:
    from specllama.memory.estimate import needed, per_device

    in_ram = needed(b.lines)
    for name, size in per_device(b.lines).items():
        device = b.request.machine.device(name)
        free = f" of {mib(device.free)} free" if device is not None else ""
        if device is None or size <= device.free:
            yield f"{mib(size)}{free} {'in' if name == 'RAM' else 'on'} {name}"
        else:  # experts that stay on disk are not in RAM
            yield f"{mib(in_ram[name])}{free} in {name}, and {mib(size - in_ram[name])} of experts"


def devices(b: Budget) -> Iterator[str]:
    """One line per device: free memory, its source, other users."""
    for d in (*b.request.machine.gpus, b.request.machine.ram):
        yield _device_line(d)
    if b.request.machine.note:
        yield f"note     the engine's devices are unknown: {b.request.machine.note}"


def _device_line(d: Device) -> str:
    parts = [f"{mib(d.free)} free of {mib(d.total)} ({d.source})"]
    if d.margin:
        parts.append(f"{mib(d.margin)} reserved")
    if d.shared and d.name != "RAM":
        parts.append("shares the machine's RAM")
    if d.others:
        parts.append(f"used by {d.others}")
    return f"device   {d.name}, {d.label}: {'; '.join(parts)}"


def table(lines: tuple[MemoryLine, ...], b: Budget) -> Table:
    """One row per line, one column per device, and the sums."""
    from rich.table import Table

    from specllama.memory.estimate import per_device

    names = [d for d in (*b.request.machine.names, "RAM") if any(x.device == d for x in lines)]
    out = Table(box=None, pad_edge=False, header_style="bold")
    out.add_column("part")
    for name in names:
        out.add_column(f"{name} (MiB)", justify="right")
    out.add_column("source")
    for who, what in dict.fromkeys((x.who, x.what) for x in lines):
        row = [x for x in lines if (x.who, x.what) == (who, what)]
        cells = [_cell([x for x in row if x.device == name]) for name in names]
        out.add_row(f"{who} {what}", *cells, ", ".join(dict.fromkeys(x.source for x in row)))
    sums = per_device(lines)
    out.add_row("sum", *(f"{sums[n] / 2**20:,.1f}" for n in names), "")
    usable = [b.request.machine.device(n) for n in names]
    out.add_row("usable", *(f"{d.usable / 2**20:,.1f}" if d else "" for d in usable), "")
    return out


def prompt_cache(b: Budget) -> str | None:
    """Memory that fills while serving, beyond the sum."""
    cache = b.prompt_cache
    if cache is None or cache.bytes == 0:
        return None
    limit = f"up to {mib(cache.bytes)} of RAM" if cache.bytes is not None else "unlimited RAM"
    return f"also     the prompt cache takes {limit} while serving (`-- --cache-ram MIB`, 0 = none)"


def _cell(lines: list[MemoryLine]) -> str:
    if not lines:
        return ""
    most = "≤ " if any(x.upper for x in lines) else ""
    return f"{most}{sum(x.bytes for x in lines) / 2**20:,.1f}"


def budget_data(b: Budget) -> dict[str, Any]:
    """The JSON object of a budget. Bytes."""
    return {
        "verdict": b.chosen.verdict.kind,
        "detail": b.chosen.verdict.detail,
        "context": b.chosen.use.context,
        "context_wanted": b.requested_context,
        "requested": option_data(b.requested),
        "chosen": option_data(b.chosen),
        "options": [option_data(o) for o in b.options[1:]],
        "devices": [
            {
                "name": d.name,
                "label": d.label,
                "total_bytes": d.total,
                "free_bytes": d.free,
                "margin_bytes": d.margin,
                "shared": d.shared,
                "source": d.source,
                "used_by": d.others,
            }
            for d in (*b.request.machine.gpus, b.request.machine.ram)
        ],
        "prompt_cache_bytes": b.prompt_cache.bytes if b.prompt_cache is not None else 0,
        "lines": [_line_data(x) for x in b.lines],
    }


def option_data(o: MemoryOption) -> dict[str, Any]:
    """One memory option, without its lines."""
    from specllama.memory.estimate import per_device

    return {
        "name": o.name,
        "verdict": o.verdict.kind,
        "detail": o.verdict.detail,
        "context": o.use.context,
        "flags": list(o.flags),
        "automatic": o.automatic,
        "warning": o.warning,
        "bytes": per_device(o.lines),
    }


def _line_data(x: MemoryLine) -> dict[str, Any]:
    return {
        "who": x.who,
        "what": x.what,
        "device": x.device,
        "bytes": x.bytes,
        "upper": x.upper,
        "source": x.source,
    }
