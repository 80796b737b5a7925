"""serve's tuning: a stored result, or else a short search, then the plan that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specllama.engine.client import Prompt
from specllama.engine.settings import Speculation
from specllama.planning.plan import Plan
from specllama.serving.launch import Launch, LaunchFailed, record_memory
from specllama.serving.past_traffic import apply_past_traffic, predict_from_traffic
from specllama.serving.real_requests import TuningReference
from specllama.serving.result_keys import result_subject
from specllama.serving.scope import (
    SearchScope,
    make_task,
    sets_own_types,
    with_fixed_values,
    worthwhile_drafts,
)
from specllama.serving.trial_servers import TrialServers
from specllama.stop import INTERRUPT, stop_on_signals
from specllama.tuning import results
from specllama.tuning.errors import TuningError
from specllama.tuning.other_options import closest_result_line
from specllama.tuning.records import (
    CRASHED,
    OPEN,
    Prediction,
    Progress,
    TuningResult,
    setting_label,
)
from specllama.tuning.results import Result, Subject
from specllama.tuning.run import Task
from specllama.tuning.search import Interrupted, OpenResult, tune
from specllama.tuning.step_times import step_times

_FEW_PROMPTS = 5

_UNMEASURED = "skipped: serving the chosen settings without measuring whether they pay off"

AUTO, OFF, FULL = "auto", "off", "full"


@dataclass(frozen=True)
class TuningOutcome:
    """The plan to serve, and where it comes from. `source`: off, none (nothing to tune), cached,
    measured, skipped or failed. `notes` are for the user. `running`: its server, if it is up
    already."""

    plan: Plan
    source: str
    notes: tuple[str, ...] = ()
    tuned: TuningResult | None = None
    result: Result | None = None
    running: Launch | None = None


@dataclass(frozen=True)
class TuningOptions:
    """How to tune. `force`: serve the fastest setting even if it is slower than the baseline;
    `prompts`: the user's own, replacing the workload's."""

    mode: str
    budget: float
    scope: SearchScope = field(default_factory=SearchScope)
    force: bool = False
    prompts: tuple[Prompt, ...] = ()


def tune_plan(plan: Plan, options: TuningOptions, log: Path, progress: Progress) -> TuningOutcome:
    """The plan with the settings that were fastest when measured.

    Ctrl-C while measuring skips the rest. Raises Stopped on a second one and on SIGTERM,
    EngineError if no server of this model starts.
    """
    if options.mode == OFF:
        return TuningOutcome(plan, OFF)
    if plan.choice.speculation is None or sets_own_types(plan):
        return TuningOutcome(plan, "none")
    task, doubts, subject = serve_task(plan, options)
    stored, stale = results.find(subject)
    if stored is not None and not stale and _is_final(stored, options):
        scope, measured = with_fixed_values(plan, options.scope), _with_result(plan, stored)
        served, more = apply_past_traffic(plan, measured, scope, stored.times)
        return TuningOutcome(served, "cached", (cached_line(stored), *more), result=stored)
    if not task.candidates and not task.ngrams:
        because = "; ".join(doubts)
        return TuningOutcome(plan.without_speculation(because), "none", doubts)
    unused = closest_result_line(subject) if stored is None else results.stale_lines(stored, stale)
    notes = (*unused, *doubts, *few_prompts_note(options.prompts))
    earlier = None
    continues = options.mode == AUTO and not options.force
    if stored is not None and not stale and continues:  # open, or its server crashed
        notes += tuple(_open_lines(stored))
        earlier = stored.open_result
    prior = None
    if continues:
        prior, more = predict_from_traffic(plan, with_fixed_values(plan, options.scope))
        notes += more
    runner = TrialServers(plan, log, final=True)
    try:
        out = _search(plan, task, runner, progress, earlier, prior, notes)
        known = out.tuned is not None and (out.source == "measured" or out.tuned.state == OPEN)
        if known and out.tuned is not None and not results.store(subject, out.tuned):
            out = replace(out, notes=(*out.notes, results.UNSAVED))
        if options.force and out.tuned is not None and out.tuned.best is None:
            note = f"{out.tuned.reason}; used anyway because of --force"
            out = replace(out, plan=plan, notes=(*out.notes, note))
        running = runner.hand_over(out.plan)
        if running is not None:
            record_memory(running)
        return replace(out, running=running)
    finally:
        runner.stop()


def _search(
    plan: Plan,
    task: Task,
    runner: TrialServers,
    progress: Progress,
    earlier: OpenResult | None,
    prior: Prediction | None,
    notes: Sequence[str],
) -> TuningOutcome:
    try:
        with stop_on_signals(INTERRUPT):
            found = tune(runner, task, progress, earlier, prior)
    except Interrupted as e:
        if e.partial.confirmations:  # a setting that was not confirmed is not served
            return TuningOutcome(
                _with_tuned(plan, e.partial), "skipped", (*notes, "skipped"), e.partial
            )
        return TuningOutcome(plan, "skipped", (*notes, _UNMEASURED))
    except KeyboardInterrupt:
        return TuningOutcome(plan, "skipped", (*notes, _UNMEASURED))
    except TuningError as e:
        reason = e.__cause__
        if isinstance(reason, LaunchFailed) and reason.exit.lasting:
            raise reason from None
        if isinstance(reason, LaunchFailed):  # speculation only needs more memory
            plan = plan.without_speculation("the server did not start even without speculation")
        return TuningOutcome(plan, "failed", (*notes, f"measurement failed: {e.message}"))
    return TuningOutcome(_with_tuned(plan, found), "measured", tuple(notes), found)


def _is_final(stored: Result, options: TuningOptions) -> bool:
    """Whether a stored result is final: neither open nor from a server that crashed."""
    asks_anew = options.mode != AUTO or options.force
    return not asks_anew and stored.state not in (OPEN, CRASHED)


def few_prompts_note(prompts: Sequence[Prompt]) -> Sequence[str]:
    """A note that a handful of prompts represents little."""
    if not 0 < len(prompts) < _FEW_PROMPTS:
        return ()
    count = "1 prompt is" if len(prompts) == 1 else f"{len(prompts)} prompts are"
    return (f"{count} too few to represent your workload: use {_FEW_PROMPTS} or more",)


def apply_stored_result(plan: Plan, options: TuningOptions) -> tuple[Plan, Result | None]:
    """The plan with a stored result, and the result; the plan unchanged and None if there is no
    valid one."""
    if options.mode != AUTO or plan.choice.speculation is None or sets_own_types(plan):
        return plan, None
    stored, stale = results.find(serve_task(plan, options)[2])
    if stored is None or stale or not _is_final(stored, options):
        return plan, None
    return _with_result(plan, stored), stored


def unfinished_result(plan: Plan, options: TuningOptions) -> Result | None:
    """A stored result that is not stale but decided nothing yet: serve goes on with it."""
    if options.mode != AUTO or plan.choice.speculation is None or sets_own_types(plan):
        return None
    stored, stale = results.find(serve_task(plan, options)[2])
    return stored if stored is not None and not stale and not _is_final(stored, options) else None


def would_measure(plan: Plan, options: TuningOptions) -> bool:
    """Whether serve measures before it serves."""
    if options.mode == OFF or plan.choice.speculation is None or sets_own_types(plan):
        return False
    task, _, subject = serve_task(plan, options)
    stored, stale = results.find(subject)
    if stored is not None and not stale and _is_final(stored, options):
        return False
    return bool(task.candidates or task.ngrams)


def serve_task(plan: Plan, options: TuningOptions) -> tuple[Task, tuple[str, ...], Subject]:
    """What serve measures, why the rest is ruled out, and what the result is stored under."""
    scope = with_fixed_values(plan, replace(options.scope, everything=options.force))
    drafts, doubts = worthwhile_drafts(plan, scope)
    task = make_task(
        plan,
        scope,
        drafts,
        options.budget,
        thorough=options.mode == FULL,
        force=options.force,
        prompts=options.prompts,
    )
    subject = result_subject(plan, drafts, replace(scope, everything=False), options.prompts)
    return task, doubts, subject


def _with_result(plan: Plan, stored: Result) -> Plan:
    if stored.speculation is None:
        return plan.without_speculation(stored.reason)
    placed = _with_current_placement(plan, stored.speculation)
    return plan.with_speculation(placed, _measured(stored.speculation, stored.reason))


def _measured(spec: Speculation, reason: str) -> str:
    """The result as the reason for `spec`, without its name, which is next to it."""
    name = f"{setting_label(spec)} is "
    return (
        f"measured at {reason.removeprefix(name)}"
        if reason.startswith(name)
        else f"measured: {reason}"
    )


def _with_current_placement(plan: Plan, spec: Speculation) -> Speculation:
    """The measured settings, with the draft's layers and cache type that fit now."""
    choice = plan.choice
    for s in (choice.speculation, *(a.speculation for a in choice.all_alternatives)):
        if s is not None and s.draft == spec.draft and s.uses_draft == spec.uses_draft:
            return replace(spec, draft_layers=s.draft_layers, cache_type=s.cache_type)
    return spec


