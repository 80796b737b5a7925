"""Measures a setting on the server that may serve it, with unused prompts one after the other,
until the result is clear or the budget is spent.

No baseline server runs next to it. The current speed of plain decoding is measured on the same
server: a two-token request on a cached prompt takes one step without a draft; the draft's own
pass over the token is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.client import Client, Ids
from specllama.engine.settings import Speculation
from specllama.tuning.concurrent import together
from specllama.tuning.confidence import Ratios, ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import MIN_PROMPTS, is_clear, may_turn_on
from specllama.tuning.measure import (
    Job,
    Response,
    TokenizedPrompt,
    acceptance_by_slot,
    greedy_texts,
    measurement_of,
    send_request,
    short_steps,
    warm_up,
)
from specllama.tuning.records import Confirmation, LongPromptResult, Prediction, RunningServer
from specllama.tuning.run import Run, TrialCandidate, own_pass
from specllama.tuning.speedup import Step
from specllama.tuning.statistics import time_split

_MIN_RESPONSES_AT_END = 2  # if the budget ends before _MIN_RESPONSES
_MIN_RESPONSES, _TYPICAL_RESPONSES, _MAX_RESPONSES = 3, 5, 24
# Steps without a draft within a response that make short requests unnecessary.
_ENOUGH_UNDRAFTED = 3
_SHORT = 2  # two-token requests after each response
# The long prompt: at most this many tokens, and this share of the context.
_DEEP_TOKENS, _DEEP_SHARE = 8192, 0.25
_MIN_DEEP = 256
_DEEP_FACTOR = 2  # times the longest of the other prompts: else it shows nothing new
_DEEP_TIME = 0.5  # of the remaining time
# Responses, while those before took at most this share of the time that remains.
_DEEP_RESPONSES, _MORE_DEEP_TIME = 3, 0.05
_NOTHING = Ratios()
_ENOUGH_STEPS = 8  # steps with a draft, to know their cost here


@dataclass
class _Observations:
    """Measurements of one server so far: responses, and the steps without a draft after each.
    `own_ms`: the draft's part of such a step."""

    responses: list[Response] = field(default_factory=list)
    undrafted: list[list[Step]] = field(default_factory=list)
    own_ms: float = 0.0

    @property
    def undrafted_ms(self) -> float:
        """Mean ms of a step without a draft."""
        return _mean([s for c in self.undrafted for s in c])

    def extra_cost(self, steps: Mapping[int, float]) -> float | None:
        """How much longer the responses took than predicted from `steps` (as in Prediction), as
        a logarithm; None with too few such steps."""
        expected = took = 0.0
        count = 0
        for response, undrafted in zip(self.responses, self.undrafted, strict=True):
            plain = (_mean(undrafted) or self.undrafted_ms) - self.own_ms
            for s in response.steps:
                if s.drafted and s.drafted not in steps:
                    continue
                expected += steps[s.drafted] * plain if s.drafted else s.ms
                took += s.ms
                count += s.drafted > 0
        return math.log(took / expected) if count >= _ENOUGH_STEPS and expected > 0 else None

    def ratios(self, base: Callable[[int, float], float]) -> Ratios:
        """Speed-up by response. `base`: (i, ms of a plain step) → baseline ms per token of response i."""
        pairs = []
        for i, (response, undrafted) in enumerate(zip(self.responses, self.undrafted, strict=True)):
            plain = max(0.0, (_mean(undrafted) or self.undrafted_ms) - self.own_ms)
            pairs.append((base(i, plain), response.ms_per_token, float(response.tokens - 1)))
        return ratios(pairs)


def _mean(steps: Sequence[Step]) -> float:
    return sum(s.ms for s in steps) / len(steps) if steps else 0.0


