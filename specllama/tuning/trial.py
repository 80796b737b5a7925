"""One launch of a draft at its longest K: its acceptance, the cost of every shorter length, and
the cost of the draft itself."""

from __future__ import annotations

from dataclasses import replace

from specllama.engine.settings import Speculation
from specllama.tuning.arms import Served, Trial
from specllama.tuning.measure import Answer, ask, measured, sample_lengths, warm_up
from specllama.tuning.predict import draft_rows
from specllama.tuning.run import Candidate, Run, own_pass
from specllama.tuning.speedup import Cost, StepLog
from specllama.tuning.statistics import time_split

_ROUNDS = 4  # short requests for each length
# Of what is left of the budget; the rest is for the confirmation, which decides.
_ANSWERS_SHARE, _LENGTHS_SHARE = 0.3, 0.12
_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # those between are often seen by the way
_LEAST_ANSWERS, _MOST_ANSWERS = 3, 8


def look(run: Run, served: Served, candidate: Candidate, spec: Speculation) -> Trial:
    """Measures a running server that drafts `spec.n_max` tokens."""
    client, task = served.client, run.task
    left = max(0.0, run.left)
    run.shorten(_ANSWERS_SHARE * left, _LEAST_ANSWERS)
    job = run.job(_ANSWERS_SHARE * left)
    warm_up(client, job)
    answers: list[Answer] = []
    most = max(_LEAST_ANSWERS, min(_MOST_ANSWERS, len(task.prompts) // 3))
    while len(answers) < most and not (job.over and len(answers) >= _LEAST_ANSWERS):
        answers.append(ask(client, run.next_question(), job))
        run.say()
    found = measured(answers, task.hybrid)
    wanted = [k for k in task.lengths or _LENGTHS if k < spec.n_max]
    lengths = dict.fromkeys([0, *wanted, spec.n_max])
    share = run.job(_LENGTHS_SHARE * left)
    steps = sample_lengths(client, run.asked[-1], share, list(lengths), _ROUNDS)
    split = time_split(served.log())
    zero = StepLog(found.log.steps + steps.steps).cost(0) or _plain(run)
    own = own_pass(candidate, split, zero.ms)
    # a step without a draft also takes the draft over the new token (process() in
    # common/speculative.cpp), which plain decoding does not
    trial = Trial(spec, found, steps, own, replace(zero, ms=zero.ms - own), split=split)
    rows = draft_rows(trial)
    asked = [k for k in rows if len(rows[k]) and (not task.lengths or k in task.lengths)]
    curve = {k: rows[k].interval() for k in asked}
    return replace(trial, curve=curve)


def _plain(run: Run) -> Cost:
    """A plain step by the plain server, where this one shows none."""
    assert run.plain is not None
    return run.plain.costs.plain