def _with_tuned(plan: Plan, found: TuningResult) -> Plan:
    if found.best is None:
        return plan.without_speculation(found.reason)
    return plan.with_speculation(
        found.best.speculation, _measured(found.best.speculation, found.reason)
    )


def cached_line(stored: Result) -> str:
    """That the settings come from a saved result, and its time."""
    return f"measured on {results.format_time(stored.when)}; `specllama results` shows or clears it"


def _open_lines(stored: Result) -> Sequence[str]:
    if stored.state == CRASHED:
        return [f"{stored.reason} ({results.format_time(stored.when)}); retrying"]
    verb = "continuing" if stored.open_result.predictions else "restarting"
    return [
        f"{verb} the unfinished run of {results.format_time(stored.when)} ({stored.texts} prompts)"
    ]


def tuning_reference(outcome: TuningOutcome) -> TuningReference:
    """What this tuning run or an earlier one measured about the served settings."""
    spec = outcome.plan.settings.speculation
    if outcome.tuned is not None:
        best = outcome.tuned.best
        same = best is not None and best.speculation == spec
        return TuningReference(
            step_times(outcome.tuned),
            best.measurement.alpha if same and best is not None else None,
            best.speedup.value if same and best is not None else None,
        )
    if (known := outcome.result) is None:
        return TuningReference()
    tried = known.tried if known.tried and known.tried.speculation == spec else None
    value = known.speedup[0] if known.speedup and tried is not None else None
    return TuningReference(known.times, tried.alpha if tried is not None else None, value)
