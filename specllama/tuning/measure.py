"""One measurement of one running server over one workload.

Requests are streamed: the server's timings after every step (`timings_per_token`,
server-context.cpp) tell how long each verify step took, what it drafted and what it kept. The
same log gives speed, α, a_i and the cost of every draft length: a draft never reaches past the
end of a request, so a request of k + 2 tokens makes a step of at most k drafted ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

from specllama.engine.client import Client, Metrics, Prompt, Timings
from specllama.engine.errors import EngineError
from specllama.tuning.speedup import Cost, Step, StepLog

_GREEDY_TOKENS = 32
_LEAST_TOKENS = 4  # of an answer that shows a speed
_DEGENERATE = 0.8  # share of one word in an answer
_MOST_DEGENERATE = 0.5  # share of such answers: with sampling, one now and then is chance
_MANY_DRAFTS = 100  # drafted tokens after which α ≈ 0 is no accident
_DEAD = 0.02
# Characters of a prompt that are kept where the whole is not needed: for some text, for steps.
_BEGINNING, _SHORT = 80, 24
_LEAST_ROUNDS = 2
_PLAIN_TOKENS = 6  # of a short request to the plain server
_WARM_UP = "Say hello."

Sampling = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One request. Milliseconds; `first_ms`: until the first token arrived here. `steps` is
    empty where the build gives no timings per token."""

    prompt_tokens: int
    prompt_ms: float
    first_ms: float
    tokens: int
    ms: float
    drafted: int
    accepted: int
    text: str
    steps: tuple[Step, ...]

    @property
    def ms_per_token(self) -> float:
        """Of decoding: the first token comes from the prompt. 0 where the answer is too short
        to show it."""
        return decoding(self.ms, self.tokens)


def decoding(ms: float, tokens: int) -> float:
    """Milliseconds per token of an answer that took `ms` after its first; 0 where it ended
    after a word or two: a step of those says nothing."""
    return ms / (tokens - 1) if tokens >= _LEAST_TOKENS else 0.0


@dataclass(frozen=True)
class Measurement:
    """One arm. `answers`: one per prompt, in the prompts' order. `lengths`: steps of short
    requests, made to learn what each draft length costs; `plain`: the plain server's steps in
    between. `missing`: what this build does not report; `findings`: what is wrong with the arm,
    in a user's words."""

    answers: tuple[Answer, ...]
    lengths: StepLog = field(default_factory=lambda: StepLog(()))
    plain: StepLog = field(default_factory=lambda: StepLog(()))
    greedy: tuple[str, ...] = ()
    metrics: Metrics | None = None
    missing: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def log(self) -> StepLog:
        """The steps of the full answers."""
        return StepLog(tuple(s for a in self.answers for s in a.steps))

    @property
    def all_steps(self) -> StepLog:
        """Those and the steps of the short requests."""
        return StepLog(self.log.steps + self.lengths.steps)

    def curve(self) -> dict[int, Cost]:
        """What a step with each number of drafted tokens costs. Steps right after a prompt, as
        short requests make them, cost what steps within an answer do (compared at K = 1, 4, 8)."""
        return self.all_steps.curve()

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed over all answers."""
        ms = sum(a.ms for a in self.answers)
        return sum(a.tokens - 1 for a in self.answers) / ms * 1000 if ms > 0 else 0.0

    @property
    def prompt_per_second(self) -> float:
        ms = sum(a.prompt_ms for a in self.answers)
        return sum(a.prompt_tokens for a in self.answers) / ms * 1000 if ms > 0 else 0.0

    @property
    def first_ms(self) -> float:
        """Mean time to the first token."""
        return sum(a.first_ms for a in self.answers) / max(1, len(self.answers))

    @property
    def drafted(self) -> int:
        return sum(a.drafted for a in self.answers)

    @property
    def alpha(self) -> float | None:
        """α over all answers; None when nothing was drafted."""
        return sum(a.accepted for a in self.answers) / self.drafted if self.drafted else None

    @property
    def cost(self) -> Cost | None:
        """Milliseconds per token of a server without speculation."""
        return self.log.cost(0) or _by_answer(self.answers)


def _by_answer(answers: Sequence[Answer]) -> Cost | None:
    """The same from whole answers, where no steps are seen."""
    times = [a.ms_per_token for a in answers if a.ms_per_token]
    if len(times) < 2:
        return None
    mean = sum(times) / len(times)
    spread = sum((t - mean) ** 2 for t in times) / (len(times) - 1)
    return Cost(mean, (spread / len(times)) ** 0.5, len(times))


@dataclass(frozen=True)
class Job:
    """What is sent. `tokens` per answer; `chat`: through the chat endpoint. `until`: a
    time.monotonic() after which nothing new is asked; `tick` is told after each request."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    tokens: int
    chat: bool
    until: float = float("inf")
    tick: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until