def confirm(
    run: Run,
    served: RunningServer,
    prediction: Prediction,
    candidate: TrialCandidate | None,
    previous: Ratios = _NOTHING,
) -> Confirmation:
    """Measures until the result is clear. `candidate`: the draft in use; `previous`: what an open
    result of an earlier start measured."""
    client, hybrid, spec = served.client, run.task.hybrid, prediction.speculation
    warm_up(client, run.job())
    run.shorten(run.seconds_left, _TYPICAL_RESPONSES)
    observed = _Observations()
    base = _baseline_ms(run)
    never_used = len(run.unused_prompts)
    if run.task.slots == 1 and run.baseline is not None:  # else an earlier start used some
        run.reuse_prompts(_prompts_that_chose(run, spec))
    while True:
        job, before = run.job(run.seconds_left), run.seconds_left
        _measure_once(run, client, prediction, observed, job)
        late = run.seconds_left < before - run.seconds_left  # the next one would exceed the budget
        split = time_split(served.log())
        observed.own_ms = own_pass(candidate, split, observed.undrafted_ms, prediction.own_share)
        own = observed.ratios(base) + previous
        pooled = own + _corrected_predictions(
            prediction, own, observed.extra_cost(prediction.steps), run.task.slots
        )
        run.report()
        ended = late or _ended(run, spec, len(observed.responses), never_used, pooled, own)
        if len(observed.responses) < (_MIN_RESPONSES_AT_END if late else _MIN_RESPONSES):
            continue
        if ended or is_clear(pooled, own) or measurement_of(observed.responses, hybrid).findings:
            break
    confirmation = Confirmation(
        spec,
        measurement_of(observed.responses, hybrid),
        own,
        pooled,
        pooled.interval(len(run.confirmations) + 1),
        pooled.chance_below(1.0),
        observed.undrafted_ms - observed.own_ms,
        prediction.speedup if len(prediction.ratios) else None,
        split,
        out_of_time=late and may_turn_on(pooled, own),
    )
    trained = candidate.trained if candidate else 0
    return _with_extras(run, client, confirmation, prediction.short_step, observed.own_ms, trained)


def _prompts_that_chose(run: Run, spec: Speculation) -> frozenset[Ids]:
    """The prompts that a setting was chosen with: n-grams alone by the baseline's responses,
    others by the trials'."""
    plain = (run.baseline.measurement,) if run.baseline is not None else ()
    chose = [t.measurement for t in run.trials] if spec.uses_draft else plain
    return frozenset(a.prompt_ids for m in chose for a in m.responses)


def _ended(
    run: Run, spec: Speculation, responses: int, never_used: int, pooled: Ratios, own: Ratios
) -> bool:
    """Whether there are enough responses, or no prompts left. `never_used`: prompts at the start;
    more are only used if they may turn speculation on. If there are fewer than a gain needs, they
    are repeated with a number in front, except for n-grams, which would copy the earlier response."""
    if responses >= _MAX_RESPONSES:
        return True
    if run.task.slots > 1:  # uses up the prompts: some are repeated with a number in front
        return responses >= _TYPICAL_RESPONSES and not run.has_unused_prompts
    if len(pooled) < MIN_PROMPTS and not spec.uses_ngram and may_turn_on(pooled, own):
        return False
    return not run.has_unused_prompts or (responses >= never_used and not may_turn_on(pooled, own))


def _corrected_predictions(
    prediction: Prediction, own: Ratios, extra_cost: float | None, slots: int
) -> Ratios:
    """The predictions for the texts that chose the setting, corrected by what this server shows:
    an error in the predicted costs applies to all of them alike. `extra_cost`: that error; it is
    now measured, so the predictions' shared uncertainty no longer counts."""
    # predictions are for one request at a time; concurrent requests change the steps
    if len(own) < 2 or not len(prediction.ratios) or slots > 1:
        return Ratios()
    if extra_cost is not None:
        return replace(prediction.ratios.shifted(-extra_cost), shared=0.0)
    # only half of the difference: the other half may be due to these prompts
    off = own.mean - prediction.ratios.mean
    return prediction.ratios.shifted(min(0.0, off / 2))


def _baseline_ms(run: Run) -> Callable[[int, float], float]:
    """Baseline ms per token for response i, from a plain step at that time. With several
    concurrent requests: the baseline's time for all of them, scaled by that of a single step."""
    if run.task.slots == 1 or run.baseline is None:
        return lambda i, plain: plain
    rounds = [a.ms_per_token for a in run.baseline.measurement.responses if a.ms_per_token]
    if not rounds:
        raise TuningError("the responses are too short to measure a speed", "Use other --prompts.")
    alone = run.baseline.costs.plain_step.ms
    return lambda i, plain: rounds[i % len(rounds)] * plain / alone


def _measure_once(
    run: Run, client: Client, prediction: Prediction, observed: _Observations, job: Job
) -> None:
    """One response, or a round of concurrent ones, and the steps without a draft after it."""
    short_step = prediction.short_step
    if run.task.slots > 1:
        prompts = [run.next_prompt() for _ in range(run.task.slots)]
        observed.responses.append(together(client, prompts, job))
        observed.undrafted.append(_undrafted_steps(client, prompts[0], job, short_step))
        return
    prompt = run.next_prompt()
    response = send_request(client, prompt, job)
    observed.responses.append(response)
    undrafted = [s for s in response.steps if not s.drafted]
    if prediction.speculation.uses_draft or len(undrafted) < _ENOUGH_UNDRAFTED:
        undrafted = _undrafted_steps(client, prompt, job, short_step)
    observed.undrafted.append(undrafted)


