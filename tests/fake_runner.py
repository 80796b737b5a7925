"""Simulated servers for the tuner: speed, acceptance and text are functions of the request.

There is no process and no real clock: a script defines how long each step takes, and these times
advance the clock that the tuner reads, so a budget of minutes passes at once. Responses are token
IDs, and n-gram methods draft from them by llama.cpp's own rules. test_measure.py covers real
servers.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from specllama.engine.client import Client, Completion, Ids, Prompt, Timings
from specllama.engine.errors import EngineError
from specllama.engine.metrics import Metrics
from specllama.engine.settings import Speculation
from specllama.tuning import baseline, measure, ngrams, run, search
from specllama.tuning.ngram_text import Text
from specllama.tuning.records import Prediction, RunningServer, TuningResult
from specllama.tuning.run import Task
from specllama.tuning.search import OpenResult

_NOTHING: Mapping[str, Any] = {}
_WORDS = 30_000
_CHECKPOINT = 5  # minimum of evaluated tokens if the cache only returns to checkpoints
_MODULES_WITH_A_CLOCK = (measure, baseline, run)


@dataclass(frozen=True)
class Request:
    """A request, as a script sees it. `number`: its index on this server; `seen`: this server has
    answered the same prompt before; `prompt`: "" for IDs that are not a whole prompt."""

    speculation: Speculation | None
    prompt: str
    temperature: float
    number: int
    seen: bool


@dataclass
class Script:
    """One machine. `verify(b)`: ms of a pass of the target over b tokens; `own(method)`: ms of
    one pass of a draft; `accept`: probability that a drafted token is accepted if those before it
    were; `decline`: how much this falls with each position; `once`: methods that draft a block in
    one pass; `drafts`: share of steps with a draft.

    Text: `copies`: probability that a piece of a response is copied from its prompt; `span`,
    `fresh`: mean length of copied and of new pieces, in tokens; `length`: tokens of a prompt;
    `ends`: tokens after which a response ends by itself.

    Time: `noise` of each step; `spread`: how much the cost of drafting steps differs between
    prompts (standard deviation of its logarithm); `first`: how much slower the first step of a
    response is than the others; `drift`, `load`: how much slower everything is, by number of
    launches and by seconds so far; `load_s`: seconds that a start takes.

    `dies`: the server does not start; `dies_at`: it crashes at a request. Features of the build:
    timings `per_token`, `counts` in /metrics, `gives_ids`, `tokenizes`, `caches` prompts;
    `window`: its cache only returns to checkpoints. `output_share`: of the output matrix.
    `slots`: requests at once; `ignores_n_max`: draft length whatever the options."""

    verify: Callable[[int], float]
    own: Callable[[str], float] = field(default=lambda method: 0.0)
    accept: Callable[[Request], float] = field(default=lambda request: 0.7)
    decline: float = 0.0
    once: tuple[str, ...] = ()
    drafts: Callable[[Request], float] = field(default=lambda request: 1.0)
    copies: Callable[[Request], float] = field(default=lambda request: 0.0)
    span: float = 20.0
    fresh: float = 12.0
    length: Callable[[str], int] = field(default=lambda prompt: 40)
    ends: Callable[[Request], int] = field(default=lambda request: 10**6)
    text: Callable[[Request], str] = field(default=lambda request: "word")
    noise: float = 0.0
    spread: float = 0.0
    first: float = 1.0
    drift: Callable[[int], float] = field(default=lambda launch: 1.0)
    load: Callable[[float], float] = field(default=lambda seconds: 1.0)
    load_s: Callable[[Speculation | None], float] = field(default=lambda spec: 0.0)
    dies: Callable[[Speculation | None], bool] = field(default=lambda spec: False)
    dies_at: Callable[[Request], bool] = field(default=lambda request: False)
    per_token: bool = True
    counts: bool = True
    gives_ids: bool = True
    tokenizes: bool = True
    caches: bool = True
    window: bool = False
    output_share: float = 0.0
    slots: int = 1
    slot_accept: Mapping[int, float] = field(default_factory=dict)
    ignores_n_max: int | None = None

    def prompt_ms(self, tokens: int) -> float:
        """Evaluating a prompt, at the speed of large batches."""
        return self.verify(tokens) if tokens <= 65 else self.verify(65) * tokens / 65

    def batch_ms(self, tokens: int) -> float:
        """The same if only the last row goes through the output matrix."""
        one = self.verify(1)
        return one + (self.prompt_ms(tokens) - one) * (1 - self.output_share)


class World:
    """What all servers of a runner share: the clock, the prompts' tokens, the random seed."""

    def __init__(self, script: Script, seed: int) -> None:
        self.script, self.seed = script, seed
        self.now = 0.0
        self.prompts: dict[Ids, str] = {}
        self.lock = threading.Lock()

    def ids(self, text: str) -> Ids:
        rng = random.Random(f"{self.seed} {text}")
        ids = tuple(rng.randrange(_WORDS) for _ in range(self.script.length(text)))
        self.prompts[ids] = text
        return ids

    def answer(self, ids: Ids, copies: float, tokens: int, chance: int) -> list[int]:
        """Pieces copied from the prompt, between new ones."""
        s, rng = self.script, random.Random(hash((self.seed, ids, chance)))
        out: list[int] = []
        while len(out) < tokens:
            if rng.random() < copies:
                at = rng.randrange(max(1, len(ids) - 2))
                out += ids[at : at + 1 + int(rng.expovariate(1 / s.span))]
            else:
                pieces = 1 + int(rng.expovariate(1 / s.fresh))
                out += [rng.randrange(_WORDS) for _ in range(pieces)]
        return out[:tokens]


