"""One search's state: what is wanted, the time that is left, the prompts that are left."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specllama.engine.client import Prompt
from specllama.engine.settings import Speculation
from specllama.tuning.arms import (
    Arm,
    Dropped,
    NgramMap,
    Plain,
    Prediction,
    Progress,
    Served,
    ServerRunner,
    Trial,
)
from specllama.tuning.measure import Answer, Job, TokenizedPrompt
from specllama.tuning.statistics import TimeSplit

MOST_K = 8  # where neither the file nor the cost curve says another limit
SERVE_LOADS = 4  # of the target, until it serves
# Tokens of an answer: so that it takes this share of the budget, this many at least. Copies
# come late in an answer, so n-gram sizes are better chosen from few long ones (0.94 of the best
# is kept with 64 tokens, 0.85 with 30); a draft's acceptance from many short ones.
_COPIES_SHARE, _DRAFTS_SHARE, _LEAST_TOKENS = 0.09, 0.05, 24
_PROMPT_SHARE = 0.5  # of an answer's time that evaluating its prompt may take
_FEW = 3  # answers that a launch is worth at least


@dataclass(frozen=True)
class TrialCandidate:
    """A draft to try. `longest`: the largest K its files and memory allow; `cost`: one pass of
    it as a share of the target's, by bytes; `once`: a block is one pass; `trained`: tokens of
    the context it was trained on, 0 = not shorter than the target's."""

    speculation: Speculation
    longest: int = MOST_K
    cost: float = 0.0
    once: bool = False
    trained: int = 0


# The draft's own pass shows in the log where a draft of k tokens takes k passes.
_BY_TOKEN = ("draft-simple", "draft-mtp")
_LEAST_DRAFTED = 8


def own_pass(
    candidate: TrialCandidate | None, split: TimeSplit, step_ms: float, share: float | None = None
) -> float:
    """ms of one pass of the draft over one token, of a step without a draft that takes
    `step_ms` with it: from the server's log where that says it, else the `share` of the step
    that another launch showed, else by its bytes."""
    if candidate is None:
        return 0.0
    for name, spent in split.methods.items():
        if name in _BY_TOKEN and spent.drafted >= _LEAST_DRAFTED:
            return min(spent.ms / spent.drafted, step_ms / 2)
    return step_ms * (candidate.cost / (1 + candidate.cost) if share is None else share)


def only_the_log_tells(candidate: TrialCandidate | None) -> bool:
    """Whether a server's log knows better than its bytes what a pass of this draft takes."""
    return candidate is not None and bool(set(candidate.speculation.methods) & set(_BY_TOKEN))


@dataclass(frozen=True)
class Task:
    """What is to be found. `chat`: prompts go through the chat endpoint. `candidates`: drafts,
    the best prior first. `ngrams`: the n-gram types to predict, each with what it is launched
    with; `fixed`: their sizes are the user's, so that only those are tried. `copies_alone`,
    `drafts_alone`: whether n-grams without a draft, and drafts without n-grams, may win. `budget`: seconds of wall time, loading included. `loads`: the most
    launches; `thorough`: p_min and a long prompt are tried too; `everything`: drafts are launched
    that cannot pay here; `force`: the best way is taken
    however slow. `lengths`: only these K (empty = all); `p_min`: only this (None = any).
    `by_request`: requests say their K, and answers do not show their steps. `output_share`: of
    the output matrix in the bytes of a pass. `context`: tokens of a slot. `answer`: the most
    tokens of one."""

    workload: str
    prompts: tuple[Prompt, ...]
    sampling: Mapping[str, Any]
    chat: bool
    candidates: tuple[TrialCandidate, ...] = ()
    ngrams: tuple[Speculation, ...] = ()
    fixed: bool = False
    copies_alone: bool = True
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
    answer: int = 192


