"""Finds candidates: the baseline launch and its predictions, and one launch of each promising draft.

Nothing is decided here: search.py confirms what is in run.predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specllama.engine.errors import EngineError
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import by_request, ngrams
from specllama.tuning.baseline import measure_baseline, measure_more
from specllama.tuning.confidence import Ratios
from specllama.tuning.draft_bounds import needs_more_responses, trial_length, why_it_cannot_win
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import problems_of
from specllama.tuning.predict import (
    best_setting,
    beyond,
    combined_rows,
    draft_rows,
    known_texts,
    near_lengths,
    near_sizes,
    ngram_rows,
)
from specllama.tuning.records import (
    NO_TIME,
    Baseline,
    NgramSpeedups,
    Prediction,
    Trial,
    method_label,
    setting_label,
)
from specllama.tuning.run import Run, Task, TrialCandidate
from specllama.tuning.trial import measure_trial

_ROUNDING = 1e-6  # of a logarithm that should be 0
_COMBINED = 0.03  # logarithm: the minimum that n-grams must add to a draft
_LATE = 0.5  # of the remaining budget: longer loads are not started


def explore(run: Run) -> None:
    """The baseline launch, its predictions, and one launch of each promising draft."""
    try:
        served = run.start(None)
        if _too_slow(run, "measure anything"):
            return
        run.baseline = measure_baseline(run, served)
        if needs_more_responses(run, run.baseline):
            run.baseline = measure_more(run, served, run.baseline)
    except EngineError as error:
        e = run.runner.blame(error)
        raise TuningError(f"the baseline could not be measured: {e.message}", e.hint) from e
    if run.task.ngrams_alone:
        for spec in run.task.ngrams:
            _predict_ngram(run, spec, run.baseline)
    drafts = run.task.candidates
    for i, candidate in enumerate(drafts, 1):
        run.drafts_to_come = len(drafts) - i if run.task.thorough else 0  # serve tries one
        _try_draft(run, candidate, run.baseline)
    run.predictions[:] = [replace(p, short_step=run.baseline.short_step) for p in run.predictions]


def _too_slow(run: Run, what: str) -> bool:
    """Whether loading takes so long that there is no time to measure; sets stop_reason then."""
    if run.load_s <= _LATE * max(run.seconds_left, 0.0) or run.load_s < 1.0:
        return False
    run.stop_reason = (
        f"loading took {run.load_s:.0f} s of {run.task.budget:.0f} s: {NO_TIME} to {what}; "
        f"use --budget {5 * run.load_s + run.task.budget:.0f}"
    )
    return True


def _predict_ngram(run: Run, spec: Speculation, baseline: Baseline) -> None:
    """The best sizes of one n-gram method by replay; the profile's, untested, if the build does
    not report enough for a replay."""
    (method,) = (m for m in spec.methods if m.startswith("ngram-"))
    texts = known_texts(baseline.measurement.responses, run.tokens)
    given = spec.ngram or NgramSizes(12, 48)
    if not texts or not baseline.costs.known or run.task.hybrid:
        # a hybrid restores its whole state after a partly rejected draft, which V(b) does not
        # include
        if method == _first_ngram(run.task):
            run.predictions += [
                Prediction(s, Ratios(), "profile default") for s in _profile_sizes(spec, run)
            ]
        return
    grid = (given,) if run.task.fixed else ngrams.grid(method)
    rows = ngram_rows(method, grid, texts, baseline.costs)
    found = best_setting(rows, near_sizes(grid))
    if found is None:
        return
    sizes, known = found
    run.ngrams.append(NgramSpeedups(method, {s: r.value for s, r in rows.items()}))
    source = f"replayed over {len(known)} baseline responses"
    costs = {d: baseline.costs.of(d + 1) for d in range(1, baseline.costs.longest)}
    steps = {d: ms / baseline.costs.step for d, ms in costs.items() if ms is not None}
    prediction = Prediction(replace(spec, ngram=sizes), known, source, steps)
    if all(x < _ROUNDING for x in rows[sizes].logs) and not run.task.force:
        run.drop(method_label(spec), _why_no_ngram(rows, known))
    else:
        run.predictions.append(prediction)


def _first_ngram(task: Task) -> str:
    return next(m for s in task.ngrams for m in s.methods if m.startswith("ngram-"))


def _profile_sizes(spec: Speculation, run: Run) -> list[Speculation]:
    """The profile's sizes, and shorter ones."""
    s = spec.ngram or NgramSizes(12, 48)
    if run.task.fixed:
        return [spec]
    half = NgramSizes(max(3, s.n // 2), max(4, s.m // 4), s.min_hits)
    return [replace(spec, ngram=half), spec]


def _why_no_ngram(rows: Mapping[NgramSizes, Ratios], known: Ratios) -> str:
    if all(abs(x) < _ROUNDING for r in rows.values() for x in r.logs):
        n = min(s.n for s in rows)
        return f"nothing would be drafted: no {n}-token sequence repeated in the responses"
    return f"{known.value:.2f}x expected, replayed over the baseline responses"


def _try_draft(run: Run, c: TrialCandidate, baseline: Baseline) -> None:
    """One launch at the longest K that may pay off, and its predictions."""
    spec, task = c.speculation, run.task
    lengths = [k for k in task.lengths if k <= c.longest]
    if task.lengths and not lengths:
        run.drop(method_label(spec), f"its files and memory limit K to {c.longest}")
        return
    if reason := why_it_cannot_win(run, c, baseline):
        run.drop(method_label(spec), reason)
        return
    if (
        run.loads + 3 > task.loads
    ):  # one to confirm, and one to serve without speculation if that fails
        run.drop(
            method_label(spec),
            "only one draft is measured before serving; `specllama probe` measures all",
        )
        return
    if run.needs(loads=2 if run.predictions else 1) > run.seconds_left:
        run.drop(method_label(spec), f"{NO_TIME} to measure it: increase --budget")
        return
    if len(lengths) == 1:  # nothing to choose
        _unpredicted(run, _with_length(run, spec, lengths[0]), "as requested")
        return
    trial = _trial(run, c, max(lengths, default=trial_length(c, baseline)))
    if trial is not None:
        before = len(run.predictions)
        _predict_draft(run, c, trial, baseline)
        new = run.predictions[before:]
        run.predictions[before:] = [replace(p, own_share=trial.own_share) for p in new]


def _trial(run: Run, c: TrialCandidate, top: int) -> Trial | None:
    """None, with the reason recorded, if the server does not start, dies, or drafts nothing
    useful. If it dies at the longest K, it is tried once more with the profile's."""
    usual = c.speculation.n_max
    for k in [top, usual] if usual < top else [top]:
        spec = _with_length(run, c.speculation, k)
        run.report(f"measuring {setting_label(spec)}: acceptance and the cost of each draft length")
        try:
            served = run.start(spec, trace=True)
            if run.task.by_request and run.baseline is not None:
                trial = by_request.measure_draft(run, served, c, spec, run.baseline)
            else:
                trial = measure_trial(run, served, c, spec)
        except EngineError as e:
            run.drop(setting_label(spec), run.runner.blame(e).message, crashed=True)
            continue
        run.trials.append(trial)
        if not trial.measurement.drafted:
            run.drop(setting_label(spec), "nothing was drafted")
        elif trial.measurement.findings:
            run.drop(setting_label(spec), problems_of(spec, trial.measurement))
        else:
            return trial
        return None
    return None


def _predict_draft(run: Run, c: TrialCandidate, trial: Trial, baseline: Baseline) -> None:
    allowed = run.task.lengths
    rows = {k: r for k, r in draft_rows(trial).items() if not allowed or k in allowed}
    found = best_setting(rows, near_lengths)
    if found is None:
        reason = trial.measurement.missing or ("no requested K was observed twice",)
        run.drop(setting_label(trial.speculation), f"no prediction for K: {reason[0]}")
        usual = min(max(allowed, default=c.speculation.n_max), trial.speculation.n_max)
        _unpredicted(run, _with_length(run, c.speculation, usual), "not predicted")
        return
    k, known = found
    source = f"one launch at K={trial.speculation.n_max}, {len(known)} responses"
    spec = _with_length(run, c.speculation, k)
    if run.task.drafts_alone:
        cost = trial.steps.cost(k)
        steps = {k: cost.ms / trial.plain_step.ms} if cost is not None else {}
        run.predictions.append(Prediction(spec, known, source, steps))
    for ngram in run.task.ngrams:
        _predict_combined(run, ngram, spec, trial, baseline, known)


def _predict_combined(
    run: Run,
    ngram: Speculation,
    drafting: Speculation,
    trial: Trial,
    baseline: Baseline,
    alone: Ratios,
) -> None:
    """`alone`: speed-up by response of the draft without n-grams."""
    (method,) = ngram.methods
    if run.task.hybrid or run.task.slots > 1:  # its steps differ (see _predict_ngram)
        if not run.task.drafts_alone:
            _unpredicted(run, drafting, "as requested")
        return
    grid = (ngram.ngram,) if run.task.fixed and ngram.ngram else ngrams.grid(method)
    rows = combined_rows(method, grid, trial, drafting.n_max, baseline.costs)
    found = best_setting(rows, near_sizes(grid))
    if found is None:
        if not run.task.drafts_alone:
            _unpredicted(run, drafting, "as requested")
        return
    sizes, known = found
    run.ngrams.append(
        NgramSpeedups(method, {s: r.value for s, r in rows.items()}, setting_label(drafting))
    )
    if run.task.drafts_alone and beyond(known, alone) < _COMBINED:
        return
    spec = replace(drafting, methods=(method, *drafting.methods), ngram=sizes)
    responses = "1 drafted response" if len(known) == 1 else f"{len(known)} drafted responses"
    run.predictions.append(Prediction(spec, known, f"replayed over {responses}"))


def _unpredicted(run: Run, drafting: Speculation, reason: str) -> None:
    """Adds a draft without a prediction, to be launched anyway; together with the n-gram method
    from --method, if there is one."""
    if run.task.drafts_alone:
        run.predictions.append(Prediction(drafting, Ratios(), reason))
        return
    for ngram in run.task.ngrams:
        both = replace(drafting, methods=(*ngram.methods, *drafting.methods), ngram=ngram.ngram)
        run.predictions.append(Prediction(both, Ratios(), reason))


def _with_length(run: Run, spec: Speculation, k: int) -> Speculation:
    return replace(spec, n_max=k, p_min=run.task.p_min or 0.0)
