"""Measuring one running server: requests, and a log of their verify steps.

Requests are streamed: the server's timings after every step (`timings_per_token`,
server-context.cpp) show how long each verify step took, and how many tokens it drafted and
accepted. The same log gives speed, α, a_i and the cost of every draft length: a draft never
extends past the end of a request, so a request for k + 2 tokens drafts at most k.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

from specllama.engine.client import Client, Ids, Prompt, Timings
from specllama.engine.errors import EngineError
from specllama.tuning.dead_draft import accepts_nothing, cost_without_gain
from specllama.tuning.speedup import Step, StepCost, StepLog, mean_cost

_GREEDY_TOKENS = 32
_MIN_TOKENS = 4  # of a response that is long enough to show a speed
_DEGENERATE = 0.8  # share of one word in a response
_MAX_DEGENERATE = 0.5  # share of such responses: with sampling, a few are chance
_MANY_DRAFTS = 100  # drafted tokens after which α = 1 is not a coincidence
WARM_UP = "Say hello."

Sampling = Mapping[str, Any]


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt, and its token ids as the server evaluates it (() = unknown). `repeats`: how
    often it was sent before."""

    prompt: Prompt
    ids: Ids = ()
    repeats: int = 0


@dataclass(frozen=True)
class Response:
    """One response. Times in ms; `first_ms`: until the first token arrived. `steps` is empty if
    the build reports no timings per token, `ids` if it returns no token ids (or not all: a
    stream omits those within a multi-byte character)."""

    prompt_tokens: int
    prompt_ms: float
    first_ms: float
    tokens: int
    ms: float
    drafted: int
    accepted: int
    text: str
    steps: tuple[Step, ...]
    prompt_ids: Ids = ()
    ids: Ids = ()

    @property
    def ms_per_token(self) -> float:
        """Decoding time; the first token comes from the prompt. 0 if the response is too short."""
        return decoding(self.ms, self.tokens)


def decoding(ms: float, tokens: int) -> float:
    """Milliseconds per token of a response that took `ms` after its first token; 0 if it is too
    short to say anything."""
    return ms / (tokens - 1) if tokens >= _MIN_TOKENS else 0.0


@dataclass(frozen=True)
class Measurement:
    """The responses of one server, in order. `missing`: what this build does not report;
    `findings`: what is wrong with the responses, for the user."""

    responses: tuple[Response, ...] = ()
    greedy: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def log(self) -> StepLog:
        """The steps of all responses."""
        return StepLog(tuple(s for a in self.responses for s in a.steps))

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed over all responses."""
        ms = sum(a.ms for a in self.responses)
        return sum(a.tokens - 1 for a in self.responses) / ms * 1000 if ms > 0 else 0.0

    @property
    def prompt_per_second(self) -> float:
        ms = sum(a.prompt_ms for a in self.responses)
        return sum(a.prompt_tokens for a in self.responses) / ms * 1000 if ms > 0 else 0.0

    @property
    def first_ms(self) -> float:
        """Mean time to the first token."""
        return sum(a.first_ms for a in self.responses) / max(1, len(self.responses))

    @property
    def drafted(self) -> int:
        return sum(a.drafted for a in self.responses)

    @property
    def accepted(self) -> int:
        return sum(a.accepted for a in self.responses)

    @property
    def alpha(self) -> float | None:
        """α over all responses; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepts_nothing(self) -> bool:
        """Whether its drafts are (almost) never accepted. Without reported steps, each token
        that was not drafted counts as one."""
        steps = len(self.log.drafting) or sum(a.tokens - 1 - a.accepted for a in self.responses)
        return accepts_nothing(self.drafted, self.accepted, steps)

    @property
    def cost(self) -> StepCost | None:
        """Milliseconds per token of a server without speculation."""
        return self.log.cost(0) or mean_cost([t for a in self.responses if (t := a.ms_per_token)])


@dataclass(frozen=True)
class Job:
    """How requests are sent. `tokens` per response; `chat`: prompts without ids go through the
    chat endpoint. `until`: a time.monotonic() after which no request is started; `tick` is
    called for every chunk of a response."""

    sampling: Sampling
    tokens: int
    chat: bool
    until: float = float("inf")
    tick: Callable[[], None] = field(default=lambda: None)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until


def warm_up(client: Client, job: Job) -> None:
    """Sends the first request, which is slower than all others."""
    send_request(client, TokenizedPrompt(WARM_UP), job, tokens=2)


def measurement_of(responses: Sequence[Response], hybrid: bool = False) -> Measurement:
    """The responses of one server, with what is missing and what is wrong with them."""
    missing = []
    if responses and not any(a.steps for a in responses):
        missing.append("no per-token timings: α by position and step costs are unknown")
    found = Measurement(tuple(responses), missing=tuple(missing))
    return replace(found, findings=tuple(_findings(found, hybrid)))


def sample_lengths(
    client: Client,
    tokenized: TokenizedPrompt,
    job: Job,
    lengths: Sequence[int],
    rounds: int,
    least: int = 2,
) -> StepLog:
    """The steps of short requests, `rounds` times for each draft length, while there is time
    (`least` rounds in any case: a single step gives no cost). With ids, the prompt stays cached,
    so a request takes little longer than its steps."""
    steps: list[Step] = []
    for turn, (i, k) in product(range(rounds), enumerate(lengths)):
        if job.over and turn >= least:
            break
        prompt = tokenized if tokenized.ids else _varied(tokenized, turn * len(lengths) + i)
        steps += send_request(client, prompt, job, tokens=k + 2, cache=bool(tokenized.ids)).steps
        job.tick()
    return StepLog(tuple(steps))


