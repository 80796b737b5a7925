"""State of one search: the task, the remaining time, the remaining prompts."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specllama.drafts.acceptance import LONGEST_K
from specllama.engine.client import Ids, Prompt
from specllama.engine.settings import Speculation
from specllama.tuning.measure import Job, Response, TokenizedPrompt
from specllama.tuning.records import (
    Baseline,
    Confirmation,
    DroppedSetting,
    NgramSpeedups,
    Prediction,
    Progress,
    RunningServer,
    ServerRunner,
    Trial,
    setting_label,
)
from specllama.tuning.statistics import TimeSplit

SERVE_LOADS = 4  # of the target, until it serves
# Length of a response: this share of the budget, with a minimum in tokens. Text repeats late in a
# response, so n-gram sizes are best chosen from few long ones (0.94 of the best speed with 64
# tokens, 0.85 with 30); a draft's acceptance is best measured on many short ones.
_NGRAMS_SHARE, _DRAFTS_SHARE, _MIN_TOKENS = 0.09, 0.05, 24
_PROMPT_SHARE = 0.5  # of a response's time that evaluating its prompt may take
_FEW = 3  # responses: a launch is not worth it for fewer


@dataclass(frozen=True)
class TrialCandidate:
    """A draft to try. `longest`: the largest K that its files and memory allow; `cost`: one pass
    of it as a share of the target's, by bytes; `one_pass`: it drafts a block in one pass;
    `trained`: context length it was trained on, 0 = at least the target's."""

    speculation: Speculation
    longest: int = LONGEST_K
    cost: float = 0.0
    one_pass: bool = False
    trained: int = 0


# Methods that take k passes for k drafted tokens: the log shows the time of a pass.
_BY_TOKEN = ("draft-simple", "draft-mtp")
_MIN_DRAFTED = 8


def own_pass(
    candidate: TrialCandidate | None, split: TimeSplit, step_ms: float, share: float | None = None
) -> float:
    """ms of one pass of the draft over one token, within a step without a draft that takes
    `step_ms` in total: from the server's log if it has it, else the `share` of the step from
    another launch, else by bytes."""
    if candidate is None:
        return 0.0
    for name, spent in split.methods.items():
        if name in _BY_TOKEN and spent.drafted >= _MIN_DRAFTED:
            return min(spent.ms / spent.drafted, step_ms / 2)
    return step_ms * (candidate.cost / (1 + candidate.cost) if share is None else share)


def log_has_pass_time(candidate: TrialCandidate | None) -> bool:
    """Whether the server's log shows the time of a pass of this draft (better than its bytes)."""
    return candidate is not None and bool(set(candidate.speculation.methods) & set(_BY_TOKEN))


@dataclass(frozen=True)
class Task:
    """What to search for. `chat`: prompts go through the chat endpoint. `candidates`: drafts, best
    first. `ngrams`: the n-gram methods to predict; `fixed`: only with the sizes given there.
    `ngrams_alone`, `drafts_alone`: whether n-grams without a draft, and drafts without n-grams,
    may win. `budget`: seconds of wall time, loading included. `loads`: maximum number of
    launches; `thorough`: also try p_min and a long prompt; `everything`: also launch drafts that
    cannot pay off; `force`: serve the best setting even if it is slower. `lengths`: only these K
    (empty = all); `p_min`: only this value (None = any). `by_request`: K is set per request, and
    responses do not report steps. `output_share`: share of the output matrix in the bytes of a
    pass. `context`: tokens of a slot. `max_tokens`: maximum tokens of a response."""

    workload: str
    prompts: tuple[Prompt, ...]
    sampling: Mapping[str, Any]
    chat: bool
    candidates: tuple[TrialCandidate, ...] = ()
    ngrams: tuple[Speculation, ...] = ()
    fixed: bool = False
    ngrams_alone: bool = True
    drafts_alone: bool = True
    budget: float = 60.0
    loads: int = SERVE_LOADS
    thorough: bool = False
    everything: bool = False
    force: bool = False
    lengths: tuple[int, ...] = ()
    p_min: float | None = None
    slots: int = 1
    hybrid: bool = False
    by_request: bool = False
    output_share: float = 0.0
    context: int = 0
    max_tokens: int = 192


