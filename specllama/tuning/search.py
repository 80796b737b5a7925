"""Which launches to make, when to stop, and when the result is "off".

The baseline server comes first: it shows the cost of verification, and its responses, with their
token ids, show what every n-gram method and size would have drafted. So n-grams are predicted
without a launch, and a draft that cannot pay off is never launched. Any other draft takes one
launch at its longest K, which predicts every shorter K and every combination with n-grams. The
best prediction is launched as the server that will serve, and confirmed on other prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.baseline import prepare_prompts
from specllama.tuning.confidence import Ratios
from specllama.tuning.confirm import confirm
from specllama.tuning.explore import explore
from specllama.tuning.judge import (
    MIN_SPEEDUP,
    decide,
    is_usable,
    may_gain,
    problems_of,
    wins,
)
from specllama.tuning.predict import cautious
from specllama.tuning.records import (
    NO_TIME,
    Confirmation,
    Prediction,
    Progress,
    ServerRunner,
    TuningResult,
    setting_label,
)
from specllama.tuning.run import Run, Task, TrialCandidate, log_has_pass_time

_P_MINS = (0.5, 0.75)
_LOW_ALPHA = 0.6  # below it, a draft that stops earlier (p_min) may be better
_MAX_CONFIRMED = 3  # by probe: the best of several ways, for comparison


class Interrupted(Exception):
    """Stopped by the user; `partial` is the result so far."""

    def __init__(self, partial: TuningResult) -> None:
        super().__init__("interrupted")
        self.partial = partial


@dataclass(frozen=True)
class OpenResult:
    """An open result of an earlier start: predictions, and measurements by label.
    `prompts_used`: number of prompts sent."""

    predictions: tuple[Prediction, ...] = ()
    measured: Mapping[str, Ratios] = field(default_factory=dict)
    prompts_used: int = 0


def tune(
    runner: ServerRunner,
    task: Task,
    progress: Progress,
    previous: OpenResult | None = None,
    prior: Prediction | None = None,
) -> TuningResult:
    """The fastest setting, or off. The last server is left running: the caller stops it, or
    serves with it if it has the chosen setting. `prior`: a prediction from real requests, which
    is confirmed before anything else is measured.

    Raises TuningError if the baseline cannot be measured; Interrupted on Ctrl-C, with the partial
    result (KeyboardInterrupt itself if there is none).
    """
    run = Run(runner, task, progress)
    known = previous or OpenResult()
    try:
        if prior is not None and task.slots == 1:
            run.predictions.append(prior)
            _confirm_best(run, known)
            if run.stop_reason or any(wins(a) for a in run.confirmations):
                return _result_of(run)
            run.predictions.clear()  # not confirmed: search normally, with one more load
            run.task = replace(task, loads=task.loads + 1)
        # with several slots, the baseline cannot be measured on another server
        if known.predictions and task.slots == 1:
            run.predictions += known.predictions
        else:
            explore(run)
        if not run.stop_reason:
            _confirm_best(run, known)
    except KeyboardInterrupt:
        if run.baseline is None and not run.confirmations:
            raise
        run.stop_reason = "stopped before it was decided"
        raise Interrupted(_result_of(run)) from None
    return _result_of(run)


def _result_of(run: Run) -> TuningResult:
    decision = decide(run.confirmations, run.dropped, run.stop_reason, run.task.force)
    return TuningResult(
        workload=run.task.workload,
        baseline=run.baseline,
        trials=tuple(run.trials),
        ngrams=tuple(run.ngrams),
        predictions=tuple(run.predictions),
        confirmations=tuple(run.confirmations),
        best=decision.best,
        reason=decision.reason,
        dropped=tuple(run.dropped),
        loads=run.loads,
        seconds=run.seconds_spent,
        state=decision.state,
    )


def _confirm_best(run: Run, previous: OpenResult) -> None:
    """Launches the best predictions one after the other until one is confirmed."""
    pending = sorted(run.predictions, key=_order)
    while pending:
        p = pending.pop(0)
        if not (may_gain(p) or run.task.force):
            run.drop_predicted(p)
            continue
        if _settled(run):
            continue
        restarts = bool(run.confirmations) or any(d.crashed for d in run.dropped)
        # one load is reserved to serve without speculation
        if run.loads + (2 if restarts else 1) > run.task.loads:
            run.drop(setting_label(p.speculation), "no model load left before serving")
            continue
        if (needed := run.needs(loads=1)) > run.seconds_left:
            if len(p.ratios) and p.ratios.value < MIN_SPEEDUP:  # not continued at the next start
                run.drop_predicted(p)
                continue
            predicted = f" ({p.ratios.value:.2f}x predicted)" if len(p.ratios) else ""
            run.stop_reason = (
                f"{setting_label(p.speculation)}: {NO_TIME} to confirm it{predicted}: about "
                f"{needed:.0f} s needed, {max(0.0, run.seconds_left):.0f} s of --budget left"
            )
            return
        confirmation = _confirmed(run, p, previous)
        if confirmation is not None:
            run.confirmations.append(confirmation)
            pending += _with_p_min(run, confirmation)
        if confirmation is not None and confirmation.out_of_time:
            return


def _order(p: Prediction) -> float:
    """Best first, by the cautious estimate; those without one last."""
    return -cautious(p.ratios) if len(p.ratios) else 0.0


def _settled(run: Run) -> bool:
    """Whether nothing more is launched: the best prediction is confirmed (probe confirms the
    next ones too, for comparison)."""
    won = any(wins(a) for a in run.confirmations)
    return won and (not run.task.thorough or len(run.confirmations) >= _MAX_CONFIRMED)


def _confirmed(run: Run, p: Prediction, previous: OpenResult) -> Confirmation | None:
    spec = p.speculation
    known = previous.measured.get(setting_label(spec), Ratios())
    run.report(f"confirming {setting_label(spec)}")
    candidate = _candidate(run.task, spec)
    try:
        served = run.start(spec, trace=p.own_share is None and log_has_pass_time(candidate))
        if not run.used_prompts and not run.unused_prompts:  # continued from an earlier start
            prompts, _, first = prepare_prompts(run, served.client)
            run.set_prompts(prompts, first, used=previous.prompts_used)
        confirmation = confirm(run, served, p, candidate, known)
    except EngineError as e:
        run.drop(setting_label(spec), run.runner.blame(e).message, crashed=True)
        return None
    if not confirmation.measurement.drafted:
        run.drop(setting_label(spec), _idle(spec))
    elif not is_usable(confirmation):
        run.drop(setting_label(spec), problems_of(spec, confirmation.measurement))
    return confirmation


def _candidate(task: Task, spec: Speculation) -> TrialCandidate | None:
    """The draft of a setting."""
    if not spec.uses_draft:
        return None
    same = (c for c in task.candidates if c.speculation.draft == spec.draft)
    return next((c for c in same if set(c.speculation.methods) & set(spec.methods)), None)


def _idle(spec: Speculation) -> str:
    if spec.uses_draft or spec.ngram is None:
        return "nothing was drafted"
    return f"nothing was drafted: no {spec.ngram.n}-token sequence repeated"


def _with_p_min(run: Run, confirmation: Confirmation) -> Sequence[Prediction]:
    """Settings with p_min, which ends a draft early, if drafts are mostly rejected."""
    spec, alpha, task = confirmation.speculation, confirmation.measurement.alpha, run.task
    if not task.thorough or task.p_min is not None or spec.p_min or not spec.uses_draft:
        return ()
    if alpha is None or alpha >= _LOW_ALPHA:
        return ()
    candidate = _candidate(task, spec)
    longer = min(candidate.longest if candidate else spec.n_max, spec.n_max + 1)
    k = longer if not task.lengths or longer in task.lengths else spec.n_max
    return [
        Prediction(
            replace(spec, n_max=k, p_min=p), Ratios(), "p_min tried because of low acceptance"
        )
        for p in _P_MINS
    ]