class FakeClient:
    """The part of Client that tuning uses."""

    def __init__(self, world: World, spec: Speculation | None, launch: int) -> None:
        self._world, self._spec, self._launch = world, spec, launch
        self._script = world.script
        self._repeats: dict[Ids, int] = {}
        self._cached: Ids = ()
        self.requests = 0
        self.log: list[str] = []
        self._time: dict[str, list[float]] = {}  # method → drafting ms, drafted, accepted
        ngram_methods = [m for m in (spec.methods if spec else ()) if m.startswith("ngram-")]
        self._method = next(iter(ngram_methods), "")
        self._rule = (
            ngrams.rule(self._method, spec.ngram) if spec and spec.ngram and ngram_methods else None
        )
        self._draft = next(
            (m for m in (spec.methods if spec else ()) if m not in ngram_methods), ""
        )

    def tokenize(self, text: str, special: bool = True) -> Ids:
        if not self._script.tokenizes:
            raise EngineError("the server answers /tokenize with 404: File Not Found")
        return self._world.ids(text)

    def render(self, prompt: Prompt, sampling: Mapping[str, Any] = _NOTHING) -> str:
        return prompt if isinstance(prompt, str) else str(prompt.messages[-1]["content"])

    def metrics(self) -> Metrics | None:
        if not self._script.counts:
            return None
        drafted, accepted = (int(sum(t[i] for t in self._time.values())) for i in (1, 2))
        return Metrics(drafted, accepted, None, ())

    def slots(self) -> list[dict[str, Any]] | None:
        return [{"id": i, "speculative": self._spec is not None} for i in range(self._script.slots)]

    def continue_ids(
        self, ids: Sequence[int], tokens: int, sampling: Mapping[str, Any], cache: bool
    ) -> Completion:
        pieces = list(self._respond(tuple(ids), tokens, sampling, cache))
        new_ids = tuple(i for p in pieces for i in p.ids)
        text = "".join(p.text for p in pieces)
        return Completion(text, pieces[-1].timings, new_ids if self._script.gives_ids else ())

    def stream(
        self,
        prompt: Prompt | Ids,
        tokens: int,
        sampling: Mapping[str, Any],
        chat: bool = False,
        cache: bool = False,
    ) -> Iterator[Completion]:
        is_ids = isinstance(prompt, tuple)
        ids = cast(Ids, prompt) if is_ids else self._world.ids(self.render(cast(Prompt, prompt)))
        pieces = list(self._respond(ids, tokens, sampling, cache))
        for i, piece in enumerate(pieces):
            timed = self._script.per_token or i == len(pieces) - 1
            sent_ids = piece.ids if self._script.gives_ids else ()
            yield Completion(piece.text, piece.timings if timed else None, sent_ids)

    def _respond(
        self, ids: Ids, tokens: int, sampling: Mapping[str, Any], cache: bool
    ) -> Iterator[Completion]:
        """One request: its pieces, with the timings after each. Requests of worker threads run
        at the same time, so each of their steps covers all slots."""
        s, world = self._script, self._world
        concurrent = threading.current_thread() is not threading.main_thread()
        with world.lock:
            repeats = self._repeats.get(ids, 0)
            temperature = float(sampling.get("temperature", 0))
            request = Request(
                self._spec, world.prompts.get(ids, ""), temperature, self.requests, repeats > 0
            )
            self.requests += 1
            if s.dies_at(request):
                raise EngineError("a streamed completion was cut off ()")
            self._repeats[ids] = repeats + 1
            evaluated, prompt_ms = self._prompt(ids, cache)
            rng = random.Random(hash((world.seed, ids, self._launch, repeats, tokens)))
            slow = s.drift(self._launch) * s.load(world.now)
            chance = 0 if temperature == 0 else hash((self._launch, repeats))
            limit = min(tokens, s.ends(request))
            answer = world.answer(ids, s.copies(request), limit, chance)
            p = s.slot_accept.get(sampling.get("id_slot", -1), s.accept(request))
            after_steps = list(self._steps(request, ids, answer, tokens, p, rng, slow, concurrent))
            decode_ms = after_steps[-1][1]
            prompt_ms *= slow * max(0.2, rng.gauss(1, s.noise))
            if s.per_token or tokens > 2:
                self._print(decode_ms, len(answer))
            world.now += (prompt_ms + decode_ms) / 1000 / (s.slots if concurrent else 1)
        word, sent = s.text(request), 0
        for n, ms, drafted, accepted in after_steps:
            numbers = range(sent, n)
            piece = "".join(f"{word}{'' if word == 'same' else i} " for i in numbers)
            timings = Timings(evaluated, prompt_ms, n, ms, drafted, accepted)
            yield Completion(piece, timings, tuple(answer[sent:n]))
            sent = n

    def _prompt(self, ids: Ids, cache: bool) -> tuple[int, float]:
        """Tokens evaluated, and ms; the cache holds the last prompt."""
        s, before = self._script, self._cached
        self._cached = ids
        if not (cache and s.caches):
            return len(ids), s.prompt_ms(len(ids))
        same = 0
        while same < min(len(before), len(ids)) and before[same] == ids[same]:
            same += 1
        new = max(len(ids) - same, _CHECKPOINT if s.window else 1)
        return new, s.batch_ms(new)

    def _steps(
        self,
        request: Request,
        ids: Ids,
        answer: Sequence[int],
        limit: int,
        p: float,
        rng: random.Random,
        slow: float,
        concurrent: bool,
    ) -> Iterator[tuple[int, float, int, int]]:
        """(tokens, ms, drafted, accepted) so far, after each step (server-context.cpp's loop)."""
        s, spec = self._script, self._spec
        # a token is as hard to draft at every K, so this depends on the text only
        difficulty = random.Random(hash((self._world.seed, ids, tuple(answer[:8]))))
        u = [difficulty.random() for _ in answer]
        prompt_rng = random.Random(hash((self._world.seed, ids, -7)))
        factor = math.exp(prompt_rng.gauss(0, s.spread))
        if self._rule is not None:
            self._rule.begin(Text(ids + tuple(answer)), len(ids))
        longest = 0 if spec is None or not self._draft else (s.ignores_n_max or spec.n_max)
        n, ms, drafted, accepted = 1, 0.001, 0, 0
        yield n, ms, drafted, accepted
        while n < len(answer):
            room, left = limit - n - 1, len(answer) - n
            copy: Sequence[int] = ()
            if room > 0 and self._rule is not None:
                copy = self._rule.draft(len(ids) + n - 1)
            d = accepted_now = 0
            if copy:
                d = min(len(copy), room)
                while (
                    accepted_now < min(d, left) and copy[accepted_now] == answer[n + accepted_now]
                ):
                    accepted_now += 1
            elif room > 0 and longest and rng.random() < s.drafts(request):
                d = min(longest, room)
                while (
                    accepted_now < min(d, left)
                    and u[n + accepted_now] < p - s.decline * accepted_now
                ):
                    accepted_now += 1
            if accepted_now == left and accepted_now < d:  # the response ended within the draft
                accepted_now -= 1
            if copy and self._rule is not None:
                self._rule.accept(accepted_now)
            cost, drafting_ms = self._cost(d, bool(copy), concurrent)
            slower_first = s.first if n == 1 else 1.0
            ms += (
                cost
                * slow
                * slower_first
                * (factor if d else 1.0)
                * max(0.2, rng.gauss(1, s.noise))
            )
            self._count(self._method if copy else self._draft, drafting_ms * slow, d, accepted_now)
            n, drafted, accepted = n + accepted_now + 1, drafted + d, accepted + accepted_now
            yield min(n, len(answer)), ms, drafted, accepted

    def _cost(self, drafted: int, from_ngram: bool, concurrent: bool) -> tuple[float, float]:
        """ms of a step, and of its drafting. A draft always evaluates the verified tokens
        (process() in common/speculative.cpp), which is one more pass."""
        s = self._script
        ms = s.verify((drafted + 1) * (s.slots if concurrent else 1))
        own = s.own(self._draft) if self._draft else 0.0
        passes = 0 if from_ngram else min(drafted, 1) if self._draft in s.once else drafted
        return ms + own * (passes + 1), own * passes

    def _count(self, method: str, ms: float, drafted: int, accepted: int) -> None:
        if drafted:
            total = self._time.setdefault(method, [0.0, 0, 0])
            for i, x in enumerate((ms, drafted, accepted)):
                total[i] += x

    def _print(self, ms: float, tokens: int) -> None:
        self.log.append(f"       eval time = {ms:10.2f} ms / {tokens:5d} tokens")
        for name, (spent, drafted, accepted) in self._time.items():
            self.log.append(
                f"statistics {name:>16}: #calls(b,g,a) = 1 2 3, #gen tokens = {drafted:6.0f}, "
                f"#acc tokens = {accepted:6.0f}, dur(b,g,a) = 0.001, {spent:.3f}, 0.001 ms"
            )


