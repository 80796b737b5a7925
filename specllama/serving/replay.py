"""probe --replay: what every setting would have gained on past conversations.

A server without speculation tokenizes them and shows the cost of verification; nothing is
generated again. A draft reads the same tokens in process, if llama-cpp-python is installed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.drafts.agreement import token_matches
from specllama.drafts.inprocess import Continuation, MeasureError, available, offloads
from specllama.drafts.ollama import shown_name
from specllama.engine.client import Client
from specllama.engine.command import NGRAM_SIZE_OPTIONS, check_methods
from specllama.engine.errors import EngineError
from specllama.engine.launch_options import is_number
from specllama.engine.settings import Speculation
from specllama.errors import UsageError
from specllama.serving.probe import PlannedProbe, ProbeOptions, plan_probes
from specllama.serving.trial_servers import TrialServers
from specllama.stop import ALL, stop_on_signals
from specllama.tuning.conversations import Conversations
from specllama.tuning.costs import VerifyCosts, why_no_draft
from specllama.tuning.judge import MIN_SPEEDUP
from specllama.tuning.past import (
    TokenizedConversations,
    measure_verify_costs,
    tokenize_conversations,
)
from specllama.tuning.records import DroppedSetting, NgramSpeedups, Progress, method_label
from specllama.tuning.replayed import (
    DraftGuesses,
    KnownTexts,
    ReplayedSetting,
    best_combined,
    best_draft,
    best_ngram,
    choose_replayed,
    fixed_ngram,
    spec_default,
)
from specllama.tuning.run import TrialCandidate

_COST_SHARE, _DRAFT_SHARE = 0.2, 0.5  # of the budget


@dataclass(frozen=True)
class ConversationReplay:
    """The result. `settings`: the fastest first; `best` None = speculation off. `left_out`: reason →
    number of requests."""

    planned: PlannedProbe
    source: Conversations
    texts: KnownTexts
    costs: VerifyCosts
    settings: tuple[ReplayedSetting, ...]
    ngrams: tuple[NgramSpeedups, ...]
    best: ReplayedSetting | None
    reason: str
    left_out: Mapping[str, int]
    dropped: tuple[DroppedSetting, ...]
    notes: tuple[str, ...]
    seconds: float


def plan_replay(options: ProbeOptions) -> PlannedProbe:
    """What would be replayed. Starts nothing. Raises UsageError for unsupported options."""
    if len(options.spec_options_list) > 1:
        raise UsageError("--replay takes one --workload")
    if options.settings.parallel > 1:
        raise UsageError("--replay models one request at a time: leave out --parallel")
    if options.prompts or options.lengths:
        raise UsageError("--replay cannot be combined with --prompts or --draft-lengths")
    (p,) = plan_probes(options)
    user = p.plan.user
    for name in (*NGRAM_SIZE_OPTIONS, "--spec-type", "--spec-default"):
        if user.value(name) is not None or user.on(name):
            raise UsageError(f"--replay compares all settings: leave out {name} after --")
    if p.task.p_min is not None:
        raise UsageError("--replay has no token probabilities: leave out p-min after --")
    if p.task.hybrid:
        raise UsageError(
            f"{p.plan.target.title} has a recurrent state that cannot be rolled back, so its step "
            "costs cannot be measured without speculation",
            "Use `specllama probe` without --replay.",
        )
    return p


def replay_conversations(
    options: ProbeOptions, source: Conversations, log: Path, progress: Progress
) -> ConversationReplay:
    """The whole result. Raises TuningError or EngineError if the baseline server cannot be measured
    or returns no tokens."""
    p = plan_replay(options)
    work = _ReplayRun(p, options.budget, progress)
    runner = TrialServers(p.plan, log)
    try:
        with stop_on_signals(ALL):
            work.say("loading the model")
            served = runner.start(None, lambda: work.say("loading the model"))
            past = work.read_conversations(served.client, source)
            texts = past.texts
            work.say("measuring the cost of verification")
            seconds = _COST_SHARE * work.budget
            costs = measure_verify_costs(served.client, p.task, texts, seconds, work.say)
    except EngineError as e:
        raise runner.blame(e) from None
    finally:
        runner.stop()
    _replay_ngrams(work, texts, costs)
    _replay_drafts(work, texts, costs)
    best, reason = choose_replayed(work.settings, costs)
    ordered = sorted(work.settings, key=lambda s: -s.ratios.value)
    return ConversationReplay(
        p, source, texts, costs, tuple(ordered), tuple(work.ngrams), best, reason, past.left_out,
        tuple(work.dropped), tuple(work.notes), time.monotonic() - work.started,
    )  # fmt: skip


@dataclass
class _ReplayRun:
    """The results so far."""

    planned: PlannedProbe
    budget: float
    progress: Progress
    started: float = field(default_factory=time.monotonic)
    settings: list[ReplayedSetting] = field(default_factory=list)
    ngrams: list[NgramSpeedups] = field(default_factory=list)
    dropped: list[DroppedSetting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def say(self, text: str = "") -> None:
        spent = time.monotonic() - self.started
        self.progress.step(text, min(1.0, spent / self.budget), max(0.0, self.budget - spent))

    def read_conversations(self, client: Client, source: Conversations) -> TokenizedConversations:
        self.say("tokenizing the conversations")
        v = self.planned.plan.target.vocabulary
        end = (v.eot_id if v.eot_id >= 0 else v.eos_id) if v is not None else -1
        past = tokenize_conversations(client, self.planned.task, source, end, self.say)
        if past.refused:
            self.notes.append(f"rejected by the server, first reason: {past.refused}")
        return past

    def add_setting(self, setting: ReplayedSetting | None) -> ReplayedSetting | None:
        if setting is not None and len(setting.ratios):
            self.settings.append(setting)
        return setting


def _replay_ngrams(work: _ReplayRun, texts: KnownTexts, costs: VerifyCosts) -> None:
    """Every n-gram type alone, and the settings they are compared with."""
    plan, task = work.planned.plan, work.planned.task
    for spec in task.ngrams:
        work.say(f"replaying {spec.methods[0]}")
        setting, speeds = best_ngram(spec, texts, costs, may_win=task.drafts_alone)
        work.add_setting(setting)
        work.ngrams.append(speeds)
    available_types = {s.methods[0] for s in task.ngrams}
    if "ngram-cache" not in available_types and not check_methods(
        plan.capabilities, ["ngram-cache"]
    ):
        cache = Speculation(("ngram-cache",))
        work.add_setting(best_ngram(cache, texts, costs, may_win=False)[0])
    order = [m for m in plan.workload.methods if m in available_types] or sorted(available_types)
    for method in order[:1]:
        spec = Speculation((method,), ngram=plan.workload.ngram)
        work.add_setting(fixed_ngram(spec, texts, costs, "the profile's sizes"))
    if not check_methods(plan.capabilities, ["ngram-mod"]):
        work.add_setting(spec_default(texts, costs))


def _replay_drafts(work: _ReplayRun, texts: KnownTexts, costs: VerifyCosts) -> None:
    """Every draft alone, and with the n-gram type that would have gained most."""
    task, spec_options = work.planned.task, work.planned.spec_options
    named = spec_options.draft is not None or spec_options.method is not None
    able: list[TrialCandidate] = []
    for c in task.candidates:
        name = method_label(c.speculation)
        own = c.cost * costs.plain_step.ms
        if c.speculation.methods != ("draft-simple",):
            work.dropped.append(
                DroppedSetting(name, "a head needs a running server: use probe without --replay")
            )
        elif not named and (reason := why_no_draft(costs, own, c.longest, MIN_SPEEDUP, c.one_pass)):
            work.dropped.append(DroppedSetting(name, reason))
        elif not available():
            reason = "needs llama-cpp-python: pip install llama-cpp-python"
            work.dropped.append(DroppedSetting(name, reason))
        else:
            able.append(c)
    for c in able:
        until = time.monotonic() + _DRAFT_SHARE * work.budget / len(able)
        file = c.speculation.draft
        work.say(f"running {shown_name(file) if file is not None else 'it'} over the responses")
        try:
            found = _draft_guesses(work, c, texts, costs, until)
        except MeasureError as e:
            work.dropped.append(DroppedSetting(method_label(c.speculation), e.message))
            continue
        some = texts.first(len(found.agrees))
        if len(some.texts) < len(texts.texts):
            work.notes.append(
                f"{method_label(c.speculation)} covered only the first {len(some.texts)} responses: "
                "raise --budget for more"
            )
        _predict(work, found, some, costs)


def _draft_guesses(
    work: _ReplayRun, c: TrialCandidate, texts: KnownTexts, costs: VerifyCosts, until: float
) -> DraftGuesses:
    plan = work.planned.plan
    assert c.speculation.draft is not None
    given = plan.user.value("--threads") or ""
    threads = int(given) if is_number(given) and int(given) else None
    responses = [Continuation(k.prompt, k.response) for k in texts.texts]
    agrees, passes = token_matches(c.speculation.draft, responses, c.longest + 1, threads, until)
    gpus = plan.budget.request.machine.gpus if plan.budget is not None else ()
    reason = "" if passes else "it cannot roll back single tokens"
    if gpus and not offloads():
        passes, reason = None, "this llama-cpp-python has no GPU support"
    if passes is None:
        passes = (c.cost * costs.plain_step.ms,)
        work.notes.append(
            f"{method_label(c.speculation)}: cost estimated from file sizes, not measured ({reason})"
        )
        return DraftGuesses(c, agrees, passes, timed=False)
    return DraftGuesses(c, agrees, passes, timed=True)


def _predict(work: _ReplayRun, found: DraftGuesses, texts: KnownTexts, costs: VerifyCosts) -> None:
    task, c = work.planned.task, found.candidate
    lengths = [k for k in range(1, c.longest + 1) if not task.lengths or k in task.lengths]
    alone = work.add_setting(best_draft(found, texts, costs, lengths, task.drafts_alone))
    if alone is None:
        work.dropped.append(
            DroppedSetting(method_label(c.speculation), "no draft length has a known cost")
        )
        return
    ngram = _best_ngram(work.ngrams, task.ngrams)
    if ngram is not None:
        work.say(f"replaying {ngram.methods[0]} with {alone.name}")
        both, speeds = best_combined(ngram, alone.speculation, found, texts, costs)
        work.add_setting(both)
        work.ngrams.append(speeds)


def _best_ngram(maps: Sequence[NgramSpeedups], types: Sequence[Speculation]) -> Speculation | None:
    """The n-gram type that gains most alone."""
    speed = {m.method: max(m.speedups.values(), default=0.0) for m in maps if not m.draft}
    able = [s for s in types if s.methods[0] in speed]
    return max(able, key=lambda s: speed[s.methods[0]], default=None)
