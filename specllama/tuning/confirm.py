"""A setting on the server that may serve it: prompts that were not used before, one after the
other, until the answer is clear or the budget is spent.

No plain server stands beside it. What plain decoding would take just now is seen on this very
server: a request of two tokens on the prompt that it has in its cache makes one step without a
draft, less the draft's own pass over the token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.client import Client
from specllama.tuning.arms import Arm, Deep, Prediction, Served
from specllama.tuning.concurrent import together
from specllama.tuning.confidence import Ratios, ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import clear, promising
from specllama.tuning.measure import (
    Answer,
    Job,
    TokenizedPrompt,
    ask,
    by_slot,
    decoding,
    greedy_texts,
    measured,
    short_steps,
    warm_up,
)
from specllama.tuning.run import Run, TrialCandidate, own_pass
from specllama.tuning.speedup import Step
from specllama.tuning.statistics import time_split

_FEWEST = 2  # where the budget ends before there are _LEAST_ANSWERS
_LEAST_ANSWERS, _WANTED_ANSWERS, _MOST_ANSWERS = 3, 5, 24
_CALM = 3  # steps without a draft within an answer: no short request is needed then
_SHORT = 2  # requests of two tokens after each answer
_DEEP_TOKENS, _DEEP_SHARE = 8192, 0.25  # of a long prompt: at most, and of the context
_LEAST_DEEP = 256
_DEEP_TIME = 0.5  # of the time that is left
_NOTHING = Ratios()
_ENOUGH_STEPS = 8  # with a draft, to know what such a step costs here


@dataclass
class _Seen:
    """What one server showed so far: answers, and the steps without a draft around each.
    `own_ms`: the draft's part of such a step."""

    answers: list[Answer] = field(default_factory=list)
    calm: list[list[Step]] = field(default_factory=list)
    own_ms: float = 0.0

    @property
    def calm_ms(self) -> float:
        """A step without a draft, on average."""
        return _mean([s for c in self.calm for s in c])

    def dearer(self, steps: Mapping[int, float]) -> float | None:
        """By how much (logarithm) the answers took longer than their steps were predicted to
        take, by `steps` as Prediction has them; None where too few of those were seen."""
        expected = took = 0.0
        count = 0
        for answer, calm in zip(self.answers, self.calm, strict=True):
            plain = (_mean(calm) or self.calm_ms) - self.own_ms
            for s in answer.steps:
                if s.drafted and s.drafted not in steps:
                    continue
                expected += steps[s.drafted] * plain if s.drafted else s.ms
                took += s.ms
                count += s.drafted > 0
        return math.log(took / expected) if count >= _ENOUGH_STEPS and expected > 0 else None

    def ratios(self, base: Callable[[int, float], float]) -> Ratios:
        """Speed-up by answer. `base`: plain ms per token of answer i from a plain step's ms."""
        pairs = []
        for i, (answer, calm) in enumerate(zip(self.answers, self.calm, strict=True)):
            plain = max(0.0, (_mean(calm) or self.calm_ms) - self.own_ms)
            pairs.append((base(i, plain), answer.ms_per_token, float(answer.tokens - 1)))
        return ratios(pairs)


def _mean(steps: Sequence[Step]) -> float:
    return sum(s.ms for s in steps) / len(steps) if steps else 0.0


def confirm(
    run: Run,
    served: Served,
    prediction: Prediction,
    candidate: TrialCandidate | None,
    earlier: Ratios = _NOTHING,
) -> Arm:
    """Measures until it is clear. `candidate`: the draft that takes part; `earlier`: what an
    open answer of an earlier start had measured."""
    client, hybrid, spec = served.client, run.task.hybrid, prediction.speculation
    warm_up(client, run.job())
    run.shorten(run.left, _WANTED_ANSWERS)
    seen = _Seen()
    base = _base(run)
    while True:
        job, before = run.job(run.left), run.left
        _one(run, client, prediction, seen, job)
        late = run.left < before - run.left  # another one would end after the budget
        split = time_split(served.log())
        seen.own_ms = own_pass(candidate, split, seen.calm_ms, prediction.own)
        own = seen.ratios(base) + earlier
        pooled = own + _recalled(prediction, own, seen.dearer(prediction.steps), run.task.slots)
        run.say()
        # rounds of several requests use prompts up: some are asked again, with a number of theirs
        enough = run.task.slots == 1 or len(seen.answers) >= _WANTED_ANSWERS
        ended = late or len(seen.answers) >= _MOST_ANSWERS or (enough and not run.fresh)
        if len(seen.answers) < (_FEWEST if late else _LEAST_ANSWERS):
            continue
        if ended or clear(pooled, own) or measured(seen.answers, hybrid).findings:
            break
    arm = Arm(
        spec,
        measured(seen.answers, hybrid),
        own,
        pooled,
        pooled.interval(len(run.arms) + 1),
        pooled.chance_below(1.0),
        seen.calm_ms - seen.own_ms,
        prediction.speedup if len(prediction.known) else None,
        split,
        cut=late and promising(pooled, own),
    )
    trained = candidate.trained if candidate else 0
    return _more(run, client, arm, prediction.short, seen.own_ms, trained)


