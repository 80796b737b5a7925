"""Tuning as lines and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specllama.cli.units import plural

if TYPE_CHECKING:
    from specllama.engine.settings import NgramSizes
    from specllama.serving.tune import TuningOutcome
    from specllama.tuning.confidence import Interval
    from specllama.tuning.records import (
        Baseline,
        Confirmation,
        NgramSpeedups,
        Prediction,
        Trial,
        TuningResult,
    )

_SHOWN = 3  # predictions


def tuning_lines(o: TuningOutcome, verbose: bool = False) -> Iterator[str]:
    """The result of tuning, as `serve` prints it. `verbose`: every prediction."""
    for note in o.notes:
        yield f"tuning   {note}"
    if o.tuned is not None:
        t = o.tuned
        yield from expected_lines(t, verbose)
        yield f"tuned    {'' if t.best else 'off: '}{t.reason} ({effort(t)})"
        yield from dropped_lines(t)
    elif o.result is not None:
        off = "" if o.result.speculation else "off: "
        yield f"tuned    {off}{o.result.reason}"


def effort(t: TuningResult) -> str:
    """How long it took."""
    return f"{plural(t.loads, 'model load')}, {t.seconds:.0f} s"


def expected_lines(t: TuningResult, verbose: bool = False) -> Iterator[str]:
    """The predictions of the settings that were pursued, with their source, in the order in which
    they are tried."""
    from specllama.tuning.predict import cautious

    pursued = [p for p in t.predictions if len(p.ratios) and not _too_slow(t, p)]
    best_first = sorted(pursued, key=lambda p: -cautious(p.ratios))
    for p in best_first if verbose else best_first[:_SHOWN]:
        yield f"expected {_name(p)} {interval_text(p.speedup)}: {p.source}"


def dropped_lines(t: TuningResult) -> Iterator[str]:
    """The settings that are not used, each with its reason unless the verdict gives it; those
    predicted to be too slow share a line."""
    slow = [p for p in t.predictions if _too_slow(t, p)]
    names = {_name(p) for p in slow}
    reasons: dict[str, list[str]] = {}
    for d in t.dropped:
        if (
            d.setting not in names
            and f"{d.setting}: {d.reason}" not in t.reason
            and d.reason not in t.reason
        ):
            reasons.setdefault(d.reason, []).append(d.setting)
    for reason, what in reasons.items():
        yield f"not used {', '.join(what)}: {reason}"
    slow = [p for p in slow if f"{_name(p)}: {_predicted(p)}" not in t.reason]
    if slow:
        found = sorted(slow, key=lambda p: -p.ratios.value)
        speeds = ", ".join(f"{_name(p)} ({p.ratios.value:.2f}x)" for p in found)
        yield f"not used {speeds}: predicted not to pay off"


def _too_slow(t: TuningResult, p: Prediction) -> bool:
    """Whether a setting was dropped because of its prediction."""
    return any(d.setting == _name(p) and d.reason.startswith(_predicted(p)) for d in t.dropped)


def _predicted(p: Prediction) -> str:
    return f"{p.ratios.value:.2f}x predicted"


def _name(p: Prediction) -> str:
    from specllama.tuning.records import setting_label

    return setting_label(p.speculation)


def interval_text(i: Interval | Sequence[float] | None) -> str:
    """A speed-up with its 95 % interval, if there is one."""
    if i is None:
        return ""
    value, low, high = i if isinstance(i, Sequence) else (i.value, i.low, i.high)
    ends = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else "too few prompts for an interval"
    return f"{value:.2f}x ({ends})"


def tuning_data(o: TuningOutcome) -> dict[str, Any]:
    """The JSON of a tuning."""
    data: dict[str, Any] = {"source": o.source, "notes": list(o.notes)}
    if o.tuned is not None:
        data |= tuned_data(o.tuned)
    elif o.result is not None:
        r = o.result
        data |= {
            "state": r.state,
            "speculation": "on" if r.speculation else "off",
            "best": r.label if r.speculation else None,
            "reason": r.reason,
            "speedup": list(r.speedup) if r.speedup else None,
            "chance_slower": r.slower,
            "texts": r.texts,
            "prompts": r.prompts,
        }
    return {"tuning": data}


def tuned_data(t: TuningResult) -> dict[str, Any]:
    """The JSON object of one search. Times in ms, speeds in tok/s; a speed-up is [value, low,
    high] with the ends of its 95 % interval."""
    return {
        "workload": t.workload,
        "state": t.state,
        "speculation": "on" if t.best else "off",
        "best": t.best.label if t.best else None,
        "reason": t.reason,
        "loads": t.loads,
        "seconds": t.seconds,
        "baseline": baseline_data(t.baseline),
        "predictions": [
            {
                "label": _name(p),
                "speedup": interval_data(p.speedup) if len(p.ratios) else None,
                "texts": len(p.ratios),
                "source": p.source,
            }
            for p in t.predictions
        ],
        "trials": [_trial_data(x) for x in t.trials],
        "ngram_maps": [map_data(m) for m in t.ngrams],
        "confirmations": [confirmation_data(a) for a in t.confirmations],
        "dropped": [
            {"setting": d.setting, "reason": d.reason, "crashed": d.crashed} for d in t.dropped
        ],
    }


def baseline_data(p: Baseline | None) -> dict[str, Any] | None:
    """The server without speculation; None when it is known from an earlier start."""
    if p is None:
        return None
    m = p.measurement
    return {
        "tokens_per_second": m.tokens_per_second,
        "prompt_per_second": m.prompt_per_second,
        "first_token_ms": m.first_ms,
        "step_ms": p.costs.plain_step.ms,
        "verify_ms": {str(b): ms for b, ms in sorted(p.costs.verify.items())},
        "slots": p.costs.slots,
        "responses": len(m.responses),
        "load_seconds": p.load_s,
        "missing": list(p.limitations),
    }


def _trial_data(t: Trial) -> dict[str, Any]:
    from specllama.tuning.records import setting_label

    log = t.measurement.log
    return {
        "label": setting_label(t.speculation),
        "alpha": t.measurement.alpha,
        "tau": log.tokens_per_step,
        "acceptance_by_position": list(log.acceptance),
        "step_ms": {str(k): c.ms for k, c in t.steps.curve().items()},
        "draft_pass_ms": t.own_ms,
        "plain_step_ms": t.plain_step.ms,
        "predicted": {str(k): interval_data(v) for k, v in t.curve.items()},
        "responses": len(t.measurement.responses),
        "missing": list(t.measurement.missing),
        "findings": list(t.measurement.findings),
    }


def map_data(m: NgramSpeedups) -> dict[str, Any]:
    best = max(m.speedups, key=lambda s: m.speedups[s], default=None)
    return {
        "method": m.method,
        "with": m.draft or None,
        "best": sizes_data(best),
        "speeds": [{**(sizes_data(s) or {}), "speedup": v} for s, v in m.speedups.items()],
    }


def sizes_data(s: NgramSizes | None) -> dict[str, int] | None:
    return None if s is None else {"n": s.n, "m": s.m, "min_hits": s.min_hits}


def confirmation_data(a: Confirmation) -> dict[str, Any]:
    """One setting measured on prompts that did not choose it."""
    from specllama.tuning.speedup import conditional

    m, s = a.measurement, a.speculation
    log = m.log
    return {
        "label": a.label,
        "methods": list(s.methods),
        "draft": str(s.draft) if s.draft else None,
        "n_max": s.n_max if s.uses_draft else None,
        "p_min": s.p_min if s.uses_draft else None,
        "ngram": sizes_data(s.ngram) if s.uses_ngram else None,
        "alpha": m.alpha,
        "tau": log.tokens_per_step,
        "acceptance_by_position": list(log.acceptance),
        "conditional_acceptance": list(conditional(log.acceptance)),
        "tokens_per_second": m.tokens_per_second,
        "prompt_per_second": m.prompt_per_second,
        "first_token_ms": m.first_ms,
        "speedup": interval_data(a.speedup),
        "chance_slower": a.slower,
        "predicted": interval_data(a.predicted),
        "texts": len(a.pooled_ratios),
        "own_texts": len(a.ratios),
        "responses": len(m.responses),
        "plain_step_ms": a.plain_ms,
        "draft_share": a.split.draft_share if a.split else None,
        "same_text": a.same_text,
        "alpha_by_slot": list(a.slots),
        "deep": asdict(a.deep) if a.deep else None,
        "cut_short": a.out_of_time,
        "missing": list(m.missing),
        "findings": list(m.findings),
    }


def interval_data(i: Interval | None) -> list[float | None] | None:
    """[value, low, high]; null for an end that is not known."""
    if i is None:
        return None
    return [x if math.isfinite(x) else None for x in (i.value, i.low, i.high)]
