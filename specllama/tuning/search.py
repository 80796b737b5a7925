"""Which launches to make, when to stop, and when the answer is "off".

Baseline first. Then each candidate once at the longest draft it can be tried at: that launch
gives acceptance by position and the cost of every draft length, so all shorter K are predicted
without a restart. The best prediction is confirmed by a launch of its own: nothing is served
that was not measured. Every arm is compared with a baseline server that stays up beside it and is asked
in turn; where memory has no room for two, the baseline is measured again afterwards when the
gain is close to the noise (A-B-A). Less than 1.03x, or an interval that reaches below 1: off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from specllama.engine.client import Client, Prompt
from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.arms import Arm, Dropped, Lab, Progress, Tuned, label
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import SLOWER, answer, close_call, compared, shorter_ngram
from specllama.tuning.measure import (
    Job,
    Measurement,
    ask,
    greedy_texts,
    measure,
    measure_beside,
    sample_lengths,
)
from specllama.tuning.speedup import Interval, StepLog, predict

MOST_K = 8  # the longest draft that is tried
LEAST_GAIN = 1.03  # under it speculation is off
_ROUNDS = 4  # short requests for each draft length
_LEAST_PROMPTS, _MOST_PROMPTS = 3, 12
_LEAST_TOKENS, _MOST_TOKENS = 24, 128
_ARM_SHARE = 0.2  # of the budget, for the answers of one arm
_FIRST_SHARE = 0.08
_CURVE_SHARE = 0.12  # and for its short requests
_LAST_START = 0.85  # of the budget; later launches could not end within it
_P_MINS = (0.5, 0.75)
_LOW_ALPHA = 0.6  # below it a draft that stops earlier may be better


@dataclass(frozen=True)
class Candidate:
    """A way to draft. `longest`: the largest K its files and memory allow; `expected`: the
    most its acceptance prior promises, None = unknown."""

    speculation: Speculation
    longest: int = MOST_K
    expected: float | None = None


@dataclass(frozen=True)
class Task:
    """What is to be found. `chat`: prompts go through the chat endpoint. `budget` in seconds;
    `thorough`: p_min and n-gram sizes are tried too; `force`: the best arm is taken however
    slow. `lengths`: only these K (empty = all)."""

    workload: str
    prompts: tuple[Prompt, ...]
    sampling: Mapping[str, float]
    chat: bool
    candidates: tuple[Candidate, ...]
    budget: float
    thorough: bool = False
    force: bool = False
    lengths: tuple[int, ...] = ()


class Interrupted(Exception):
    """Stopped by the user; `partial` is the answer so far."""

    def __init__(self, partial: Tuned) -> None:
        super().__init__("interrupted")
        self.partial = partial


@dataclass
class Run:
    """The state of one search: what was measured, and what was dropped why. `beside`: the
    baseline's server while it stays up."""

    lab: Lab
    task: Task
    progress: Progress
    started: float = field(default_factory=time.monotonic)
    launches: int = 0
    job: Job | None = None
    beside: Client | None = None
    baselines: list[Measurement] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    curves: dict[str, Mapping[int, Interval]] = field(default_factory=dict)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def over(self) -> bool:
        """Whether there is no time for another launch."""
        return self.spent > _LAST_START * self.task.budget

    def say(self, text: str) -> None:
        self.progress.step(text, min(1.0, self.spent / max(0.001, self.task.budget)))

    def until(self, share: float) -> float:
        """The time.monotonic() at which a share of the budget, from now on, is used up."""
        return time.monotonic() + share * self.task.budget

    def drop(self, what: Speculation, why: str) -> None:
        self.dropped.append(Dropped(label(what), why))

    def answered(self, complete: bool) -> Tuned:
        return answer(
            self.task.workload,
            self.baselines,
            self.arms,
            tuple(self.dropped),
            self.curves,
            self.launches,
            self.spent,
            complete,
            LEAST_GAIN,
            self.task.force,
        )


