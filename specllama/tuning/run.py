"""One search's state, and what is taken from one launch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from specllama.engine.client import Client, Prompt
from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.arms import Arm, Dropped, Lab, Progress, Served, Tuned, label
from specllama.tuning.judge import answer, compared
from specllama.tuning.measure import (
    Answer,
    Job,
    Measurement,
    ask,
    by_slot,
    greedy_texts,
    measure,
    measure_beside,
    sample_lengths,
)
from specllama.tuning.speedup import Interval
from specllama.tuning.statistics import time_split

MOST_K = 8  # the longest draft that is tried
LEAST_GAIN = 1.03  # under it speculation is off
_ROUNDS = 4  # short requests for each draft length
_LEAST_PROMPTS, _MOST_PROMPTS = 3, 12
_FIRST_TOKENS, _FIRST_TRIES = 16, 4  # to learn how fast it is
_LEAST_TOKENS, _MOST_TOKENS = 24, 128
# Of the budget: for all arms together, and for the first look at the baseline.
_ARMS_SHARE, _FIRST_SHARE = 0.8, 0.12
# Of an arm's part: for a trial, which only has to show which length to confirm, and for that
# confirmation, which decides; of a trial: for short requests.
_TRIAL_SHARE, _CONFIRM_SHARE, _CURVE_SHARE = 0.7, 1.3, 0.5
_USUAL_LAUNCHES = 4  # more candidates than that are seldom all tried
_MANY_DRAFTS = 100  # drafted tokens after which an α of 1 is no accident
_LAST_START = 0.85  # of the budget; later launches could not end within it


@dataclass(frozen=True)
class Candidate:
    """A way to draft. `longest`: the largest K its files and memory allow; `expected`: the
    most its acceptance prior promises, None = unknown."""

    speculation: Speculation
    longest: int = MOST_K
    expected: float | None = None


@dataclass(frozen=True)
class Task:
    """What is to be found. `chat`: prompts go through the chat endpoint. `budget` in seconds,
    loading not counted; `thorough`: p_min and n-gram sizes are tried too; `force`: the best arm
    is taken however slow. `lengths`: only these K (empty = all); `p_min`: only this (None = any)."""

    workload: str
    prompts: tuple[Prompt, ...]
    sampling: Mapping[str, float]
    chat: bool
    candidates: tuple[Candidate, ...]
    budget: float
    thorough: bool = False
    force: bool = False
    lengths: tuple[int, ...] = ()
    p_min: float | None = None
    slots: int = 1
    hybrid: bool = False


@dataclass
class Run:
    """The state of one search: what was measured, and what was dropped why. `beside`: the
    baseline's server while it stays up; `slower`: what drafts at no length fast enough."""

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
    slower: list[Speculation] = field(default_factory=list)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def over(self) -> bool:
        """Whether there is no time for another launch."""
        return self.spent > _LAST_START * self.task.budget

    def say(self, text: str) -> None:
        self.progress.step(text, min(1.0, self.spent / max(0.001, self.task.budget)))

    @property
    def arm_share(self) -> float:
        """The part of the budget one launch may take: a draft takes two, and so do n-grams
        whose first sizes find nothing."""
        wanted = 2 * len(self.task.candidates)
        wanted += 2 if self.task.thorough else 0  # p_min
        return _ARMS_SHARE / min(max(1, wanted), _USUAL_LAUNCHES + 2 * self.task.thorough)

    @contextmanager
    def serving(self, spec: Speculation | None) -> Iterator[Served]:
        """A launch. The time a model takes to load is not counted: it says nothing."""
        self.launches += 1
        before = time.monotonic()
        with self.lab.serve(spec) as served:
            self.started += time.monotonic() - before
            yield served

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


def baseline(run: Run, client: Client) -> Measurement:
    """The baseline. Its speed decides how long the answers of every arm can be."""
    task = run.task
    probe = Job(task.prompts, task.sampling, _FIRST_TOKENS, task.chat)
    first = _first(client, probe)
    seconds = run.arm_share * task.budget
    if run.lab.room_for_two:
        seconds *= _CONFIRM_SHARE / 2
    per_prompt = seconds / min(len(task.prompts), _MOST_PROMPTS)
    tokens = int((per_prompt - first.prompt_ms / 1000) * 1000 / max(0.01, first.ms_per_token))
    run.job = replace(probe, tokens=max(_LEAST_TOKENS, min(_MOST_TOKENS, tokens)))
    job = replace(job_of(run), prompts=task.prompts[:_MOST_PROMPTS])
    # one that stays up is asked again with every arm: here it only has to show its speed
    share, least = (_FIRST_SHARE, 2) if run.lab.room_for_two else (run.arm_share, _LEAST_PROMPTS)
    found = measure(client, replace(job, until=run.until(share)), least)
    if not run.lab.room_for_two:
        run.job = replace(job, prompts=task.prompts[: len(found.answers)])
    return replace(found, greedy=_greedy(run, client))


