"""Tuning as lines and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.serving.tune import Outcome
    from specllama.tuning.arms import Arm, Tuned
    from specllama.tuning.speedup import Interval


def tuning_lines(o: Outcome) -> Iterator[str]:
    """What `serve` says of its tuning."""
    for note in o.notes:
        yield f"tuning   {note}"
    if o.tuned is not None:
        t = o.tuned
        off = "" if t.best else "off: "
        yield f"tuned    {off}{t.reason} ({t.launches} launches, {t.seconds:.0f} s)"
        for d in t.dropped:
            if f"{d.what}: {d.why}" not in t.reason:
                yield f"not used {d.what}: {d.why}"
    elif o.result is not None:
        off = "" if o.result.speculation else "off: "
        yield f"tuned    {off}{o.result.reason}"


def tuning_data(o: Outcome) -> dict[str, Any]:
    """The JSON of it."""
    data: dict[str, Any] = {"source": o.source, "notes": list(o.notes)}
    if o.tuned is not None:
        data |= tuned_data(o.tuned)
    elif o.result is not None:
        r = o.result
        data |= {"reason": r.reason, "speedup": list(r.speedup) if r.speedup else None}
    return {"tuning": data}


def tuned_data(t: Tuned) -> dict[str, Any]:
    """The JSON object of one search."""
    return {
        "workload": t.workload,
        "speculation": "on" if t.best else "off",
        "best": t.best.label if t.best else None,
        "reason": t.reason,
        "complete": t.complete,
        "launches": t.launches,
        "seconds": t.seconds,
        "upper_bound": t.upper,
        "baseline": arm_data(t.baseline),
        "arms": [arm_data(a) for a in t.arms],
        "predicted": {
            name: {str(k): interval_data(v) for k, v in curve.items()}
            for name, curve in t.curves.items()
        },
        "dropped": [{"what": d.what, "why": d.why} for d in t.dropped],
    }


def arm_data(a: Arm) -> dict[str, Any]:
    """One measured arm. Times in ms, speeds in tok/s."""
    from specllama.tuning.speedup import conditional

    m, s = a.measurement, a.speculation
    log = m.log
    return {
        "label": a.label,
        "methods": list(s.methods) if s else [],
        "draft": str(s.draft) if s and s.draft else None,
        "n_max": s.n_max if s and s.uses_draft else None,
        "p_min": s.p_min if s and s.uses_draft else None,
        "alpha": m.alpha,
        "tau": log.tokens_per_step,
        "acceptance_by_position": list(log.acceptance),
        "conditional_acceptance": list(conditional(log.acceptance)),
        "tokens_per_second": m.tokens_per_second,
        "prompt_per_second": m.prompt_per_second,
        "first_token_ms": m.first_ms,
        "speedup": interval_data(a.speedup),
        "predicted": interval_data(a.predicted),
        "same_text": a.same_text,
        "cost_ms": {str(k): c.ms for k, c in m.curve().items()},
        "answers": len(m.answers),
        "missing": list(m.missing),
        "findings": list(m.findings),
    }


def interval_data(i: Interval | None) -> list[float] | None:
    return None if i is None else [i.value, i.low, i.high]
