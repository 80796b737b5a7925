"""A laboratory with scripted servers: speed, acceptance and text as functions of what is asked.

No process and no real clock: a server's milliseconds are what the script says, and the clock
that the tuner reads goes on by them, so that budgets of minutes are spent in no time. Answers
are token ids, and an n-gram server drafts from them by llama.cpp's own rules. What the real
servers do is in test_measure.py.
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
from specllama.tuning import measure, ngrams, plain, run, search
from specllama.tuning.arms import Prediction, RunningServer, TuningResult
from specllama.tuning.ngram_text import Text
from specllama.tuning.run import Task
from specllama.tuning.search import OpenResult

_NOTHING: Mapping[str, Any] = {}
_WORDS = 30_000
_CHECKPOINT = 5  # tokens evaluated at least where the cache goes back to a checkpoint
_CLOCKED = (measure, plain, run)


@dataclass(frozen=True)
class Request:
    """What a script can look at. `number` counts the requests of this server from 0; `seen`:
    the same prompt was answered before by it; `prompt` is "" for ids that are no whole prompt."""

    speculation: Speculation | None
    prompt: str
    temperature: float
    number: int
    seen: bool


@dataclass
class Script:
    """One machine. `verify(b)`: ms of a pass of the target over b tokens; `own(method)`: ms of
    one pass of a draft; `accept`: chance that a draft's first token is right, given the ones
    before; `decline`: how much less at each further depth; `once`: methods whose block is one
    pass; `drafts`: share of steps that a draft takes part in.

    Text: `copies`: chance that a piece of an answer is taken from its prompt, `span` tokens
    long on average, the others `fresh`; `length`: tokens of a prompt; `ends`: tokens after
    which an answer ends by itself.

    Time: `noise` of each step; `spread`: how much the cost of drafting steps differs between
    prompts (standard deviation of its logarithm); `first`: how much slower the first step of an
    answer is than the others; `drift`, `weather`: how much slower
    everything is, by launches and by seconds so far; `load_s`.

    `dies`: the server does not start; `dies_at`: it ends at a request. What the build tells:
    `per_token` timings, `counts` in /metrics, `gives_ids`, `tokenizes`, `caches` prompts;
    `window`: its cache only goes back to checkpoints. `output_share`: of the output matrix.
    `slots`: answered at once; `ignores_n_max`: drafts that many whatever it is told."""

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
    weather: Callable[[float], float] = field(default=lambda seconds: 1.0)
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
        """The same when only the last row goes through the output matrix."""
        one = self.verify(1)
        return one + (self.prompt_ms(tokens) - one) * (1 - self.output_share)


class World:
    """What all servers of a laboratory share: the clock, the prompts' tokens, chance."""

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
        """Pieces of the prompt and new ones in turn."""
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
    """A Client as far as tuning asks one."""

    def __init__(self, world: World, spec: Speculation | None, launch: int) -> None:
        self._world, self._spec, self._launch = world, spec, launch
        self._script = world.script
        self._asked: dict[Ids, int] = {}
        self._cached: Ids = ()
        self.requests = 0
        self.log: list[str] = []
        self._time: dict[str, list[float]] = {}  # method → drafting ms, drafted, accepted
        copying = [m for m in (spec.methods if spec else ()) if m.startswith("ngram-")]
        self._method = next(iter(copying), "")
        self._rule = (
            ngrams.rule(self._method, spec.ngram) if spec and spec.ngram and copying else None
        )
        self._draft = next((m for m in (spec.methods if spec else ()) if m not in copying), "")

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
        pieces = list(self._answered(tuple(ids), tokens, sampling, cache))
        got = tuple(i for p in pieces for i in p.ids)
        text = "".join(p.text for p in pieces)
        return Completion(text, pieces[-1].timings, got if self._script.gives_ids else ())

    def stream(
        self,
        prompt: Prompt | Ids,
        tokens: int,
        sampling: Mapping[str, Any],
        chat: bool = False,
        cache: bool = False,
    ) -> Iterator[Completion]:
        given = isinstance(prompt, tuple)
        ids = cast(Ids, prompt) if given else self._world.ids(self.render(cast(Prompt, prompt)))
        pieces = list(self._answered(ids, tokens, sampling, cache))
        for i, piece in enumerate(pieces):
            told = self._script.per_token or i == len(pieces) - 1
            sent = piece.ids if self._script.gives_ids else ()
            yield Completion(piece.text, piece.timings if told else None, sent)

    def _answered(
        self, ids: Ids, tokens: int, sampling: Mapping[str, Any], cache: bool
    ) -> Iterator[Completion]:
        """One request: its pieces with the timings after each. A worker thread's requests run
        beside others: each step is all slots' then."""
        s, world = self._script, self._world
        together = threading.current_thread() is not threading.main_thread()
        with world.lock:
            times = self._asked.get(ids, 0)
            temperature = float(sampling.get("temperature", 0))
            request = Request(
                self._spec, world.prompts.get(ids, ""), temperature, self.requests, times > 0
            )
            self.requests += 1
            if s.dies_at(request):
                raise EngineError("a streamed completion was cut off ()")
            self._asked[ids] = times + 1
            evaluated, prompt_ms = self._prompt(ids, cache)
            rng = random.Random(hash((world.seed, ids, self._launch, times, tokens)))
            slow = s.drift(self._launch) * s.weather(world.now)
            chance = 0 if temperature == 0 else hash((self._launch, times))
            most = min(tokens, s.ends(request))
            answer = world.answer(ids, s.copies(request), most, chance)
            p = s.slot_accept.get(sampling.get("id_slot", -1), s.accept(request))
            marks = list(self._steps(request, ids, answer, tokens, p, rng, slow, together))
            decode_ms = marks[-1][1]
            prompt_ms *= slow * max(0.2, rng.gauss(1, s.noise))
            if s.per_token or tokens > 2:
                self._print(decode_ms, len(answer))
            world.now += (prompt_ms + decode_ms) / 1000 / (s.slots if together else 1)
        word, said = s.text(request), 0
        for n, ms, drafted, accepted in marks:
            numbers = range(said, n)
            piece = "".join(f"{word}{'' if word == 'same' else i} " for i in numbers)
            timings = Timings(evaluated, prompt_ms, n, ms, drafted, accepted)
            yield Completion(piece, timings, tuple(answer[said:n]))
            said = n

    def _prompt(self, ids: Ids, cache: bool) -> tuple[int, float]:
        """Tokens evaluated, and ms; the cache keeps what was evaluated last."""
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
        together: bool,
    ) -> Iterator[tuple[int, float, int, int]]:
        """(tokens, ms, drafted, accepted) so far, after each step (server-context.cpp's loop)."""
        s, spec = self._script, self._spec
        # how hard each token is to guess lies in the text: it is the same at every K
        hard = random.Random(hash((self._world.seed, ids, tuple(answer[:8]))))
        u = [hard.random() for _ in answer]
        by_prompt = random.Random(hash((self._world.seed, ids, -7)))
        factor = math.exp(by_prompt.gauss(0, s.spread))
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
            d = kept = 0
            if copy:
                d = min(len(copy), room)
                while kept < min(d, left) and copy[kept] == answer[n + kept]:
                    kept += 1
            elif room > 0 and longest and rng.random() < s.drafts(request):
                d = min(longest, room)
                while kept < min(d, left) and u[n + kept] < p - s.decline * kept:
                    kept += 1
            if kept == left and kept < d:  # it ended within the draft
                kept -= 1
            if copy and self._rule is not None:
                self._rule.accept(kept)
            cost, own = self._cost(d, bool(copy), together)
            again = s.first if n == 1 else 1.0
            ms += cost * slow * again * (factor if d else 1.0) * max(0.2, rng.gauss(1, s.noise))
            self._count(self._method if copy else self._draft, own * slow, d, kept)
            n, drafted, accepted = n + kept + 1, drafted + d, accepted + kept
            yield min(n, len(answer)), ms, drafted, accepted

    def _cost(self, drafted: int, copied: bool, together: bool) -> tuple[float, float]:
        """ms of a step, and the drafting in it. A draft reads what was verified in any case
        (process() in common/speculative.cpp), which is one more pass."""
        s = self._script
        ms = s.verify((drafted + 1) * (s.slots if together else 1))
        own = s.own(self._draft) if self._draft else 0.0
        passes = 0 if copied else min(drafted, 1) if self._draft in s.once else drafted
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
    """`launches`: what was started, in order, and which of them was `traced`; `up`: whether a
    server is."""

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


class Silent:
    """A progress that tells nobody."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, text: str, share: float, left_s: float) -> None:
        assert 0 <= share <= 1
        assert left_s >= 0
        if text:
            self.said.append(text)


@contextmanager
def clocked(runner: FakeRunner) -> Iterator[None]:
    """The tuner reads the laboratory's clock."""
    clock = SimpleNamespace(monotonic=lambda: runner.world.now)
    with ExitStack() as stack:
        for module in _CLOCKED:
            stack.enter_context(patch.object(module, "time", clock))
        yield


def tuned(
    script: Script,
    task: Task,
    seed: int = 1,
    earlier: OpenResult | None = None,
    prior: Prediction | None = None,
) -> tuple[TuningResult, FakeRunner]:
    """A search on a scripted machine."""
    runner = FakeRunner(script, seed)
    with clocked(runner):
        return search.tune(runner, task, Silent(), earlier, prior), runner
