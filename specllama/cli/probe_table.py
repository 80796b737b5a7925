"""The table of probe: a row for each setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specllama.cli.compared import UNMEASURED, Unconfirmed, unconfirmed
from specllama.cli.tuning_lines import interval_text
from specllama.cli.units import mib

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.engine.settings import Speculation
    from specllama.planning.plan import Plan
    from specllama.serving.probe import ProbeResult
    from specllama.tuning.measure import Measurement
    from specllama.tuning.records import Baseline, Confirmation

_TEXT = ("setting", "α", "α·K", "τ", "tok/s", "speed-up", "chance slower")
_MORE = ("first token", "draft/verify", "memory")
SPARE = ("α·K", "draft/verify", "first token", "memory")  # left out first on a narrow terminal


def columns(p: ProbeResult) -> tuple[str, ...]:
    """With several slots: tok/s of all together, and of each request."""
    if slots(p) == 1:
        return _TEXT + _MORE
    names = list(_TEXT)
    names[4:5] = ["tok/s, all", "per request"]
    return (*names, *_MORE)


def slots(p: ProbeResult) -> int:
    return p.planned.task.slots


def table(p: ProbeResult) -> Table:
    """One row per setting, the baseline first. Columns that are empty in all rows are omitted."""
    from rich.table import Table

    found = list(rows(p))
    out = Table(box=None, pad_edge=False, header_style="bold")
    shown = [i for i in range(len(columns(p))) if any(cells[i] for cells in found)]
    for i in shown:
        name = columns(p)[i]
        out.add_column(name, justify="left" if name == "setting" else "right")
    for cells in found:
        out.add_row(*(cells[i] for i in shown))
    return out


def rows(p: ProbeResult) -> Iterator[tuple[str, ...]]:
    """The cells of the table: measured settings first, then the others with what is known."""
    from specllama.tuning.records import decoding_speed

    baseline = p.tuned.baseline
    if baseline is not None:
        m = baseline.measurement
        speed = _speeds(p, m.tokens_per_second)
        yield ("no speculation", "", "", "", *speed, "1x", "", f"{m.first_ms:.0f} ms", "", "")
    for confirmation in p.tuned.confirmations:
        m = confirmation.measurement
        tau = m.log.tokens_per_step
        share = confirmation.split.draft_share if confirmation.split else None
        extra = extra_memory(p.plan, confirmation.speculation)
        yield (
            confirmation.label,
            f"{m.alpha:.2f}" if m.alpha is not None else "",
            _alpha_k(confirmation),
            f"{tau:.2f}" if tau else "",
            *_speeds(p, decoding_speed(baseline, m, confirmation.speedup)),
            interval_text(confirmation.speedup),
            chance(confirmation.slower),
            _first_token(confirmation, baseline),
            f"{share:.0%}/{1 - share:.0%}" if share is not None else "",
            f"+{mib(extra)}" if extra else "",
        )
    yield from (_unconfirmed_row(p, o) for o in unconfirmed(p.tuned, p.planned.task))


def _unconfirmed_row(p: ProbeResult, o: Unconfirmed) -> tuple[str, ...]:
    """A setting that was not confirmed: the result of its one launch, or its prediction."""
    from specllama.tuning.records import decoding_speed

    m, baseline = o.measurement, p.tuned.baseline
    speed = decoding_speed(baseline, m, o.speedup) if m else 0.0
    speeds = _speeds(p, speed) if m else ("",) * len(_speeds(p, 0.0))
    tau = m.log.tokens_per_step if m else None
    extra = extra_memory(p.plan, o.speculation)
    return (
        o.label,
        f"{m.alpha:.2f}" if m and m.alpha is not None else "",
        "",
        f"{tau:.2f}" if tau else "",
        *speeds,
        f"{o.speedup.value:.2f}x predicted" if o.speedup else UNMEASURED if not m else "",
        *("",) * 3,
        f"+{mib(extra)}" if extra else "",
    )


def _speeds(p: ProbeResult, all_together: float) -> tuple[str, ...]:
    n = slots(p)
    each = (f"{all_together / n:.1f}",) if n > 1 else ()
    return (f"{all_together:.1f}", *each)


def _first_token(confirmation: Confirmation, baseline: Baseline | None) -> str:
    """Compared with plain decoding, scaled to the same number of prompt tokens."""
    m = confirmation.measurement
    if baseline is None or not (prompt_tokens := _prompt_tokens(baseline.measurement)):
        return f"{m.first_ms:.0f} ms"
    return (
        f"{m.first_ms - baseline.measurement.first_ms * _prompt_tokens(m) / prompt_tokens:+.0f} ms"
    )


def _prompt_tokens(m: Measurement) -> float:
    return sum(a.prompt_tokens for a in m.responses) / max(1, len(m.responses))


def chance(p: float) -> str:
    """A probability as a percentage."""
    return "<1%" if p < 0.01 else ">99%" if p > 0.99 else f"{p:.0%}"


def _alpha_k(confirmation: Confirmation) -> str:
    """α·K: a popular estimate, next to the measured values."""
    from specllama.tuning.speedup import effective_acceptance

    spec, alpha = confirmation.speculation, confirmation.measurement.alpha
    if alpha is None or not spec.uses_draft or spec.uses_ngram:
        return ""
    return f"{effective_acceptance(alpha, spec.n_max):.2f}"


def extra_memory(plan: Plan, speculation: Speculation) -> int | None:
    """Bytes more than the baseline, by the plan's own estimate."""
    from specllama.memory.estimate import total
    from specllama.planning import memory_inputs

    if plan.budget is None:
        return None
    q, use = plan.budget.request, plan.budget.chosen.use
    changed = plan.with_speculation(speculation)
    drafting = memory_inputs.drafting_of(speculation, changed.choice.draft, plan.user, q.machine)
    return total(q.lines(use, drafting)) - total(q.lines(use, None))
