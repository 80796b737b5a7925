"""A laboratory with scripted servers: speed and acceptance as functions of what is asked.

No process and no clock: a server's milliseconds are what the script says, so a search over
minutes of decoding takes no time. What the real servers do is in test_measure.py.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from specllama.engine.client import Client, Completion, Metrics, Timings
from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.tuning.arms import Served


@dataclass(frozen=True)
class Request:
    """What a script can look at. `number` counts the requests of this server from 0."""

    speculation: Speculation | None
    prompt: str
    temperature: float
    number: int
    seen: bool


@dataclass
class Script:
    """One machine. `cost(k, method)`: ms of a step with k drafted tokens; `accept`: the
    conditional acceptance of each drafted token; `drafts`: share of steps that draft at all;
    `ends`: tokens after which an answer ends by itself; `drift`, `weather`: how much slower everything is, by launches and by requests so far."""

    cost: Callable[[int, str], float]
    accept: Callable[[Request], float] = field(default=lambda request: 0.7)
    drafts: Callable[[Request], float] = field(default=lambda request: 1.0)
    noise: float = 0.0
    drift: Callable[[int], float] = field(default=lambda launch: 1.0)
    weather: Callable[[int], float] = field(default=lambda requests: 1.0)
    dies: Callable[[Speculation | None], bool] = field(default=lambda spec: False)
    per_token: bool = True
    counts: bool = True
    ignores_n_max: int | None = None
    ends: Callable[[Request], int] = field(default=lambda request: 10**6)
    text: Callable[[Request], str] = field(default=lambda request: "word")
    slot_accept: Mapping[int, float] = field(default_factory=dict)


class FakeClient:
    """A Client as far as measuring asks one."""

    def __init__(
        self,
        script: Script,
        spec: Speculation | None,
        rng: random.Random,
        slow: Callable[[], float],
    ) -> None:
        self._script, self._spec, self._rng, self._slow = script, spec, rng, slow
        self._prompts: set[str] = set()
        self.requests = 0
        self._drafted = self._accepted = self._steps = 0

    def stream(
        self, prompt: Any, tokens: int, sampling: Mapping[str, Any], chat: bool = False
    ) -> Iterator[Completion]:
        s, spec = self._script, self._spec
        text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
        request = Request(
            spec, text, float(sampling.get("temperature", 0)), self.requests, text in self._prompts
        )
        self._prompts.add(text)
        self.requests += 1
        tokens = min(tokens, s.ends(request))
        p = s.accept(request)
        if "id_slot" in sampling:
            p = s.slot_accept.get(sampling["id_slot"], p)
        n, ms, drafted, accepted = 1, 0.001, 0, 0
        marks = [Timings(20, 50.0, n, ms, 0, 0)]
        method = spec.methods[0] if spec else ""
        slow = self._slow()
        longest = 0 if spec is None else (s.ignores_n_max or spec.n_max)
        if spec is not None and not spec.uses_draft and spec.ngram is not None:
            longest = spec.ngram.m
        while n < tokens:
            k = min(longest, max(0, tokens - n - 1))
            if k and self._rng.random() >= s.drafts(request):
                k = 0
            kept = 0
            while kept < k and self._rng.random() < p:
                kept += 1
            ms += s.cost(k, method) * slow * max(0.2, self._rng.gauss(1, s.noise))
            n, drafted, accepted = n + kept + 1, drafted + k, accepted + kept
            self._steps += bool(k)
            marks.append(Timings(20, 50.0, min(n, tokens), ms, drafted, accepted))
        self._drafted, self._accepted = self._drafted + drafted, self._accepted + accepted
        word, said = s.text(request), 0
        for i, mark in enumerate(marks):
            last = i == len(marks) - 1
            numbers = range(said, mark.tokens)
            said = mark.tokens
            piece = "".join(f"{word}{'' if word == 'same' else n} " for n in numbers)
            yield Completion(piece, mark if s.per_token or last else None)

    def metrics(self) -> Metrics | None:
        if not self._script.counts:
            return None
        return Metrics(self._drafted, self._accepted, self._steps, ())


class FakeLab:
    """`launches`: what was started, in order. `two`: whether two servers may be up."""

    def __init__(self, script: Script, two: bool = True, seed: int = 1) -> None:
        self.script, self.room_for_two = script, two
        self.launches: list[Speculation | None] = []
        self._rng = random.Random(seed)
        self._requests = itertools.count()

    @contextmanager
    def serve(self, speculation: Speculation | None) -> Iterator[Served]:
        self.launches.append(speculation)
        if self.script.dies(speculation):
            raise EngineError("llama-server did not start: it crashed (SIGSEGV)")
        drift = self.script.drift(len(self.launches))

        def slow() -> float:
            return drift * self.script.weather(next(self._requests))

        client = cast(Client, FakeClient(self.script, speculation, self._rng, slow))
        yield Served(client, lambda: "")


class Silent:
    """A progress that tells nobody."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, text: str, share: float) -> None:
        assert 0 <= share <= 1
        if text:
            self.said.append(text)
