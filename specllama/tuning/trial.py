"""One launch of a draft at its longest K: its acceptance, the cost of every shorter K, and the
cost of the draft itself."""

from __future__ import annotations

from dataclasses import replace

from specllama.engine.settings import Speculation
from specllama.tuning.measure import (
    Measurement,
    Response,
    measurement_of,
    sample_lengths,
    send_request,
    warm_up,
)
from specllama.tuning.predict import draft_rows
from specllama.tuning.records import RunningServer, Trial
from specllama.tuning.run import Run, TrialCandidate, own_pass
from specllama.tuning.speedup import StepLog
from specllama.tuning.statistics import time_split

# Rounds of short requests for each K, then for the best few: step times vary by a tenth on a
# shared machine.
_ROUNDS, _MORE_ROUNDS, _BEST = 2, 6, 3
# Shares of the remaining budget; the rest is for the confirmation, which decides.
_RESPONSES_SHARE, _LENGTHS_SHARE = 0.3, 0.12
_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # those between often occur anyway
_MIN_RESPONSES, _MAX_RESPONSES = 3, 8


def measure_trial(
    run: Run, served: RunningServer, candidate: TrialCandidate, spec: Speculation
) -> Trial:
    """Measures a running server that drafts `spec.n_max` tokens."""
    client, task = served.client, run.task
    left = run.seconds_for_draft
    run.shorten(_RESPONSES_SHARE * left, _MIN_RESPONSES)
    job = run.job(_RESPONSES_SHARE * left)
    warm_up(client, job)
    responses: list[Response] = []
    most = max(_MIN_RESPONSES, min(_MAX_RESPONSES, len(task.prompts) // 3))
    while len(responses) < most and not (job.over and len(responses) >= _MIN_RESPONSES):
        responses.append(send_request(client, run.next_prompt(), job))
        run.report()
    found = measurement_of(responses, task.hybrid)
    shorter = [k for k in task.lengths or _LENGTHS if k < spec.n_max]
    lengths = list(dict.fromkeys([0, *shorter, spec.n_max]))
    share = run.job(_LENGTHS_SHARE * left)
    steps = sample_lengths(client, run.used_prompts[-1], share, lengths, _ROUNDS)
    trial = _trial(run, served, candidate, spec, found, steps)
    best = sorted(trial.curve, key=lambda k: -trial.curve[k].value)[:_BEST]
    more = sample_lengths(
        client, run.used_prompts[-1], share, [0, *sorted(best)], _MORE_ROUNDS, least=0
    )
    return _trial(run, served, candidate, spec, found, StepLog(steps.steps + more.steps))


def _trial(
    run: Run,
    served: RunningServer,
    candidate: TrialCandidate,
    spec: Speculation,
    found: Measurement,
    lengths: StepLog,
) -> Trial:
    """The trial from responses and short requests."""
    assert run.baseline is not None
    split, baseline, allowed = time_split(served.log()), run.baseline, run.task.lengths
    zero = StepLog(found.log.steps + lengths.steps).cost(0) or baseline.costs.plain_step
    zero = replace(zero, ms=zero.ms / baseline.short_step)
    own = own_pass(candidate, split, zero.ms)
    # a step without a draft also takes the draft over the new token (process() in
    # common/speculative.cpp), which plain decoding does not
    trial = Trial(spec, found, lengths, own, replace(zero, ms=zero.ms - own), split=split)
    rows = draft_rows(trial)
    curve = {k: r.interval() for k, r in rows.items() if len(r) and (not allowed or k in allowed)}
    return replace(trial, curve=curve)