def tune(lab: Lab, task: Task, progress: Progress) -> Tuned:
    """The fastest of the candidates, or off.

    Raises TuningError when not even the baseline can be measured; Interrupted on Ctrl-C, with
    what was learnt (KeyboardInterrupt itself when that is nothing).
    """
    run = Run(lab, task, progress)
    try:
        _measure_all(run)
    except EngineError as e:
        if not run.baselines:
            raise TuningError(f"the baseline could not be measured: {e.message}", e.hint) from None
        run.dropped.append(Dropped("the rest", e.message))
        return run.answered(complete=False)
    except KeyboardInterrupt:
        if not run.baselines:
            raise
        raise Interrupted(run.answered(complete=False)) from None
    return run.answered(complete=True)


def _measure_all(run: Run) -> None:
    run.say("measuring without speculation")
    run.launches += 1
    with run.lab.serve(None) as client:
        run.baselines.append(_baseline(run, client))
        if run.lab.room_for_two:
            run.beside = client
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
            run.launches += 1
            with run.lab.serve(None) as client:
                run.baselines.append(measure(client, _job(run)))


def _baseline(run: Run, client: Client) -> Measurement:
    """The baseline. Its speed decides how long the answers of every arm can be."""
    task = run.task
    probe = Job(task.prompts, task.sampling, 16, task.chat)
    first = ask(client, task.prompts[-1], 16, probe)
    seconds = _ARM_SHARE * task.budget
    per_prompt = seconds / min(len(task.prompts), _MOST_PROMPTS)
    tokens = int((per_prompt - first.prompt_ms / 1000) * 1000 / max(0.01, first.ms_per_token))
    run.job = replace(probe, tokens=max(_LEAST_TOKENS, min(_MOST_TOKENS, tokens)))
    job = replace(_job(run), prompts=task.prompts[:_MOST_PROMPTS])
    # one that stays up is asked again with every arm: here it only has to show its speed
    share = _FIRST_SHARE if run.lab.room_for_two else _ARM_SHARE
    found = measure(client, replace(job, until=run.until(share)), _LEAST_PROMPTS)
    if not run.lab.room_for_two:
        run.job = replace(job, prompts=task.prompts[: len(found.answers)])
    return replace(found, greedy=_greedy(run, client))


def _job(run: Run) -> Job:
    """What every arm is asked: as many prompts as the baseline answered in its share."""
    assert run.job is not None
    return replace(
        run.job,
        until=run.until(_ARM_SHARE),
        tick=lambda: run.say(""),
    )


def _pointless(run: Run, c: Candidate) -> str:
    """Why a candidate is not tried; "" when it is."""
    if run.over:
        return "no time was left to measure it"
    best = max((a.speedup.value for a in run.arms if a.speedup), default=0.0)
    if best and c.expected is not None and c.expected < best:
        return f"at most {c.expected:.2f}x is expected of it, {best:.2f}x is measured"
    return ""


def _search_length(run: Run, c: Candidate) -> None:
    """One launch at the longest draft, one at the best predicted."""
    top = max(1, min(MOST_K, c.longest, max(run.task.lengths, default=MOST_K)))
    probed = replace(c.speculation, n_max=top, p_min=0.0)
    run.say(f"measuring {label(probed)}: acceptance and the cost of each draft length")
    arm = _arm(run, probed, curve=True)
    if arm is None and top > c.speculation.n_max:  # died: not so long, then
        top = c.speculation.n_max
        probed = replace(probed, n_max=top)
        arm = _arm(run, probed, curve=True)
    if arm is None or _hopeless(run, arm):
        return
    predicted = _predictions(run, arm)
    if not predicted:
        run.drop(probed, "this build gives no timings per token: only K itself was measured")
        _try_length(run, c, c.speculation.n_max, None)
        return
    run.curves[label(replace(probed, n_max=0)).replace(" K=0", "")] = predicted
    k, expected = max(predicted.items(), key=lambda x: x[1].value)
    if expected.high < LEAST_GAIN and not run.task.force:
        run.drop(
            c.speculation,
            f"{SLOWER} (best K={k}: {expected.value:.2f}x predicted)",
        )
        return
    if k != top:
        arm = _try_length(run, c, k, expected) or arm
    if run.task.thorough and arm.measurement.alpha is not None:
        _try_p_min(run, arm)


