"""Which launches to make, when to stop, and when the answer is "off".

The plain server first: it tells what verifying costs, and its answers, with their token ids,
what every n-gram type and size would have drafted. So n-grams need no launch to be predicted,
and a draft that cannot pay here none at all. A draft takes one launch at its longest K, which
predicts every shorter one and, joined with n-grams, every combination. What is predicted best
is launched as the server that will serve, and confirmed on prompts that did not choose it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.arms import (
    NO_TIME,
    Arm,
    Prediction,
    Progress,
    ServerRunner,
    Tuned,
    label,
)
from specllama.tuning.confidence import Ratios
from specllama.tuning.confirm import confirm
from specllama.tuning.explore import explore
from specllama.tuning.judge import (
    LEAST_GAIN,
    Evidence,
    decide,
    fit,
    what_is_wrong,
    wins,
    worth_a_launch,
)
from specllama.tuning.plain import introduced
from specllama.tuning.predict import cautious
from specllama.tuning.run import Run, Task, TrialCandidate, only_the_log_tells

_P_MINS = (0.5, 0.75)
_LOW_ALPHA = 0.6  # below it a draft that stops earlier may be better
_MOST_CONFIRMED = 3  # by probe: the best of several ways, for comparison


class Interrupted(Exception):
    """Stopped by the user; `partial` is the answer so far."""

    def __init__(self, partial: Tuned) -> None:
        super().__init__("interrupted")
        self.partial = partial


@dataclass(frozen=True)
class Earlier:
    """What an open answer of an earlier start knows: predictions, and what was measured of
    them by label. `used`: how many prompts were asked."""

    predictions: tuple[Prediction, ...] = ()
    measured: Mapping[str, Ratios] = field(default_factory=dict)
    used: int = 0


def tune(
    runner: ServerRunner,
    task: Task,
    progress: Progress,
    earlier: Earlier | None = None,
    prior: Prediction | None = None,
) -> Tuned:
    """The fastest way, or off. The last server started is left running: the caller stops it,
    or goes on with it when it is the one that the answer wants. `prior`: what real requests
    predict; it is confirmed before anything else is looked at.

    Raises TuningError when not even the plain server can be measured; Interrupted on Ctrl-C,
    with what was learnt (KeyboardInterrupt itself when that is nothing).
    """
    run = Run(runner, task, progress)
    known = earlier or Earlier()
    try:
        if prior is not None and task.slots == 1:
            run.predictions.append(prior)
            _confirm_best(run, known)
            if run.cut or any(wins(a) for a in run.arms):
                return _answered(run)
            run.predictions.clear()  # refuted: what else there is, for a load more
            run.task = replace(task, loads=task.loads + 1)
        # with several slots the plain server's speed is not seen on another
        if known.predictions and task.slots == 1:
            run.predictions += known.predictions
        else:
            explore(run)
        if not run.cut:
            _confirm_best(run, known)
    except KeyboardInterrupt:
        if run.plain is None and not run.arms:
            raise
        run.cut = "stopped"
        raise Interrupted(_answered(run)) from None
    return _answered(run)


def _answered(run: Run) -> Tuned:
    return decide(
        Evidence(
            workload=run.task.workload,
            plain=run.plain,
            trials=tuple(run.trials),
            maps=tuple(run.maps),
            predictions=tuple(run.predictions),
            arms=tuple(run.arms),
            dropped=tuple(run.dropped),
            loads=run.loads,
            seconds=run.spent,
            cut=run.cut,
            force=run.task.force,
        )
    )


def _confirm_best(run: Run, earlier: Earlier) -> None:
    """Launches the best predictions, one after the other, until one is confirmed."""
    waiting = sorted(run.predictions, key=_order)
    while waiting:
        p = waiting.pop(0)
        if not (worth_a_launch(p) or run.task.force):
            run.drop(label(p.speculation), f"{p.known.value:.2f}x predicted ({p.source})")
            continue
        if _settled(run):
            continue
        again = bool(run.arms) or any(d.crashed for d in run.dropped)
        if run.loads + (2 if again else 1) > run.task.loads:  # a load is left to serve plainly
            run.drop(label(p.speculation), run.too_many)
            continue
        if (needed := run.needs(loads=1)) > run.left:
            if len(p.known) and p.known.value < LEAST_GAIN:  # worth a try, not another start
                run.drop(label(p.speculation), f"{p.known.value:.2f}x predicted ({p.source})")
                continue
            predicted = f" ({p.known.value:.2f}x is predicted)" if len(p.known) else ""
            run.cut = (
                f"{label(p.speculation)}: {NO_TIME} to confirm it{predicted}: about "
                f"{needed:.0f} s are needed, {max(0.0, run.left):.0f} s are left of --budget"
            )
            return
        arm = _confirmed(run, p, earlier)
        if arm is not None:
            run.arms.append(arm)
            waiting += _with_p_min(run, arm)
        if arm is not None and arm.cut:
            return


def _order(p: Prediction) -> float:
    """The best first, by what it surely brings; what is not known after what is."""
    return -cautious(p.known) if len(p.known) else 0.0


def _settled(run: Run) -> bool:
    """Whether nothing more is launched: the best of what is predicted is confirmed (probe
    confirms the next ones too, for comparison)."""
    won = any(wins(a) for a in run.arms)
    return won and (not run.task.thorough or len(run.arms) >= _MOST_CONFIRMED)


def _confirmed(run: Run, p: Prediction, earlier: Earlier) -> Arm | None:
    spec = p.speculation
    known = earlier.measured.get(label(spec), Ratios())
    run.say(f"confirming {label(spec)}")
    candidate = _candidate(run.task, spec)
    try:
        served = run.start(spec, trace=p.own is None and only_the_log_tells(candidate))
        if not run.asked and not run.waiting:  # it goes on from an earlier start
            questions, _, first = introduced(run, served.client)
            run.ready(questions, first, used=earlier.used)
        arm = confirm(run, served, p, candidate, known)
    except EngineError as e:
        run.drop(label(spec), run.runner.blame(e).message, crashed=True)
        return None
    if not arm.measurement.drafted:
        run.drop(label(spec), _idle(spec))
    elif not fit(arm):
        run.drop(label(spec), what_is_wrong(spec, arm.measurement))
    return arm


def _candidate(task: Task, spec: Speculation) -> TrialCandidate | None:
    """The draft that takes part in a setting."""
    if not spec.uses_draft:
        return None
    same = (c for c in task.candidates if c.speculation.draft == spec.draft)
    return next((c for c in same if set(c.speculation.methods) & set(spec.methods)), None)


def _idle(spec: Speculation) -> str:
    if spec.uses_draft or spec.ngram is None:
        return "nothing was drafted"
    return f"nothing was drafted: no run of {spec.ngram.n} tokens came back"


def _with_p_min(run: Run, arm: Arm) -> Sequence[Prediction]:
    """A draft that stops when it is unsure, where long drafts are mostly rejected."""
    spec, alpha, task = arm.speculation, arm.measurement.alpha, run.task
    if not task.thorough or task.p_min is not None or spec.p_min or not spec.uses_draft:
        return ()
    if alpha is None or alpha >= _LOW_ALPHA:
        return ()
    candidate = _candidate(task, spec)
    longer = min(candidate.longest if candidate else spec.n_max, spec.n_max + 1)
    k = longer if not task.lengths or longer in task.lengths else spec.n_max
    return [
        Prediction(replace(spec, n_max=k, p_min=p), Ratios(), "fewer rejected") for p in _P_MINS
    ]