@dataclass
class Run:
    """The state of one search. `waiting`: prompts not asked yet, of which the first are quick
    to evaluate; `asked`: those that were, to be used again when none is left; `greedy`: those
    whose answers at temperature 0 are compared. `tokens` of an answer; `prompt_ms` to evaluate
    a token of a prompt. `cut`: why the search ended early. `drafts_to_come` after the one that is
    tried, where all of them are."""

    runner: ServerRunner
    task: Task
    progress: Progress
    started: float = field(default_factory=lambda: time.monotonic())
    loads: int = 0
    load_s: float = 0.0
    tokens: int = _LEAST_TOKENS
    prompt_ms: float = 0.0
    plain: Plain | None = None
    waiting: list[TokenizedPrompt] = field(default_factory=list)
    asked: list[TokenizedPrompt] = field(default_factory=list)
    greedy: list[TokenizedPrompt] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    maps: list[NgramMap] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    cut: str = ""
    drafts_to_come: int = 0

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.task.budget - self.spent

    @property
    def for_this_draft(self) -> float:
        """Seconds of the budget that the draft being tried may count with: the ones to come are to
        have as much."""
        return max(0.0, self.left) / (1 + self.drafts_to_come)

    @property
    def too_many(self) -> str:
        return f"not more than {self.task.loads} loads before serving"

    @property
    def step_ms(self) -> float:
        """A plain step with its part of evaluating a prompt; 0 where it is not known yet."""
        if self.plain is None:
            return 0.0
        return (1 + _PROMPT_SHARE / 2) * self.plain.costs.plain.ms

    def needs(self, loads: int) -> float:
        """Seconds that so many launches with a few short answers each take."""
        return loads * (self.load_s + _FEW * _LEAST_TOKENS * self.step_ms / 1000)

    def shorten(self, seconds: float, answers: int) -> None:
        """Makes answers so short that so many of them fit into the time."""
        if self.step_ms and math.isfinite(seconds):
            fitting = int(seconds / answers * 1000 / self.step_ms)
            self.tokens = max(_LEAST_TOKENS, min(self.tokens, fitting))

    def say(self, text: str = "") -> None:
        share = min(1.0, self.spent / max(0.001, self.task.budget))
        self.progress.step(text, share, max(0.0, self.left))

    def start(self, spec: Speculation | None, trace: bool = False) -> Served:
        """A launch, in place of the server that was up."""
        before = time.monotonic()
        served = self.runner.start(spec, self.say, trace)
        self.loads += 1  # one that does not start leaves nothing to wait for
        self.load_s = max(self.load_s, time.monotonic() - before)
        return served

    def drop(self, what: str, why: str, crashed: bool = False) -> None:
        self.dropped.append(Dropped(what, why, crashed))

    def job(self, seconds: float = float("inf")) -> Job:
        """How questions are asked, for so many seconds from now."""
        task = self.task
        return Job(task.sampling, self.tokens, task.chat, time.monotonic() + seconds, tick=self.say)

    def ready(
        self,
        questions: Sequence[TokenizedPrompt],
        first: Answer,
        prompt_ms: float = 0.0,
        used: int = 0,
    ) -> None:
        """The prompts in the order they are to be asked: those that this machine evaluates in
        a share of an answer's time as they stand, then the others, the shortest first. `first`:
        an answer that shows how fast it is; `prompt_ms`: to evaluate a token of a prompt, where
        that is known better; `used`: so many were asked at an earlier start."""
        step_ms = first.ms_per_token or first.ms / max(1, first.tokens - 1) or 1.0
        ms_per_token = prompt_ms or first.prompt_ms / max(1, first.prompt_tokens)
        self.prompt_ms = ms_per_token
        budget_ms = self.task.budget * 1000
        copies = self.task.ngrams and self.task.copies_alone
        share = _COPIES_SHARE if copies else _DRAFTS_SHARE
        wanted = share * budget_ms / max(0.01, step_ms)
        self.tokens = int(max(_LEAST_TOKENS, min(self.task.answer, wanted)))
        room = self.task.context - self.tokens - 8 if self.task.context else 10**9
        fit = [q for q in questions if len(q.ids) <= room] or list(questions)[:1]
        most = _PROMPT_SHARE * self.tokens * step_ms / max(1e-6, ms_per_token)
        quick = [q for q in fit if len(q.ids) <= most]
        slow = sorted((q for q in fit if len(q.ids) > most), key=lambda q: len(q.ids))
        in_order = quick + slow
        self.asked = in_order[: used % len(in_order)]
        self.waiting = in_order[len(self.asked) :]

    def next_question(self) -> TokenizedPrompt:
        """A prompt that was not asked yet; when none is left, the one asked longest ago, under a
        number of its own (so without its ids): what a server saw before it drafts too well."""
        if self.waiting:
            question = self.waiting.pop(0)
        else:
            old = self.asked.pop(0)
            question = replace(old, ids=(), again=old.again + 1)
        self.asked.append(question)
        return question

    @property
    def fresh(self) -> bool:
        """Whether a prompt is left that was not asked yet."""
        return bool(self.waiting)