def short_steps(client: Client, prompt: TokenizedPrompt, job: Job, times: int) -> list[Step]:
    """Steps without a draft on a server that drafts: a two-token request leaves no room for one.
    The prompt is cached, so a request takes little longer than its step."""
    steps: list[Step] = []
    for _ in range(times):
        response = send_request(client, prompt, job, tokens=2, cache=bool(prompt.ids))
        steps += response.steps or ([Step(0, 0, response.ms)] if response.tokens == 2 else [])
    return [s for s in steps if not s.drafted]


def greedy_texts(client: Client, prompts: Sequence[TokenizedPrompt], job: Job) -> tuple[str, ...]:
    """Responses at temperature 0, to compare with another server's."""
    cold = replace(job, sampling={**job.sampling, "temperature": 0.0}, tokens=_GREEDY_TOKENS)
    return tuple(send_request(client, q, cold).text for q in prompts)


def acceptance_by_slot(
    client: Client, prompts: Sequence[TokenizedPrompt], job: Job, slots: int
) -> tuple[float | None, ...]:
    """α of each slot, from one request each; None if nothing was drafted."""
    out = []
    for i in range(slots):
        slot_job = replace(job, sampling={**job.sampling, "id_slot": i})
        response = send_request(client, prompts[i % len(prompts)], slot_job)
        out.append(response.accepted / response.drafted if response.drafted else None)
        job.tick()
    return tuple(out)


def _varied(tokenized: TokenizedPrompt, number: int) -> TokenizedPrompt:
    """The same prompt with a number in front: a known prompt is drafted too well."""
    prompt, prefix = tokenized.prompt, f"({number}) "
    if isinstance(prompt, str):
        return TokenizedPrompt(prefix + prompt)
    last = prompt.messages[-1]
    varied = {**last, "content": prefix + str(last.get("content", ""))}
    return TokenizedPrompt(replace(prompt, messages=(*prompt.messages[:-1], varied)))


def send_request(
    client: Client,
    tokenized: TokenizedPrompt,
    job: Job,
    tokens: int | None = None,
    cache: bool = False,
) -> Response:
    """One streamed request. Raises EngineError if the response contains no timings."""
    started = time.monotonic()
    first: float | None = None
    text: list[str] = []
    ids: list[int] = []
    marks: list[Timings] = []
    repeated = _varied(tokenized, tokenized.repeats) if tokenized.repeats else tokenized
    prompt = tokenized.ids or repeated.prompt
    for piece in client.stream(prompt, tokens or job.tokens, job.sampling, job.chat, cache):
        if first is None and (piece.text or piece.timings):
            first = time.monotonic()
        text.append(piece.text)
        ids += piece.ids
        if piece.timings is not None:
            marks.append(piece.timings)
        job.tick()
    if not marks:
        raise EngineError("the server's responses contain no timings: it is not a llama-server")
    last = marks[-1]
    return Response(
        prompt_tokens=last.prompt_tokens,
        prompt_ms=last.prompt_ms,
        first_ms=((first or started) - started) * 1000,
        tokens=last.tokens,
        ms=last.ms,
        drafted=last.drafted,
        accepted=last.accepted,
        text="".join(text),
        steps=tuple(steps_of(marks)),
        prompt_ids=tokenized.ids,
        ids=tuple(ids) if 0 <= last.tokens - len(ids) <= 1 else (),  # the last may not be sent
    )


def steps_of(marks: Sequence[Timings]) -> Iterator[Step]:
    """Steps from the timings after each token. A step's timings appear with its second token, or
    with the first one of the next step: every change of the clock is one step. Yields nothing if
    the counts do not add up (only the last timings arrived, or those of another server)."""
    distinct = [marks[0]]
    for m in marks[1:]:
        if m.ms > distinct[-1].ms or m.drafted > distinct[-1].drafted:
            distinct.append(m)
    steps = [
        Step(b.drafted - a.drafted, b.accepted - a.accepted, b.ms - a.ms)
        for a, b in pairwise(distinct)
    ]
    consistent = all(0 <= s.accepted <= s.drafted and s.ms >= 0 for s in steps)
    tokens = 1 + sum(s.accepted + 1 for s in steps)
    # the end of a request cuts its last step short
    if (
        consistent
        and len(marks) > 1
        and 0 <= tokens - marks[-1].tokens <= (steps[-1].accepted if steps else 0)
    ):
        yield from steps


def _findings(m: Measurement, hybrid: bool) -> Iterator[str]:
    """What is wrong. A hybrid model that accepts everything was found not to roll back its state:
    its output is wrong, however fast."""
    bad = sum(_degenerate(a.text) for a in m.responses)
    if bad > _MAX_DEGENERATE * len(m.responses):
        yield "degenerate output: one word repeated over and over"
    if any(not 0 <= a.accepted <= a.drafted for a in m.responses):
        yield f"inconsistent counters: {m.accepted} of {m.drafted} drafted tokens accepted"
    if m.accepts_nothing:
        yield cost_without_gain(m.drafted, m.accepted)
    if hybrid and m.alpha == 1.0 and m.drafted >= _MANY_DRAFTS:
        yield f"all {m.drafted} drafted tokens were accepted on a hybrid target: its state may not be rolled back"


def _degenerate(text: str) -> bool:
    words = text.split()
    return len(words) >= 20 and Counter(words).most_common(1)[0][1] > _DEGENERATE * len(words)
