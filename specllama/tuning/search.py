"""Which launches to make, when to stop, and when the answer is "off".

Baseline first. Then each candidate once at the longest draft it can be tried at: that launch
gives acceptance by position and the cost of every draft length, so all shorter K are predicted
without a restart. The best prediction is confirmed by a launch of its own: nothing is served
that was not measured. Every arm is compared with a baseline server that stays up beside it and
is asked in turn; where memory has no room for two, the baseline is measured again afterwards
when the gain is close to the noise (A-B-A). Less than 1.03x, or an interval that reaches below
1: off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.arms import NO_TIME, Arm, Dropped, Lab, Progress, Tuned, label
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import SLOWER, close_call, longer_ngram, shorter_ngram
from specllama.tuning.measure import measure
from specllama.tuning.run import (
    LEAST_GAIN,
    MOST_K,
    Candidate,
    Run,
    Task,
    arm_of,
    baseline,
    job_of,
)
from specllama.tuning.speedup import Interval, StepLog, predict, replayed_lengths

_NEAR = 0.8  # a prediction under it is not confirmed unless its interval holds a gain
_TIE = 0.97  # of the best prediction: noise
_P_MINS = (0.5, 0.75)
_HIGH_ALPHA = 0.8  # above it a longer copy may be better
_LOW_ALPHA = 0.6  # below it a draft that stops earlier may be better


class Interrupted(Exception):
    """Stopped by the user; `partial` is the answer so far."""

    def __init__(self, partial: Tuned) -> None:
        super().__init__("interrupted")
        self.partial = partial


def tune(lab: Lab, task: Task, progress: Progress) -> Tuned:
    """The fastest of the candidates, or off.

    Raises TuningError, caused by the EngineError, when not even the baseline can be measured;
    Interrupted on Ctrl-C, with what was learnt (KeyboardInterrupt itself when that is nothing).
    """
    run = Run(lab, task, progress)
    try:
        _measure_all(run)
    except EngineError as e:
        if not run.baselines:
            raise TuningError(f"the baseline could not be measured: {e.message}", e.hint) from e
        run.dropped.append(Dropped("the rest", e.message))
        return run.answered(complete=False)
    except KeyboardInterrupt:
        if not run.baselines:
            raise
        raise Interrupted(run.answered(complete=False)) from None
    return run.answered(complete=True)


def _measure_all(run: Run) -> None:
    run.say("measuring without speculation")
    with run.serving(None) as served:
        run.baselines.append(baseline(run, served.client))
        if run.lab.room_for_two:
            run.beside = served.client
            _search_all(run)
            run.beside = None
            return
    _search_all(run)


def _search_all(run: Run) -> None:
    for candidate in run.task.candidates:
        if reason := _pointless(run, candidate):
            run.drop(candidate.speculation, reason)
        elif candidate.speculation.uses_draft:
            _search_length(run, candidate)
        else:
            _search_ngram(run, candidate)
        if not run.over and close_call(run.baselines, run.arms, LEAST_GAIN):
            run.say("measuring without speculation once more")
            with run.serving(None) as served:
                run.baselines.append(measure(served.client, job_of(run)))


def _pointless(run: Run, c: Candidate) -> str:
    """Why a candidate is not tried; "" when it is."""
    if run.over:
        return f"{NO_TIME} to measure it"
    best = max((a.speedup.value for a in run.arms if a.speedup), default=0.0)
    if best and c.expected is not None and c.expected < best:
        return f"at most {c.expected:.2f}x is expected of it, {best:.2f}x is measured"
    for s in run.slower:  # copies may win, but they do so better without it
        if (
            s != c.speculation
            and s.draft == c.speculation.draft
            and set(s.methods) < set(c.speculation.methods)
        ):
            return f"{label(s)} is slower at every length: it can only hold the copies back"
    return ""


def _search_length(run: Run, c: Candidate) -> None:
    """One launch at the longest draft, one at the best predicted. A single length that was
    asked for takes one."""
    asked = [k for k in run.task.lengths if k <= c.longest]
    if run.task.lengths and not asked:
        run.drop(c.speculation, f"its files and memory allow no draft longer than {c.longest}")
        return
    if len(asked) == 1:
        only = _try_length(run, c, asked[0], None)
        if only is not None and not _hopeless(run, only):
            _try_p_min(run, only)
        return
    most = MOST_K if run.task.thorough else min(MOST_K, 2 * c.speculation.n_max)
    top = max(1, min(c.longest, max(asked, default=most)))
    probed = _with_length(run, c, top)
    run.say(f"measuring {label(probed)}: acceptance and the cost of each draft length")
    arm = arm_of(run, probed, curve=True)
    if arm is None and top > c.speculation.n_max:  # died: not so long, then
        top = c.speculation.n_max
        probed = replace(probed, n_max=top)
        arm = arm_of(run, probed, curve=True)
    if arm is None or _hopeless(run, arm):
        return
    predicted = _predictions(run, arm)
    if not predicted:
        run.drop(probed, "this build gives no timings per token: each K takes a launch of its own")
        for k in _restarts(run, c, top):
            _try_length(run, c, k, None)
        return
    run.curves[label(replace(probed, n_max=0)).replace(" K=0", "")] = predicted
    k, expected = _to_confirm(predicted)
    if expected.high < LEAST_GAIN and expected.value < _NEAR and not run.task.force:
        run.drop(
            c.speculation,
            f"{SLOWER} (best K={k}: {expected.value:.2f}x predicted)",
        )
        run.slower.append(c.speculation)
        return
    if k != top or arm.trial:
        arm = _try_length(run, c, k, expected) or arm
    if arm.speedup is not None and arm.speedup.high < 1:
        run.slower.append(c.speculation)
    _try_p_min(run, arm)


def _to_confirm(predicted: Mapping[int, Interval]) -> tuple[int, Interval]:
    """The best prediction, where an uncertain one counts for less and of near equals the
    shortest draft is taken: it depends on the least luck."""
    score = {k: (v.value + v.low) / 2 for k, v in predicted.items()}
    best = max(score.values())
    k = min(k for k in predicted if score[k] >= best - (1 - _TIE) * abs(best))
    return k, predicted[k]


def _restarts(run: Run, c: Candidate, top: int) -> list[int]:
    """The lengths to launch where one launch does not tell of the others."""
    if run.task.lengths:
        return [k for k in run.task.lengths if k < top]
    usual = min(c.speculation.n_max, top)
    return sorted({usual, 1, 2} - {top}, reverse=True) if run.task.thorough else [usual]


def _try_length(run: Run, c: Candidate, k: int, expected: Interval | None) -> Arm | None:
    # what was predicted may take the last of the budget: unconfirmed it is worth nothing
    if run.spent > run.task.budget if expected is not None else run.over:
        said = f" ({expected.value:.2f}x is predicted)" if expected is not None else ""
        run.drop(_with_length(run, c, k), f"{NO_TIME} to confirm it{said}: a larger --budget")
        return None
    spec = _with_length(run, c, k)
    run.say(f"confirming {label(spec)}")
    return arm_of(run, spec, expected)


def _with_length(run: Run, c: Candidate, k: int) -> Speculation:
    return replace(c.speculation, n_max=k, p_min=run.task.p_min or 0.0)


def _try_p_min(run: Run, arm: Arm) -> None:
    """A draft that stops when it is unsure, where long drafts are mostly rejected."""
    alpha, spec = arm.measurement.alpha, arm.speculation
    if not run.task.thorough or run.task.p_min is not None:
        return
    if spec is None or alpha is None or alpha >= _LOW_ALPHA or not spec.uses_draft:
        return
    for p_min in _P_MINS:
        if not run.over:
            longer = replace(spec, n_max=min(MOST_K, spec.n_max + 1), p_min=p_min)
            run.say(f"measuring {label(longer)}")
            arm_of(run, longer)


def _search_ngram(run: Run, c: Candidate) -> None:
    """The profile's sizes; shorter ones where those find nothing to copy, longer ones where
    nearly all that is copied is right."""
    spec = c.speculation
    run.say(f"measuring {label(spec)}")
    arm = arm_of(run, spec)
    if arm is None:
        return
    found = not _hopeless(run, arm)
    other = None
    if not found or run.task.hybrid:  # each rejection costs a hybrid a replay: shorter ones
        other = shorter_ngram(spec)
    elif run.task.thorough and (arm.measurement.alpha or 0) > _HIGH_ALPHA:
        other = longer_ngram(spec)
    if other is not None and not run.over:
        run.say(f"measuring {label(other)}")
        again = arm_of(run, other)
        if again is not None:
            _hopeless(run, again)


def _hopeless(run: Run, arm: Arm) -> bool:
    """Whether an arm shows that its method is not worth more launches; said by name."""
    spec, m = arm.speculation, arm.measurement
    assert spec is not None
    if not m.drafted:
        run.drop(spec, _idle(spec))
        return True
    if m.findings:
        run.drop(spec, "; ".join(m.findings))
        return True
    return False


def _idle(spec: Speculation) -> str:
    if spec.uses_draft or spec.ngram is None:
        return "nothing was drafted"
    return f"nothing was drafted: no run of {spec.ngram.n} tokens came back"


def _predictions(run: Run, arm: Arm) -> dict[int, Interval]:
    """K → predicted speed-up, for the lengths that were measured and may be used."""
    m = arm.measurement
    base = m.plain.cost(0) or (arm.against or run.baselines[0]).cost
    if base is None:
        return {}
    lengths = replayed_lengths([StepLog(a.steps) for a in m.answers])
    found = predict(lengths, m.curve(), base)
    asked = run.task.lengths
    return {k: v for k, v in found.items() if not asked or k in asked}