def _first(client: Client, job: Job) -> Answer:
    """An answer that shows how fast the server is: some end after a word."""
    found: list[Answer] = []
    for prompt in reversed(job.prompts[-_FIRST_TRIES:]):
        found.append(ask(client, prompt, job.tokens, job))
        if found[-1].tokens > job.tokens / 2:
            break
    return max(found, key=lambda a: a.tokens)


def job_of(run: Run, part: float = 1.0) -> Job:
    """What every arm is asked: as many prompts as the baseline answered in its share. `part`:
    of an arm's share of the budget."""
    assert run.job is not None
    return replace(
        run.job,
        until=run.until(part * run.arm_share),
        tick=lambda: run.say(""),
    )


def _look(run: Run, client: Client, spec: Speculation, expected: Interval | None) -> Arm:
    """The arm of a running server, asked in turn with the plain one where that is up."""
    job = job_of(run, _CONFIRM_SHARE if expected is not None else 1.0)
    least = min(_LEAST_PROMPTS, len(job.prompts))
    if run.beside is not None:
        against, found = measure_beside(run.beside, client, job, least)
    else:
        against, found = None, measure(client, job, least)
    found = replace(found, greedy=_greedy(run, client), findings=_findings(run, found))
    return compared(Arm(spec, found, against, predicted=expected), run.baselines)


def _findings(run: Run, m: Measurement) -> tuple[str, ...]:
    """What is wrong with an arm. That a hybrid accepts everything was seen to mean that its
    state is not rolled back: the text is wrong, however fast it comes."""
    if run.task.hybrid and m.alpha == 1.0 and m.drafted >= _MANY_DRAFTS:
        said = f"all {m.drafted} drafted tokens accepted on a hybrid target: its state is in doubt"
        return (*m.findings, said)
    return m.findings


def _with_slots(run: Run, client: Client, arm: Arm) -> Arm:
    """The arm with the α of each slot: some builds draft badly in all but the first."""
    if run.task.slots < 2 or not arm.measurement.drafted:
        return arm
    found = by_slot(client, job_of(run), run.task.slots)
    best = max((a for a in found if a is not None), default=0.0)
    bad = [f"{i} ({a or 0:.0%})" for i, a in enumerate(found) if (a or 0) < best / 2]
    if not bad:
        return replace(arm, slots=found)
    said = f"slot {', '.join(bad)} drafts at less than half of the best one's {best:.0%}"
    m = replace(arm.measurement, missing=(*arm.measurement.missing, said))
    return replace(arm, slots=found, measurement=m)


def _with_curve(run: Run, client: Client, spec: Speculation, expected: Interval | None) -> Arm:
    """The arm with the cost of each draft length up to its own. Its answers are asked alone,
    for as many steps as its time allows: a trial, whose best length is confirmed in turn with
    the plain server."""
    asked = run.task.lengths
    wanted = [k for k in range(1, spec.n_max + 1) if not asked or k in asked or k == spec.n_max]
    short = job_of(run, _CURVE_SHARE * _TRIAL_SHARE)
    lengths, plain = sample_lengths(client, short, wanted, _ROUNDS, run.beside)
    job = job_of(run, (1 - _CURVE_SHARE) * _TRIAL_SHARE)
    found = measure(client, job, min(_LEAST_PROMPTS, len(job.prompts)))
    found = replace(found, greedy=_greedy(run, client), findings=_findings(run, found))
    found = replace(found, lengths=lengths, plain=plain)
    return compared(Arm(spec, found, predicted=expected, trial=bool(run.beside)), run.baselines)


def _greedy(run: Run, client: Client) -> tuple[str, ...]:
    """Answers at temperature 0, to compare texts; only where there is time for it."""
    return greedy_texts(client, job_of(run)) if run.task.thorough else ()


def arm_of(
    run: Run, spec: Speculation, expected: Interval | None = None, curve: bool = False
) -> Arm | None:
    """One launch and its arm; None, with the reason kept, when the server does not start or
    dies while it is measured."""
    try:
        with run.serving(spec) as served:
            look = _with_curve if curve else _look
            arm = _with_slots(run, served.client, look(run, served.client, spec, expected))
            arm = replace(arm, split=time_split(served.log()))
    except EngineError as e:
        run.drop(spec, e.message)
        return None
    run.arms.append(arm)
    return arm