def _try_length(run: Run, c: Candidate, k: int, expected: Interval | None) -> Arm | None:
    if run.over:
        run.drop(replace(c.speculation, n_max=k), "no time was left to confirm it")
        return None
    spec = replace(c.speculation, n_max=k, p_min=0.0)
    run.say(f"confirming {label(spec)}")
    return _arm(run, spec, expected)


def _try_p_min(run: Run, arm: Arm) -> None:
    """A draft that stops when it is unsure, where long drafts are mostly rejected."""
    alpha, spec = arm.measurement.alpha, arm.speculation
    if spec is None or alpha is None or alpha >= _LOW_ALPHA or not spec.uses_draft:
        return
    for p_min in _P_MINS:
        if not run.over:
            longer = replace(spec, n_max=min(MOST_K, spec.n_max + 1), p_min=p_min)
            run.say(f"measuring {label(longer)}")
            _arm(run, longer)


def _search_ngram(run: Run, c: Candidate) -> None:
    """The profile's sizes; shorter ones where those find nothing to copy."""
    spec = c.speculation
    run.say(f"measuring {label(spec)}")
    arm = _arm(run, spec)
    if arm is None or not _hopeless(run, arm) or run.over:
        return
    if (shorter := shorter_ngram(spec)) is not None:
        run.say(f"measuring {label(shorter)}")
        arm = _arm(run, shorter)
        if arm is not None:
            _hopeless(run, arm)


def _look(run: Run, client: Client, spec: Speculation, expected: Interval | None) -> Arm:
    """The arm of a running server."""
    least = min(_LEAST_PROMPTS, len(_job(run).prompts))
    if run.beside is not None:
        job = replace(_job(run), until=run.until(1.5 * _ARM_SHARE))
        against, found = measure_beside(run.beside, client, job, least)
    else:
        against, found = None, measure(client, _job(run), least)
    found = replace(found, greedy=_greedy(run, client))
    return compared(Arm(spec, found, against, predicted=expected), run.baselines)


def _with_curve(run: Run, client: Client, spec: Speculation) -> Arm:
    """The arm with the cost of each draft length up to its own."""
    arm = _look(run, client, spec, None)
    if not arm.measurement.log.drafting:
        return arm
    asked = run.task.lengths
    wanted = [k for k in range(spec.n_max + 1) if not asked or k in (0, *asked)]
    short = replace(_job(run), until=run.until(_CURVE_SHARE))
    lengths = sample_lengths(client, short, wanted, _ROUNDS)
    return replace(arm, measurement=replace(arm.measurement, lengths=lengths))


def _greedy(run: Run, client: Client) -> tuple[str, ...]:
    """Answers at temperature 0, to compare texts; only where there is time for it."""
    return greedy_texts(client, _job(run)) if run.task.thorough else ()


def _arm(
    run: Run, spec: Speculation, expected: Interval | None = None, curve: bool = False
) -> Arm | None:
    """One launch and its arm; None, with the reason kept, when the server does not start or
    dies while it is measured."""
    run.launches += 1
    try:
        with run.lab.serve(spec) as client:
            arm = _with_curve(run, client, spec) if curve else _look(run, client, spec, expected)
    except EngineError as e:
        run.drop(spec, e.message)
        return None
    run.arms.append(arm)
    return arm


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
    base = (arm.against or run.baselines[0]).cost
    if base is None:
        return {}
    m = arm.measurement
    own = StepLog(m.log.drafting)
    found = predict(own.acceptance, len(own.steps), m.all_steps.curve(), base)
    asked = run.task.lengths
    return {k: v for k, v in found.items() if not asked or k in asked}


def ways(task: Task) -> Iterator[str]:
    """The names of what is going to be tried."""
    yield from (label(c.speculation) for c in task.candidates)
