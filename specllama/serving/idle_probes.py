"""Step times, measured while a server is idle: short requests, none longer than a draft.

A request of k + 2 tokens leaves room for one step of k drafted tokens (server-context.cpp), one of
2 tokens for a plain step. A real request waits for one of them at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.planning.feasible import feasible_methods
from specllama.planning.plan import Plan
from specllama.tuning.measure import Job, Response, TokenizedPrompt, send_request
from specllama.tuning.speedup import Step
from specllama.tuning.step_times import StepTimes, never_less
from specllama.watching.counters import NOTHING, Counts
from specllama.watching.traffic import longest

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_ROUNDS = 5
_PROMPT_TOKENS = 48
_MOMENT_S = 10.0  # at a time; the rest follows in the next idle moment


@dataclass
class IdleProbes:
    """Short requests to one server; `sent` so far."""

    client: Client
    plan: Plan
    sent: int = 0
    _counts: Counts = NOTHING
    _steps: list[Step] = field(default_factory=list)
    _waiting: list[int] = field(init=False)
    _question: TokenizedPrompt | None = None

    def __post_init__(self) -> None:
        k = longest(self.plan.settings.speculation) or 0
        lengths = [0, *(x for x in _LENGTHS if x < k), *([k] if k else [])]
        # the plain step and the length that runs first: they matter most
        self._waiting = sorted(lengths * _ROUNDS, key=lambda x: (x not in (0, k), x))

    @property
    def done(self) -> bool:
        return not self._waiting

    def run(self, idle: Callable[[], bool]) -> StepTimes | None:
        """Sends requests while the server is idle. Returns the step times once all are known. Gives
        up after an error."""
        until = time.monotonic() + _MOMENT_S
        while self._waiting and time.monotonic() < until and idle():
            k = self._waiting.pop(0)
            self.sent += 1
            try:
                response = send_request(
                    self.client, self._prompt(), self._job(), tokens=k + 2, cache=True
                )
            except EngineError:
                self._waiting.clear()
                return None
            self._steps += response.steps
            self._counts += counts_of(response)
        return self._times() if self.done else None

    def take_counts(self) -> Counts:
        """What the server counted for the requests since the last call."""
        counts, self._counts = self._counts, NOTHING
        return counts

    def _prompt(self) -> TokenizedPrompt:
        if self._question is None:
            prompt = next((p for p in self.plan.workload.prompts if isinstance(p, str)), "Hello.")
            ids = self.client.tokenize(prompt)[:_PROMPT_TOKENS]
            self._question = TokenizedPrompt(prompt, ids)
        return self._question

    def _job(self) -> Job:
        return Job(self.plan.workload.sampling, 2, chat=False)

    def _times(self) -> StepTimes | None:
        by_length: dict[int, list[float]] = {}
        for step in self._steps:
            by_length.setdefault(step.drafted, []).append(step.ms)
        found = never_less({k: times for k, times in by_length.items() if len(times) > 1})
        if 0 not in found:
            return None
        # a step without a draft includes one pass of the draft: estimated from bytes
        spec = self.plan.settings.speculation
        own = next((w.cost for w in feasible_methods(self.plan) if w.speculation == spec), 0.0)
        return StepTimes(found[0] / (1 + own), found)


def counts_of(response: Response) -> Counts:
    """What a server adds to its counters for one request."""
    drafting = [s for s in response.steps if s.drafted]
    depth = max((s.accepted for s in drafting), default=0)
    return Counts(
        drafted=float(response.drafted),
        accepted=float(response.accepted),
        steps=float(len(drafting)),
        by_position=tuple(float(sum(s.accepted > i for s in drafting)) for i in range(depth)),
        tokens=float(response.tokens),
        seconds=response.ms / 1000,
        requests=1.0,
    )