@dataclass
class Run:
    """The state of one search. `unused_prompts`: those that are quick to evaluate come first;
    `used_prompts`: sent already, reused when no other is left; `greedy`: prompts whose responses
    at temperature 0 are compared. `tokens` per response; `prompt_ms` per prompt token.
    `batch_ms`: batch size → ms of each measured batch. `stop_reason`: why the search ended early.
    `drafts_to_come`: after the current one, if all are tried."""

    runner: ServerRunner
    task: Task
    progress: Progress
    started: float = field(default_factory=lambda: time.monotonic())
    loads: int = 0
    load_s: float = 0.0
    tokens: int = _MIN_TOKENS
    prompt_ms: float = 0.0
    baseline: Baseline | None = None
    batch_ms: dict[int, list[float]] = field(default_factory=dict)
    unused_prompts: list[TokenizedPrompt] = field(default_factory=list)
    used_prompts: list[TokenizedPrompt] = field(default_factory=list)
    greedy: list[TokenizedPrompt] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    ngrams: list[NgramSpeedups] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)
    dropped: list[DroppedSetting] = field(default_factory=list)
    stop_reason: str = ""
    drafts_to_come: int = 0

    @property
    def seconds_spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float:
        """Seconds of the budget."""
        return self.task.budget - self.seconds_spent

    @property
    def seconds_for_draft(self) -> float:
        """Seconds of the budget for the current draft: the ones to come get as much."""
        return max(0.0, self.seconds_left) / (1 + self.drafts_to_come)

    @property
    def step_ms(self) -> float:
        """A plain step with its share of evaluating a prompt; 0 if unknown yet."""
        if self.baseline is None:
            return 0.0
        return (1 + _PROMPT_SHARE / 2) * self.baseline.costs.plain_step.ms

    def needs(self, loads: int) -> float:
        """Seconds for that many launches with a few short responses each."""
        return loads * (self.load_s + _FEW * _MIN_TOKENS * self.step_ms / 1000)

    def shorten(self, seconds: float, responses: int) -> None:
        """Shortens responses so that this many fit into the time."""
        if self.step_ms and math.isfinite(seconds):
            fitting = int(seconds / responses * 1000 / self.step_ms)
            self.tokens = max(_MIN_TOKENS, min(self.tokens, fitting))

    def report(self, text: str = "") -> None:
        share = min(1.0, self.seconds_spent / max(0.001, self.task.budget))
        self.progress.step(text, share, max(0.0, self.seconds_left))

    def start(self, spec: Speculation | None, trace: bool = False) -> RunningServer:
        """Launches a server in place of the running one."""
        before = time.monotonic()
        served = self.runner.start(spec, self.report, trace)
        self.loads += 1  # one that does not start costs no time later
        self.load_s = max(self.load_s, time.monotonic() - before)
        return served

    def drop(self, what: str, reason: str, crashed: bool = False) -> None:
        self.dropped.append(DroppedSetting(what, reason, crashed))

    def drop_predicted(self, p: Prediction) -> None:
        """Drops a setting because of its prediction."""
        value = p.ratios.value
        reason = f"{value:.2f}x predicted ({p.source})"
        self.dropped.append(DroppedSetting(setting_label(p.speculation), reason, predicted=value))

    def job(self, seconds: float = float("inf")) -> Job:
        """How to send requests, for this many seconds from now."""
        task = self.task
        return Job(
            task.sampling, self.tokens, task.chat, time.monotonic() + seconds, tick=self.report
        )

    def set_prompts(
        self,
        prompts: Sequence[TokenizedPrompt],
        first: Response,
        prompt_ms: float = 0.0,
        used: int = 0,
    ) -> None:
        """Sets the order of the prompts: those that this machine evaluates in a share of a
        response's time as given, then the others, shortest first. `first`: a response that shows
        its speed; `prompt_ms`: per prompt token, if known better; `used`: number of prompts used
        at an earlier start."""
        step_ms = first.ms_per_token or first.ms / max(1, first.tokens - 1) or 1.0
        ms_per_token = prompt_ms or first.prompt_ms / max(1, first.prompt_tokens)
        self.prompt_ms = ms_per_token
        budget_ms = self.task.budget * 1000
        ngrams_alone = self.task.ngrams and self.task.ngrams_alone
        share = _NGRAMS_SHARE if ngrams_alone else _DRAFTS_SHARE
        affordable = share * budget_ms / max(0.01, step_ms)
        self.tokens = int(max(_MIN_TOKENS, min(self.task.max_tokens, affordable)))
        room = self.task.context - self.tokens - 8 if self.task.context else 10**9
        fit = [q for q in prompts if len(q.ids) <= room] or list(prompts)[:1]
        most = _PROMPT_SHARE * self.tokens * step_ms / max(1e-6, ms_per_token)
        quick = [q for q in fit if len(q.ids) <= most]
        slow = sorted((q for q in fit if len(q.ids) > most), key=lambda q: len(q.ids))
        in_order = quick + slow
        self.used_prompts = in_order[: used % len(in_order)]
        self.unused_prompts = in_order[len(self.used_prompts) :]

    def next_prompt(self) -> TokenizedPrompt:
        """An unused prompt; if none is left, the least recently used one with a number in front
        (so without its ids), since a server drafts a known prompt too well."""
        if self.unused_prompts:
            prompt = self.unused_prompts.pop(0)
        else:
            old = self.used_prompts.pop(0)
            prompt = replace(old, ids=(), repeats=old.repeats + 1)
        self.used_prompts.append(prompt)
        return prompt

    @property
    def has_unused_prompts(self) -> bool:
        """Whether an unused prompt is left."""
        return bool(self.unused_prompts)

    def reuse_prompts(self, chose: Collection[Ids]) -> None:
        """Makes the prompts of earlier servers available again, after those never used, for a
        server that has seen none of them. `chose`: the prompts that chose its setting stay used."""
        again = [q for q in self.used_prompts if q.ids and not q.repeats and q.ids not in chose]
        self.used_prompts = [q for q in self.used_prompts if q not in again]
        self.unused_prompts += again
