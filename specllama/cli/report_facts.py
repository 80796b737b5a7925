"""The head of probe's report and plot: the verdict in one line, and the key facts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specllama import __version__
from specllama.cli import probe_lines
from specllama.cli.units import count, mib

if TYPE_CHECKING:
    from specllama.planning.plan import Plan
    from specllama.serving.probe import ProbeResult

ON, OFF, OPEN = "on", "off", "open"
_OFF = "Speculative decoding does not pay off"


@dataclass(frozen=True)
class KeyFact:
    """`detail`: shown below the value."""

    name: str
    value: str
    detail: str = ""


def state(p: ProbeResult) -> str:
    """ON, OFF, or OPEN where the budget or a signal ended the search."""
    from specllama.tuning import records

    if p.tuned.best is not None:
        return ON
    return OPEN if p.stopped or p.tuned.state == records.OPEN else OFF


def headline(found: Sequence[ProbeResult]) -> str:
    """One line about all workloads."""
    if len(found) == 1:
        return f"{_verdict(found[0])}."
    gains = [_short(p) for p in found]
    return f"Speculative decoding: {', '.join(gains)}."


def _verdict(p: ProbeResult) -> str:
    best, name = p.tuned.best, p.tuned.workload
    if best is not None:
        i = best.speedup
        ends = f" (95% interval {i.low:.2f} to {i.high:.2f})" if math.isfinite(i.high) else ""
        from specllama.tuning.judge import slower_after_long_prompts

        gives = f"Speculative decoding gives a {i.value:.2f}x speed-up{ends} on {name}"
        return f"{gives}{slower_after_long_prompts(best)}"
    if state(p) == OPEN:
        return f"No verdict on {name} yet: measuring was cut short"
    if p.tuned.confirmations:
        return f"{_OFF} on {name}: no setting is reliably faster than plain decoding"
    return f"{_OFF} on {name}: no setting is predicted to be faster than plain decoding"


def _short(p: ProbeResult) -> str:
    best, name = p.tuned.best, p.tuned.workload
    if best is not None:
        return f"{best.speedup.value:.2f}x on {name}"
    return f"no verdict on {name} yet" if state(p) == OPEN else f"no speed-up on {name}"


def setup(plan: Plan, when: str) -> Iterator[KeyFact]:
    """What was measured, where and when. No paths: a report is shown to others."""
    m = plan.target
    kind = m.file_type or m.quantization
    yield KeyFact("Model size", f"{count(m.parameters)} parameters", f"{kind}, {mib(m.file_bytes)}")
    yield machine(plan)
    build = plan.capabilities.label
    yield KeyFact("Engine", "llama.cpp", f"{build}, embedded" if plan.engine.embedded else build)
    yield KeyFact("Measured", when, f"specllama {__version__}")


def machine(plan: Plan) -> KeyFact:
    """The GPUs that the engine lists, else the CPU."""
    from specllama.engine import cpu
    from specllama.memory.devices import main_memory

    found = plan.budget.request.machine.gpus if plan.budget is not None else ()
    gpus = [g for g in found if not g.software and g.source != "--vram"]
    ram = f"{mib(main_memory().total)} RAM"
    processor = f"{cpu.name()}, {os.cpu_count() or 1} threads"
    if not gpus:
        return KeyFact("Machine", processor, ram)
    names = [("another machine's GPU" if g.remote else g.label) for g in gpus]
    each = [f"{names.count(n)}x {n}" if names.count(n) > 1 else n for n in dict.fromkeys(names)]
    return KeyFact("Machine", ", ".join(each), f"{processor}, {ram}")


def results(p: ProbeResult) -> Iterator[KeyFact]:
    """The results of one workload."""
    t, best = p.tuned, p.tuned.best
    if best is not None:
        i = best.speedup
        ends = "too few prompts for an interval"
        if math.isfinite(i.high):
            ends = f"95% interval {i.low:.2f} to {i.high:.2f}"
        yield KeyFact("Speed-up", f"{i.value:.2f}x", ends)
        yield KeyFact("Best setting", best.label)
    else:
        off = state(p) == OFF
        value, detail = ("1x", "speculation is off") if off else ("open", "cut short")
        yield KeyFact("Speed-up", value, detail)
        yield KeyFact("Best setting", "plain decoding" if off else "open")
    m = best.measurement if best is not None else None
    if m is not None and m.alpha is not None:
        yield KeyFact(
            "Acceptance rate\N{NO-BREAK SPACE}α", f"{m.alpha:.2f}", "accepted / drafted tokens"
        )
    if m is not None and (tau := m.log.tokens_per_step):
        yield KeyFact(
            "Mean accepted length\N{NO-BREAK SPACE}τ", f"{tau:.2f}", "tokens per verify step"
        )
    if t.baseline is not None:
        plain = t.baseline.measurement.tokens_per_second
        if m is not None and best is not None:
            from specllama.tuning.records import decoding_speed

            speed = decoding_speed(t.baseline, m, best.speedup)
            yield KeyFact(
                "Decoding speed", f"{speed:.1f} tok/s", f"plain decoding {plain:.1f} tok/s"
            )
        else:
            yield KeyFact("Decoding speed", f"{plain:.1f} tok/s", "plain decoding")
    yield KeyFact("Workload", t.workload, probe_lines.about_length(p))