def _undrafted_steps(
    client: Client, prompt: TokenizedPrompt, job: Job, short_step: float
) -> list[Step]:
    """Steps without a draft, as they would take within a response (`short_step` as in Baseline)."""
    observed = short_steps(client, prompt, job, _SHORT)
    return [replace(s, ms=s.ms / short_step) for s in observed]


def _with_extras(
    run: Run,
    client: Client,
    confirmation: Confirmation,
    short_step: float,
    own_ms: float,
    trained: int,
) -> Confirmation:
    """What only `full` and probe measure, and the acceptance of each slot if there are several."""
    task = run.task
    if task.slots > 1 and confirmation.measurement.drafted and run.seconds_left > 0:
        confirmation = _with_slots(run, client, confirmation)
    if not task.thorough or run.baseline is None:
        return confirmation
    baseline_texts = run.baseline.measurement.greedy
    if baseline_texts and run.seconds_left > 0:
        texts = greedy_texts(client, run.greedy, run.job())
        same = sum(a == b for a, b in zip(texts, baseline_texts, strict=False)) / len(
            baseline_texts
        )
        confirmation = replace(confirmation, same_text=same)
    return replace(confirmation, deep=_long_prompt(run, client, short_step, own_ms, trained))


def _with_slots(run: Run, client: Client, confirmation: Confirmation) -> Confirmation:
    """Acceptance by slot: some builds draft badly in all slots but the first."""
    found = acceptance_by_slot(
        client, run.used_prompts[-run.task.slots :], run.job(), run.task.slots
    )
    best = max((a for a in found if a is not None), default=0.0)
    bad = [f"{i} ({a or 0:.0%})" for i, a in enumerate(found) if (a or 0) < best / 2]
    if not bad:
        return replace(confirmation, slots=found)
    problem = f"acceptance in slot {', '.join(bad)} is under half of the best slot's {best:.0%}"
    m = replace(confirmation.measurement, missing=(*confirmation.measurement.missing, problem))
    return replace(confirmation, slots=found, measurement=m)


def _long_prompt(
    run: Run, client: Client, short_step: float, own_ms: float, trained: int
) -> LongPromptResult | None:
    """Acceptance and cost at a deeper context: long prompts made of the prompts so far, up to a
    quarter of the context or half of the remaining time, and a response to each. If the draft was
    trained on a shorter context (`trained`), beyond that length if there is time: acceptance
    collapses there."""
    in_time = _DEEP_TIME * max(0.0, run.seconds_left) * 1000 / max(0.001, run.prompt_ms)
    depth = int(min(_DEEP_TOKENS, run.task.context * _DEEP_SHARE, in_time))
    longest = max((len(q.ids) for q in run.used_prompts), default=0)
    if depth < max(_MIN_DEEP, _DEEP_FACTOR * longest):
        depth = 0
    beyond_training = trained + _MIN_DEEP
    if trained and beyond_training + run.tokens < run.task.context and beyond_training <= in_time:
        depth = max(depth, beyond_training)
    ids = [t for q in run.used_prompts for t in q.ids]
    if not ids or not depth:
        return None
    while len(ids) < depth:
        ids += ids
    run.report(f"measuring at a context of {depth:,} tokens")
    started = run.seconds_left
    responses: list[tuple[Response, float]] = []  # with ms of a plain step
    for i in range(_DEEP_RESPONSES):
        if responses and started - run.seconds_left > _MORE_DEEP_TIME * run.seconds_left:
            break
        start = i * len(ids) // _DEEP_RESPONSES  # none twice: a known prompt is drafted too well
        prompt = TokenizedPrompt("", tuple((ids[start:] + ids[:start])[:depth]))
        response = send_request(client, prompt, run.job())
        undrafted = _undrafted_steps(client, prompt, run.job(), short_step)
        if undrafted and response.ms_per_token:
            responses.append((response, _mean(undrafted) - own_ms))
    return _long_prompt_result(depth, responses)


def _long_prompt_result(
    depth: int, responses: Sequence[tuple[Response, float]]
) -> LongPromptResult | None:
    """`responses`: with ms of a plain step after the same prompt."""
    ms = sum(r.ms for r, _ in responses)
    if ms <= 0:
        return None
    plain_ms = sum((r.tokens - 1) * plain for r, plain in responses)
    drafted = sum(r.drafted for r, _ in responses)
    alpha = sum(r.accepted for r, _ in responses) / drafted if drafted else None
    return LongPromptResult(depth, alpha, plain_ms / ms, len(responses))