def _recalled(prediction: Prediction, own: Ratios, dearer: float | None, slots: int) -> Ratios:
    """What was predicted for the texts that chose the setting, moved to what this server shows:
    a cost that the prediction had wrong is wrong for all of them alike. `dearer`: by how much
    it had; that is seen here now, so what the costs of a prediction share counts no more."""
    # with several requests at once a step is another: the prediction was for one
    if len(own) < 2 or not len(prediction.known) or slots > 1:
        return Ratios()
    if dearer is not None:
        return replace(prediction.known.shifted(-dearer), shared=0.0)
    # only half of the difference: the other half may be these prompts' own
    off = own.mean - prediction.known.mean
    return prediction.known.shifted(min(0.0, off / 2))


def _base(run: Run) -> Callable[[int, float], float]:
    """Plain ms per token beside answer i, from a plain step just then. With several requests
    at once: what the plain server needed for all of them, as much slower as a single step is."""
    if run.task.slots == 1 or run.plain is None:
        return lambda i, plain: plain
    rounds = [a.ms_per_token for a in run.plain.measurement.answers if a.ms_per_token]
    if not rounds:
        raise TuningError("the answers are too short to show a speed", "Give other --prompts.")
    alone = run.plain.costs.plain.ms
    return lambda i, plain: rounds[i % len(rounds)] * plain / alone


def _one(run: Run, client: Client, prediction: Prediction, seen: _Seen, job: Job) -> None:
    """One answer, or a round of them, and the steps without a draft that go with it."""
    short = prediction.short
    if run.task.slots > 1:
        questions = [run.next_question() for _ in range(run.task.slots)]
        seen.answers.append(together(client, questions, job))
        seen.calm.append(_calm(client, questions[0], job, short))
        return
    question = run.next_question()
    answer = ask(client, question, job)
    seen.answers.append(answer)
    calm = [s for s in answer.steps if not s.drafted]
    if prediction.speculation.uses_draft or len(calm) < _CALM:
        calm = _calm(client, question, job, short)
    seen.calm.append(calm)


def _calm(client: Client, question: TokenizedPrompt, job: Job, short: float) -> list[Step]:
    """Steps without a draft as they would be within an answer (`short`, as Plain has it)."""
    seen = short_steps(client, question, job, _SHORT)
    return [replace(s, ms=s.ms / short) for s in seen]


def _more(run: Run, client: Client, arm: Arm, short: float, own_ms: float, trained: int) -> Arm:
    """What only `full` and probe look at, and each slot's acceptance where there are several."""
    task = run.task
    if task.slots > 1 and arm.measurement.drafted and run.left > 0:
        arm = _with_slots(run, client, arm)
    if not task.thorough or run.plain is None:
        return arm
    theirs = run.plain.measurement.greedy
    if theirs and run.left > 0:
        ours = greedy_texts(client, run.greedy, run.job())
        same = sum(a == b for a, b in zip(ours, theirs, strict=False)) / len(theirs)
        arm = replace(arm, same_text=same)
    return replace(arm, deep=_deep(run, client, short, own_ms, trained))


def _with_slots(run: Run, client: Client, arm: Arm) -> Arm:
    """Some builds draft badly in all slots but the first."""
    found = by_slot(client, run.asked[-run.task.slots :], run.job(), run.task.slots)
    best = max((a for a in found if a is not None), default=0.0)
    bad = [f"{i} ({a or 0:.0%})" for i, a in enumerate(found) if (a or 0) < best / 2]
    if not bad:
        return replace(arm, slots=found)
    said = f"slot {', '.join(bad)} drafts at less than half of the best one's {best:.0%}"
    m = replace(arm.measurement, missing=(*arm.measurement.missing, said))
    return replace(arm, slots=found, measurement=m)


def _deep(run: Run, client: Client, short: float, own_ms: float, trained: int) -> Deep | None:
    """Acceptance and cost change with the depth of the context: the prompts one after the
    other, up to a quarter of the context or half of the time that is left, and one answer.
    Where the draft was trained on a shorter context (`trained`), behind its end when there is
    time: there acceptance collapses."""
    in_time = _DEEP_TIME * max(0.0, run.left) * 1000 / max(0.001, run.prompt_ms)
    wanted = int(min(_DEEP_TOKENS, run.task.context * _DEEP_SHARE, in_time))
    behind = trained + _LEAST_DEEP
    if trained and behind + run.tokens < run.task.context and behind <= in_time:
        wanted = max(wanted, behind)
    ids = [t for q in run.asked for t in q.ids]
    if not ids or wanted < _LEAST_DEEP:
        return None
    while len(ids) < wanted:
        ids += ids
    question = TokenizedPrompt("", tuple(ids[-wanted:]))
    run.say(f"answering after {wanted:,} tokens")
    answer = ask(client, question, run.job())
    calm = _calm(client, question, run.job(), short)
    if not calm or not answer.ms_per_token:
        return None
    plain = _mean(calm) - own_ms
    alpha = answer.accepted / answer.drafted if answer.drafted else None
    return Deep(wanted, alpha, plain / decoding(answer.ms, answer.tokens))