def measure(client: Client, job: Job, least: int = 2) -> Measurement:
    """All prompts once; a warm-up before is thrown away. When the time is over, what was
    measured so far, but at least `least` answers.

    Raises EngineError when the server cannot be asked, or answers without timings.
    """
    return _measure([client], job, least)[0]


def measure_beside(
    plain: Client, client: Client, job: Job, least: int = 2
) -> tuple[Measurement, Measurement]:
    """The same for two servers in turn, prompt by prompt, so that whatever slows the machine
    down for a while slows both. Only one is asked at a time: under load at once they would
    take each other's cores."""
    both = _measure([plain, client], job, least)
    return both[0], both[1]


def _measure(clients: Sequence[Client], job: Job, least: int) -> list[Measurement]:
    for client in clients:
        ask(client, _WARM_UP, 8, job)
    before = [_metrics(client) for client in clients]
    answers: list[list[Answer]] = [[] for _ in clients]
    for prompt in job.prompts:
        if job.over and len(answers[0]) >= least:
            break
        for client, own in zip(clients, answers, strict=True):
            own.append(ask(client, prompt, job.tokens, job))
            job.tick()
    return [
        _summed(own, _delta(old, _metrics(client)))
        for client, own, old in zip(clients, answers, before, strict=True)
    ]


def _summed(answers: Sequence[Answer], metrics: Metrics | None) -> Measurement:
    missing = []
    if not any(a.steps for a in answers):
        missing.append("timings per token: α by position and the cost of lengths are not known")
    if metrics is None:
        missing.append("counters of speculation in /metrics (b10289 and later have them)")
    found = Measurement(tuple(answers), metrics=metrics, missing=tuple(missing))
    return replace(found, findings=tuple(_findings(found)))


def sample_lengths(
    client: Client, job: Job, lengths: Sequence[int], times: int, plain: Client | None = None
) -> tuple[StepLog, StepLog]:
    """Short requests for each draft length, `times` rounds, while there is time; in each round
    one to the plain server too, so that a machine that slows down slows both. The steps, and
    the plain server's. A length seen once has no cost: the first two rounds may take twice the
    time.

    Every request has a prompt of its own: what was seen before would be drafted too well.
    """
    latest = 2 * job.until - time.monotonic()
    requests = [(client, k, k + 2) for k in lengths]
    if plain is not None:
        requests.insert(0, (plain, 0, _PLAIN_TOKENS))
    steps: dict[bool, list[Step]] = {True: [], False: []}
    for turn, (i, (server, k, tokens)) in product(range(times), enumerate(requests)):
        if time.monotonic() > (latest if turn < _LEAST_ROUNDS else job.until):
            break
        prompt = job.prompts[(turn * len(requests) + i) % len(job.prompts)]
        short = _varied(prompt, turn, k, _SHORT)
        steps[server is plain] += ask(server, short, tokens, job).steps
        job.tick()
    return StepLog(tuple(steps[False])), StepLog(tuple(steps[True]))


def greedy_texts(client: Client, job: Job, count: int = 2) -> tuple[str, ...]:
    """The first answers at temperature 0, to compare with another server's."""
    cold = replace(job, sampling={**job.sampling, "temperature": 0.0})
    texts = []
    for prompt in job.prompts[:count]:
        texts.append(ask(client, _varied(prompt, 7, 7), _GREEDY_TOKENS, cold).text)
        job.tick()
    return tuple(texts)


