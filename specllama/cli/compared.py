"""The settings of a probe that were not confirmed: drafts launched once, n-grams that were only
predicted, and those not measured, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.engine.settings import Speculation
    from specllama.tuning.confidence import Interval
    from specllama.tuning.measure import Measurement
    from specllama.tuning.records import DroppedSetting, Trial, TuningResult
    from specllama.tuning.run import Task

_HYBRID = "n-gram methods cannot be predicted on a target with recurrent state"
LAUNCHED, PREDICTED, UNMEASURED = "launched once", "predicted", "not measured"


@dataclass(frozen=True)
class Unconfirmed:
    """A setting that was not confirmed. `measurement` of its one launch, if any; `speedup`:
    predicted; `reason` it was not pursued, "" if unknown."""

    label: str
    state: str
    speculation: Speculation
    measurement: Measurement | None = None
    speedup: Interval | None = None
    reason: str = ""


def unconfirmed(t: TuningResult, task: Task) -> tuple[Unconfirmed, ...]:
    """What was not confirmed: each method once, and the combinations that were predicted."""
    return tuple(_unconfirmed(t, task))


def _unconfirmed(t: TuningResult, task: Task) -> Iterator[Unconfirmed]:
    from specllama.tuning.records import method_label, setting_label

    listed = {method_label(a.speculation) for a in t.confirmations}
    for trial in t.trials:
        if _new(trial.speculation, listed):
            reason = _why(t.dropped, trial.speculation)
            spec = trial.speculation
            yield Unconfirmed(
                setting_label(spec), LAUNCHED, spec, trial.measurement, _predicted(trial), reason
            )
    for p in sorted(t.predictions, key=lambda p: -p.ratios.value if len(p.ratios) else 0.0):
        if _new(p.speculation, listed):
            known, reason = p.speedup if len(p.ratios) else None, _why(t.dropped, p.speculation)
            label = setting_label(p.speculation)
            yield Unconfirmed(label, PREDICTED, p.speculation, speedup=known, reason=reason)
    ngrams = task.ngrams if task.ngrams_alone else ()
    for spec in (*(c.speculation for c in task.candidates), *ngrams):
        if _new(spec, listed):
            reason = _why(t.dropped, spec) or (_HYBRID if spec.uses_ngram and task.hybrid else "")
            yield Unconfirmed(method_label(spec), UNMEASURED, spec, reason=reason)


def _new(spec: Speculation, listed: set[str]) -> bool:
    """Whether its method or combination is not listed yet; marks it as listed."""
    from specllama.tuning.records import method_label

    if method_label(spec) in listed:
        return False
    listed.add(method_label(spec))
    return True


def _predicted(trial: Trial) -> Interval | None:
    """The launch's prediction for its own K, else for the best K."""
    best = max(trial.curve.values(), key=lambda i: i.value, default=None)
    return trial.curve.get(trial.speculation.n_max, best)


def _why(dropped: Sequence[DroppedSetting], spec: Speculation) -> str:
    from specllama.tuning.records import method_label

    name = method_label(spec)
    names = (d.setting.split(" K=")[0].split(" n=")[0] for d in dropped)
    return next((d.reason for d, n in zip(dropped, names, strict=True) if n == name), "")


def unconfirmed_data(o: Unconfirmed) -> dict[str, Any]:
    """The JSON of one."""
    from specllama.cli.tuning_lines import interval_data

    m = o.measurement
    return {
        "label": o.label,
        "state": o.state,
        "alpha": m.alpha if m else None,
        "tau": m.log.tokens_per_step if m else None,
        "predicted": interval_data(o.speedup),
        "reason": o.reason or None,
    }
