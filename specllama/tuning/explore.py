"""What may win: the plain launch and what it predicts, and one launch of each draft that may pay.

Nothing is decided here: run.predictions holds what search.py confirms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from specllama.engine.errors import EngineError
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import by_request, ngrams
from specllama.tuning.arms import NO_TIME, NgramMap, Plain, Prediction, Trial, label, way
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import EVER_SEEN, best_length, drafted_gain, why_no_draft
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import LEAST_GAIN, what_is_wrong
from specllama.tuning.plain import learn
from specllama.tuning.predict import (
    best_setting,
    beyond,
    cautious,
    combined_rows,
    draft_rows,
    known_texts,
    near_lengths,
    near_sizes,
    ngram_rows,
)
from specllama.tuning.run import MOST_K, Run, Task, TrialCandidate
from specllama.tuning.trial import measure_draft

_LIKELY = 0.85  # acceptance per position for which the longest K of a trial is taken
_OVER_BYTES = 1.5  # what a pass of a small model takes beyond its bytes
_ROUNDING = 1e-6  # of a logarithm that would be 0
_COMBINED = 0.03  # of a logarithm: what copies must add to a draft, or they stay out
_LATE = 0.5  # of what is left of the budget: a load that takes more is not made


def explore(run: Run) -> None:
    """The plain launch, what it predicts, and a launch of each draft that may pay."""
    try:
        served = run.start(None)
        if _too_slow(run, "measure anything"):
            return
        run.plain = learn(run, served)
    except EngineError as error:
        e = run.runner.blame(error)
        raise TuningError(f"the baseline could not be measured: {e.message}", e.hint) from e
    if run.task.copies_alone:
        for spec in run.task.ngrams:
            _predict_ngram(run, spec, run.plain)
    drafts = run.task.candidates
    for i, candidate in enumerate(drafts, 1):
        run.drafts_to_come = len(drafts) - i if run.task.thorough else 0  # serve tries one
        _try_draft(run, candidate, run.plain)
    run.predictions[:] = [replace(p, short=run.plain.short) for p in run.predictions]


def _too_slow(run: Run, what: str) -> bool:
    """Whether loading takes so long that no time is left to measure; said then."""
    if run.load_s <= _LATE * max(run.left, 0.0) or run.load_s < 1.0:
        return False
    run.cut = (
        f"loading took {run.load_s:.0f} s of {run.task.budget:.0f}: {NO_TIME} to {what}; "
        f"--budget {5 * run.load_s + run.task.budget:.0f} gives it"
    )
    return True


def _predict_ngram(run: Run, spec: Speculation, plain: Plain) -> None:
    """The best sizes of one n-gram type by replay; the profile's, untested, where the build
    does not tell enough to replay."""
    (method,) = (m for m in spec.methods if m.startswith("ngram-"))
    texts = known_texts(plain.measurement.answers, run.tokens)
    given = spec.ngram or NgramSizes(12, 48)
    if not texts or not plain.costs.known or run.task.hybrid:
        # a hybrid restores its whole state after a draft that is partly rejected: V(b) says
        # nothing of that
        if method == _first_ngram(run.task):
            run.predictions += [
                Prediction(s, Ratios(), "as the profile has it") for s in _usual(spec, run)
            ]
        return
    grid = (given,) if run.task.fixed else ngrams.grid(method)
    rows = ngram_rows(method, grid, texts, plain.costs)
    found = best_setting(rows, near_sizes(grid))
    if found is None:
        return
    sizes, known = found
    run.maps.append(NgramMap(method, {s: r.value for s, r in rows.items()}))
    source = f"replayed over {len(known)} plain answers"
    costs = {d: plain.costs.of(d + 1) for d in range(1, plain.costs.longest)}
    steps = {d: ms / plain.costs.step for d, ms in costs.items() if ms is not None}
    prediction = Prediction(replace(spec, ngram=sizes), known, source, steps)
    if all(x < _ROUNDING for x in rows[sizes].logs) and not run.task.force:
        run.drop(way(spec), _no_copies(rows, known))
    else:
        run.predictions.append(prediction)


def _first_ngram(task: Task) -> str:
    return next(m for s in task.ngrams for m in s.methods if m.startswith("ngram-"))


def _usual(spec: Speculation, run: Run) -> list[Speculation]:
    """The profile's sizes, and short ones."""
    s = spec.ngram or NgramSizes(12, 48)
    if run.task.fixed:
        return [spec]
    half = NgramSizes(max(3, s.n // 2), max(4, s.m // 4), s.min_hits)
    return [replace(spec, ngram=half), spec]


def _no_copies(rows: Mapping[NgramSizes, Ratios], known: Ratios) -> str:
    if all(abs(x) < _ROUNDING for r in rows.values() for x in r.logs):
        n = min(s.n for s in rows)
        return f"nothing would be drafted: no run of {n} tokens came back in the answers"
    return f"{known.value:.2f}x at most by replay over the plain answers"


def _try_draft(run: Run, c: TrialCandidate, plain: Plain) -> None:
    """One launch at the longest draft that may pay, and what it predicts."""
    spec, task = c.speculation, run.task
    lengths = [k for k in task.lengths if k <= c.longest]
    if task.lengths and not lengths:
        run.drop(way(spec), f"its files and memory allow no draft longer than {c.longest}")
        return
    if reason := _hopeless(run, c, plain):
        run.drop(way(spec), reason)
        return
    if run.loads + 3 > task.loads:  # one to confirm, and one to serve plainly when that fails
        run.drop(way(spec), "one draft is measured before serving; `specllama probe` measures all")
        return
    if run.needs(loads=2 if run.predictions else 1) > run.left:
        run.drop(way(spec), f"{NO_TIME} to measure it: give a larger --budget")
        return
    if len(lengths) == 1:  # nothing to choose
        _unpredicted(run, _with_length(run, spec, lengths[0]), "asked for")
        return
    trial = _trial(run, c, max(lengths, default=_longest(run, c, plain)))
    if trial is not None:
        before = len(run.predictions)
        _predict_draft(run, c, trial, plain)
        new = run.predictions[before:]
        run.predictions[before:] = [replace(p, own=trial.own_share) for p in new]


def _hopeless(run: Run, c: TrialCandidate, plain: Plain) -> str:
    """Why a draft cannot win here, whatever it guesses; "" when it may."""
    costs, own = plain.costs, c.cost * plain.costs.plain.ms
    if run.task.force or run.task.everything or not costs.known:
        return ""
    most = min(c.longest, costs.longest - 1)
    if reason := why_no_draft(costs, own, most, LEAST_GAIN, c.once):
        return reason
    gains = (drafted_gain(costs, EVER_SEEN, k, own, c.once) for k in range(1, most + 1))
    bound = max((g for g in gains if g is not None), default=0.0)
    copies = (math.exp(cautious(p.known)) for p in run.predictions if len(p.known) > 2)
    best = max(copies, default=0.0)
    if bound < best:
        return f"at most {bound:.2f}x with {EVER_SEEN:.0%} right; copies alone are predicted at {best:.2f}x"
    return ""


def _longest(run: Run, c: TrialCandidate, plain: Plain) -> int:
    """The K to launch a draft at: longer ones could not pay at a likely acceptance."""
    if not plain.costs.known:
        return min(c.longest, MOST_K)
    own = _OVER_BYTES * c.cost * plain.costs.plain.ms
    most = min(c.longest, max(1, plain.costs.longest - 1))
    return max(min(2, most), best_length(plain.costs, _LIKELY, own, most, c.once))


def _trial(run: Run, c: TrialCandidate, top: int) -> Trial | None:
    """None, with the reason kept, when the server does not start, dies, or drafts nothing of
    use. One that dies at its longest draft is tried once more with the profile's."""
    usual = c.speculation.n_max
    for k in [top, usual] if usual < top else [top]:
        spec = _with_length(run, c.speculation, k)
        run.say(f"measuring {label(spec)}: acceptance and the cost of each draft length")
        try:
            served = run.start(spec, trace=True)
            if run.task.by_request and run.plain is not None:
                trial = by_request.measure_draft(run, served, c, spec, run.plain)
            else:
                trial = measure_draft(run, served, c, spec)
        except EngineError as e:
            run.drop(label(spec), run.runner.blame(e).message, crashed=True)
            continue
        run.trials.append(trial)
        if not trial.measurement.drafted:
            run.drop(label(spec), "nothing was drafted")
        elif trial.measurement.findings:
            run.drop(label(spec), what_is_wrong(spec, trial.measurement))
        else:
            return trial
        return None
    return None


def _predict_draft(run: Run, c: TrialCandidate, trial: Trial, plain: Plain) -> None:
    asked = run.task.lengths
    rows = {k: r for k, r in draft_rows(trial).items() if not asked or k in asked}
    found = best_setting(rows, near_lengths)
    if found is None:
        why = trial.measurement.missing or ("no step of an asked length was seen twice",)
        run.drop(label(trial.speculation), f"K is not predicted: {why[0]}")
        usual = min(max(asked, default=c.speculation.n_max), trial.speculation.n_max)
        _unpredicted(run, _with_length(run, c.speculation, usual), "not predicted")
        return
    k, known = found
    source = f"one launch at K={trial.speculation.n_max}, {len(known)} answers"
    spec = _with_length(run, c.speculation, k)
    if run.task.drafts_alone:
        cost = trial.steps.cost(k)
        steps = {k: cost.ms / trial.plain.ms} if cost is not None else {}
        run.predictions.append(Prediction(spec, known, source, steps))
    for copies in run.task.ngrams:
        _predict_combined(run, copies, spec, trial, plain, known)


def _predict_combined(
    run: Run, copies: Speculation, drafting: Speculation, trial: Trial, plain: Plain, alone: Ratios
) -> None:
    """`alone`: the draft's own speed-up by answer."""
    (method,) = copies.methods
    if run.task.hybrid or run.task.slots > 1:  # its steps are not these (see _predict_ngram)
        if not run.task.drafts_alone:
            _unpredicted(run, drafting, "asked for")
        return
    grid = (copies.ngram,) if run.task.fixed and copies.ngram else ngrams.grid(method)
    rows = combined_rows(method, grid, trial, drafting.n_max, plain.costs)
    found = best_setting(rows, near_sizes(grid))
    if found is None:
        if not run.task.drafts_alone:
            _unpredicted(run, drafting, "asked for")
        return
    sizes, known = found
    run.maps.append(NgramMap(method, {s: r.value for s, r in rows.items()}, label(drafting)))
    if run.task.drafts_alone and beyond(known, alone) < _COMBINED:
        return
    spec = replace(drafting, methods=(method, *drafting.methods), ngram=sizes)
    run.predictions.append(Prediction(spec, known, f"replayed over {len(known)} drafted answers"))


def _unpredicted(run: Run, drafting: Speculation, why: str) -> None:
    """A draft that is launched although nothing predicts it; with the n-gram type that the
    user named beside it, if they did."""
    if run.task.drafts_alone:
        run.predictions.append(Prediction(drafting, Ratios(), why))
        return
    for copies in run.task.ngrams:
        both = replace(drafting, methods=(*copies.methods, *drafting.methods), ngram=copies.ngram)
        run.predictions.append(Prediction(both, Ratios(), why))


def _with_length(run: Run, spec: Speculation, k: int) -> Speculation:
    return replace(spec, n_max=k, p_min=run.task.p_min or 0.0)
