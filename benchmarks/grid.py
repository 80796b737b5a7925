"""Measures settings on held-out prompts: all servers of a case are up at once, and a prompt is
answered by one after the other, with the same seed, so that all give the same text.

A shared machine is a tenth faster or slower from minute to minute. Answers to one prompt lie
seconds apart, so their ratios see little of it; who answers first changes with every prompt. The
weights are mapped and so in memory once, and a server with one thread that is not asked takes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.settings import Speculation
from specllama.planning.plan import Plan
from specllama.serving.trial_servers import TrialServers
from specllama.tuning.confidence import Ratios, ratios
from specllama.tuning.measure import Job, Response, TokenizedPrompt, send_request, warm_up

_MIN_TOKENS = 12  # of a valid response


@dataclass(frozen=True)
class Setting:
    """A server to be measured. `default`: what llama.cpp's guide recommends."""

    name: str
    plan: Plan
    speculation: Speculation | None = None
    default: bool = False


@dataclass(frozen=True)
class Shot:
    """One response. `key`: round and prompt, the same for all settings."""

    setting: str
    key: tuple[int, int]
    ms_per_token: float
    tokens: int


@dataclass
class Shots:
    """All responses of a case, and the resulting speeds."""

    shots: list[Shot] = field(default_factory=list)

    def ratio(self, name: str, base: str, rounds: Sequence[int] | None = None) -> Ratios:
        """The speed-up of `name` over `base`, per prompt, in the rounds that both were in."""
        own, other = (
            {s.key: s for s in self._of(n, rounds) if s.tokens >= _MIN_TOKENS} for n in (name, base)
        )
        pairs = [(other[k], own[k]) for k in own if k in other]
        return ratios(
            [(b.ms_per_token, a.ms_per_token, float(min(a.tokens, b.tokens))) for b, a in pairs]
        )

    def _of(self, name: str, rounds: Sequence[int] | None) -> list[Shot]:
        return [
            s for s in self.shots if s.setting == name and (rounds is None or s.key[0] in rounds)
        ]

    def swing(self, name: str) -> float:
        """The slowest ÷ the fastest response of a setting whose steps should all take the same time."""
        seen = [s.ms_per_token for s in self.shots if s.setting == name and s.ms_per_token]
        return max(seen) / min(seen) if seen else 1.0


@dataclass
class Bench:
    """Asks held-out `prompts`. `kept`: a folder for the prompts' state, so that each is
    evaluated once: only where no draft model needs it too."""

    prompts: Sequence[str]
    tokens: int
    folder: Path
    kept: Path | None
    say: Callable[[str], None]
    found: Shots = field(default_factory=Shots)
    rounds: int = 0
    _labs: dict[str, TrialServers] = field(default_factory=dict)
    _ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _saved: set[int] = field(default_factory=set)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops all servers."""
        with ExitStack() as all_of_them:
            for runner in self._labs.values():
                all_of_them.callback(runner.stop)
        self._labs.clear()

    def round(self, settings: Sequence[Setting], asked: Sequence[int]) -> int:
        """Runs the prompts numbered `asked` with each setting. Returns the round's number."""
        number, self.rounds = self.rounds, self.rounds + 1
        up = [s for s in settings if self._started(s)]
        for turn, i in enumerate(asked):
            first = turn * len(up) // max(1, len(asked))
            order = up[first:] + up[:first]
            for setting in order if (turn + number) % 2 == 0 else order[::-1]:
                self._answer(setting, number, i)
        return number

    def _started(self, setting: Setting) -> bool:
        if setting.name in self._labs:
            return self._labs[setting.name].running is not None
        runner = TrialServers(setting.plan, self.folder / f"server-{len(self._labs)}.log")
        self._labs[setting.name] = runner
        try:
            client = runner.start(setting.speculation, lambda: None).client
            warm_up(client, Job(setting.plan.workload.sampling, self.tokens, False))
        except EngineError as e:
            self.say(f"{setting.name}: {e.message}")
            runner.stop()
        return runner.running is not None

    def _answer(self, setting: Setting, number: int, i: int) -> None:
        running = self._labs[setting.name].running
        if running is None:
            return
        client, plan = running.client, setting.plan
        job = Job({**plan.workload.sampling, "seed": 7 + number}, self.tokens, False)
        try:
            prompt = self._question(client, i, plan.target.has_chat_template)
            self._restore(running.plan.settings.url, client, i, prompt, job)
            response = send_request(client, prompt, job, cache=True)
        except EngineError as e:
            self.say(f"{setting.name}: {e.message}")
            self._labs[setting.name].stop()
            return
        self.found.shots.append(
            Shot(setting.name, (number, i), response.ms_per_token, response.tokens)
        )
        self.say(_line(setting.name, i, response))

    def _question(self, client: Client, i: int, chat: bool) -> TokenizedPrompt:
        if i not in self._ids:
            prompt = self.prompts[i]
            self._ids[i] = client.tokenize(client.render(prompt) if chat else prompt)
        return TokenizedPrompt(self.prompts[i], self._ids[i])

    def _restore(self, url: str, client: Client, i: int, prompt: TokenizedPrompt, job: Job) -> None:
        """Restores the prompt's state from another server's file, or evaluates it and writes the file."""
        if self.kept is None:
            return
        if i not in self._saved:
            send_request(client, prompt, job, tokens=1)
            self._saved.add(i)
            _slot(url, "save", i)
        else:
            _slot(url, "restore", i)


def _slot(url: str, action: str, i: int) -> None:
    body = {"filename": f"prompt-{i}"}
    with httpx.Client(trust_env=False, timeout=60) as http:
        http.post(f"{url}/slots/0", params={"action": action}, json=body)


def _line(name: str, i: int, response: Response) -> str:
    accepted = f", {response.accepted} of {response.drafted} accepted" if response.drafted else ""
    return (
        f"{name}, prompt {i} ({response.prompt_tokens} evaluated): {response.tokens} tokens at "
        f"{response.ms_per_token:.1f} ms{accepted}"
    )
