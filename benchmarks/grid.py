"""Measures settings on held-out prompts, one server at a time, in rounds.

In a round every setting answers the same prompts with the same seed, so that all give the same
text. How fast the machine was just then is seen on each server itself: requests of two tokens
before and after the answer, on the prompt in its cache, make steps without a draft. They take
the same on all servers with a draft model, and on all without (whose answers have such steps
too). Times are divided by that step's ratio to what it takes in a calm moment of the case.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.planning.plan import Plan
from specllama.serving.lab import Lab
from specllama.tuning.confidence import Ratios, ratios
from specllama.tuning.measure import Answer, Job, Question, ask, warm_up

_SHORT = 2  # requests of two tokens before an answer, and after it
_LEAST_TOKENS = 12  # of an answer that counts
_CALM = 0.1  # of the steps are faster than one in a calm moment


@dataclass(frozen=True)
class Setting:
    """A server to be measured. `default`: a reader of llama.cpp's guide has it for nothing."""

    name: str
    plan: Plan
    speculation: Speculation | None = None
    default: bool = False

    @property
    def drafting(self) -> bool:
        return self.speculation is not None and self.speculation.uses_draft


@dataclass(frozen=True)
class Shot:
    """One answer. `key`: round and prompt, the same for all settings; `steps`: ms of steps
    without a draft beside it."""

    setting: str
    drafting: bool
    key: tuple[int, int]
    ms: float
    tokens: int
    steps: tuple[float, ...] = ()

    @property
    def step_ms(self) -> float:
        """Such a step, 0 = not seen."""
        return statistics.fmean(self.steps) if self.steps else 0.0


@dataclass
class Shots:
    """All answers of a case, and the speeds that follow."""

    shots: list[Shot] = field(default_factory=list)

    def ratio(self, name: str, base: str, rounds: Sequence[int] | None = None) -> Ratios:
        """How much faster `name` is than `base`, by prompt, over the rounds that both were in."""
        usual = {kind: self._calm_step(kind) for kind in (True, False)}
        own, other = (
            {s.key: s for s in self._of(n, rounds) if s.tokens >= _LEAST_TOKENS}
            for n in (name, base)
        )
        pairs = [(other[k], own[k]) for k in own if k in other]
        return ratios(
            [(_calm(b, usual), _calm(a, usual), float(min(a.tokens, b.tokens))) for b, a in pairs]
        )

    def _of(self, name: str, rounds: Sequence[int] | None) -> list[Shot]:
        return [
            s for s in self.shots if s.setting == name and (rounds is None or s.key[0] in rounds)
        ]

    def _calm_step(self, drafting: bool) -> float:
        seen = sorted(x for s in self.shots if s.drafting == drafting for x in s.steps)
        return seen[int(_CALM * len(seen))] if seen else 0.0

    @property
    def swing(self) -> float:
        """The slowest machine seen ÷ the fastest, both of the middle nine tenths."""
        usual = {kind: self._calm_step(kind) for kind in (True, False)}
        seen = sorted(s.step_ms / usual[s.drafting] for s in self.shots if s.step_ms)
        cut = len(seen) // 20
        return seen[-1 - cut] / seen[cut] if seen else 1.0


def _calm(shot: Shot, usual: dict[bool, float]) -> float:
    """ms per token, had the machine been calm."""
    drift = shot.step_ms / usual[shot.drafting] if shot.step_ms else 1.0
    return shot.ms / max(1, shot.tokens - 1) / drift


@dataclass
class Bench:
    """Asks held-out `prompts` of one setting after the other. `kept`: a folder for the prompts'
    state, so that each is evaluated once: only where no draft model needs it too."""

    prompts: Sequence[str]
    tokens: int
    log: Path
    kept: Path | None
    say: Callable[[str], None]
    found: Shots = field(default_factory=Shots)
    rounds: int = 0
    _ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _saved: set[int] = field(default_factory=set)

    def round(self, settings: Sequence[Setting], asked: Sequence[int]) -> int:
        """Each setting once, one server after the other, on the prompts numbered `asked`.
        Returns the round's number."""
        number, self.rounds = self.rounds, self.rounds + 1
        for setting in settings:
            try:
                self._visit(setting, number, asked)
            except EngineError as e:
                self.say(f"{setting.name}: {e.message}")
        return number

    def _visit(self, setting: Setting, number: int, asked: Sequence[int]) -> None:
        lab = Lab(setting.plan, self.log)
        try:
            client = lab.start(setting.speculation, lambda: None).client
            plan = setting.plan
            job = Job({**plan.workload.sampling, "seed": 7 + number}, self.tokens, False)
            warm_up(client, job)
            for i in asked:
                question = self._question(client, i, plan.target.has_chat_template)
                ready = self._restored(client, i, question, job, lab)
                steps = _plain_steps(client, question, job, ready)
                answer = ask(client, question, job, cache=True)
                steps += _plain_steps(client, question, job, True)
                if not setting.drafting:
                    steps += [s.ms for s in answer.steps if not s.drafted]
                key = (number, i)
                shot = Shot(
                    setting.name, setting.drafting, key, answer.ms, answer.tokens, tuple(steps)
                )
                self.found.shots.append(shot)
                self.say(_line(setting.name, i, answer, shot.step_ms))
        finally:
            lab.stop()

    def _question(self, client: Client, i: int, chat: bool) -> Question:
        if i not in self._ids:
            prompt = self.prompts[i]
            self._ids[i] = client.tokenize(client.render(prompt) if chat else prompt)
        return Question(self.prompts[i], self._ids[i])

    def _restored(self, client: Client, i: int, question: Question, job: Job, lab: Lab) -> bool:
        """Whether the server has the prompt in its cache, from an earlier server's file."""
        if self.kept is None or lab.running is None:
            return False
        url = f"{lab.running.plan.settings.url}/slots/0"
        if i not in self._saved:
            ask(client, question, job, tokens=1)
            self._saved.add(i)
            return _slot(url, "save", i)
        return _slot(url, "restore", i)


def _slot(url: str, action: str, i: int) -> bool:
    body = {"filename": f"prompt-{i}"}
    with httpx.Client(trust_env=False, timeout=60) as http:
        return http.post(url, params={"action": action}, json=body).status_code == 200


def _plain_steps(client: Client, question: Question, job: Job, cached: bool) -> list[float]:
    """ms of steps without a draft. `cached`: the server has the prompt in its cache already."""
    answers = [ask(client, question, job, tokens=2, cache=cached or i > 0) for i in range(_SHORT)]
    return [a.ms for a in answers if a.tokens == 2]


def _line(name: str, i: int, answer: Answer, step: float) -> str:
    accepted = f", {answer.accepted} of {answer.drafted} accepted" if answer.drafted else ""
    return (
        f"{name}, prompt {i} ({answer.prompt_tokens} evaluated): {answer.tokens} tokens at "
        f"{answer.ms_per_token:.1f} ms, plain step {step:.1f}{accepted}"
    )