class FakeRunner:
    """`launches`: the settings of each start, in order; `traced`: which of them were traced; `up`:
    whether a server is running."""

    def __init__(self, script: Script, seed: int = 1) -> None:
        self.script, self.world = script, World(script, seed)
        self.launches: list[Speculation | None] = []
        self.traced: list[bool] = []
        self.up = False

    def start(
        self, speculation: Speculation | None, tick: Callable[[], None], trace: bool = False
    ) -> RunningServer:
        self.stop()
        self.launches.append(speculation)
        self.traced.append(trace)
        for _ in range(4):
            self.world.now += self.script.load_s(speculation) / 4
            tick()
        if self.script.dies(speculation):
            raise EngineError("llama-server did not start: it crashed (SIGSEGV)")
        self.up = True
        client = FakeClient(self.world, speculation, len(self.launches))
        return RunningServer(cast(Client, client), lambda: "\n".join(client.log) if trace else "")

    def stop(self) -> None:
        self.up = False

    def blame(self, error: EngineError) -> EngineError:
        if "cut off" in error.message:
            return EngineError("llama-server exited: it crashed (SIGSEGV)")
        return error


class RecordedProgress:
    """Progress that only records its messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def step(self, text: str, share: float, left_s: float) -> None:
        assert 0 <= share <= 1
        assert left_s >= 0
        if text:
            self.messages.append(text)


@contextmanager
def simulated_clock(runner: FakeRunner) -> Iterator[None]:
    """The tuner reads the simulated clock."""
    clock = SimpleNamespace(monotonic=lambda: runner.world.now)
    with ExitStack() as stack:
        for module in _MODULES_WITH_A_CLOCK:
            stack.enter_context(patch.object(module, "time", clock))
        yield


def tuned(
    script: Script,
    task: Task,
    seed: int = 1,
    earlier: OpenResult | None = None,
    prior: Prediction | None = None,
) -> tuple[TuningResult, FakeRunner]:
    """A search on a simulated machine."""
    runner = FakeRunner(script, seed)
    with simulated_clock(runner):
        return search.tune(runner, task, RecordedProgress(), earlier, prior), runner