def by_slot(client: Client, job: Job, slots: int) -> tuple[float | None, ...]:
    """α of each slot, over one request each; None where nothing was drafted."""
    out = []
    for i in range(slots):
        there = replace(job, sampling={**job.sampling, "id_slot": i})
        answer = ask(client, _varied(job.prompts[i % len(job.prompts)], 9, i), job.tokens, there)
        out.append(answer.accepted / answer.drafted if answer.drafted else None)
        job.tick()
    return tuple(out)


def _varied(prompt: Prompt, turn: int, k: int, kept: int = _BEGINNING) -> Prompt:
    """The prompt's beginning under a number of its own."""
    number = f"({turn}.{k}) "
    if isinstance(prompt, str):
        return number + prompt[:kept]
    last = dict(prompt[-1])
    return [*prompt[:-1], {**last, "content": number + str(last.get("content", ""))[:kept]}]


def ask(client: Client, prompt: Prompt, tokens: int, job: Job) -> Answer:
    """One streamed request. Raises EngineError when there are no timings in it."""
    started = time.monotonic()
    first: float | None = None
    text: list[str] = []
    marks: list[Timings] = []
    for piece in client.stream(prompt, tokens, job.sampling, job.chat):
        if first is None and (piece.text or piece.timings):
            first = time.monotonic()
        text.append(piece.text)
        if piece.timings is not None:
            marks.append(piece.timings)
    if not marks:
        raise EngineError("the server's answers carry no timings: it is no llama-server")
    last = marks[-1]
    return Answer(
        prompt_tokens=last.prompt_tokens,
        prompt_ms=last.prompt_ms,
        first_ms=((first or started) - started) * 1000,
        tokens=last.tokens,
        ms=last.ms,
        drafted=last.drafted,
        accepted=last.accepted,
        text="".join(text),
        steps=tuple(steps_of(marks)),
    )


def steps_of(marks: Sequence[Timings]) -> Iterator[Step]:
    """Steps from the timings after each token. Those of a step show from its second token on,
    or with the next step's first: every change of the clock is one step. Nothing when the
    counts do not add up (only the last mark came, or another server's timings)."""
    distinct = [marks[0]]
    for m in marks[1:]:
        if m.ms > distinct[-1].ms or m.drafted > distinct[-1].drafted:
            distinct.append(m)
    steps = [
        Step(b.drafted - a.drafted, b.accepted - a.accepted, b.ms - a.ms)
        for a, b in pairwise(distinct)
    ]
    sane = all(0 <= s.accepted <= s.drafted and s.ms >= 0 for s in steps)
    tokens = 1 + sum(s.accepted + 1 for s in steps)
    # the end of a request cuts its last step short
    if (
        sane
        and len(marks) > 1
        and 0 <= tokens - marks[-1].tokens <= (steps[-1].accepted if steps else 0)
    ):
        yield from steps


def _findings(m: Measurement) -> Iterator[str]:
    """What is wrong, by name."""
    bad = sum(_degenerate(a.text) for a in m.answers)
    if bad > _MOST_DEGENERATE * len(m.answers):
        yield "degenerate output: one word over and over"
    if m.alpha is not None and m.drafted >= _MANY_DRAFTS and m.alpha < _DEAD:
        yield f"a dead head or draft: {m.alpha:.1%} of {m.drafted} drafted tokens accepted"


def _degenerate(text: str) -> bool:
    words = text.split()
    return len(words) >= 20 and Counter(words).most_common(1)[0][1] > _DEGENERATE * len(words)


def _metrics(client: Client) -> Metrics | None:
    try:
        return client.metrics()
    except (EngineError, ValueError):  # no such endpoint, or not in Prometheus' format
        return None


def _delta(before: Metrics | None, after: Metrics | None) -> Metrics | None:
    """What happened between two readings; None where the build does not count."""
    if before is None or after is None or after.drafted is None or before.drafted is None:
        return None
    old = before.accepted_by_position
    return Metrics(
        drafted=after.drafted - before.drafted,
        accepted=(after.accepted or 0) - (before.accepted or 0),
        verify_steps=(after.verify_steps or 0) - (before.verify_steps or 0),
        accepted_by_position=tuple(
            n - (old[i] if i < len(old) else 0) for i, n in enumerate(after.accepted_by_position)
        ),
    )
