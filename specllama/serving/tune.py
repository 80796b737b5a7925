"""serve's tuning: what was measured before, else a short search, then the plan that follows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from specllama.planning.plan import Plan
from specllama.serving.lab import Lab
from specllama.serving.launch import LaunchFailed
from specllama.serving.scope import Scope, candidates, combinations, held, subject, task, worth
from specllama.serving.stop import stop_on_signals
from specllama.tuning import results
from specllama.tuning.arms import Progress, Tuned
from specllama.tuning.errors import TuningError
from specllama.tuning.results import Result, Subject
from specllama.tuning.run import Task
from specllama.tuning.search import Interrupted, tune

# Why a plain server does not start, whatever is tried next.
_LASTING = ("argument", "architecture", "model")

AUTO, OFF, FULL = "auto", "off", "full"


@dataclass(frozen=True)
class Outcome:
    """The plan to serve, and how it came about. `source`: off, none (nothing to tune), cached,
    measured, skipped or failed. `notes` are for the user."""

    plan: Plan
    source: str
    notes: tuple[str, ...] = ()
    tuned: Tuned | None = None
    result: Result | None = None


@dataclass(frozen=True)
class Wanted:
    """How to tune. `force`: serve the fastest way found even when it does not pay."""

    mode: str
    budget: float
    scope: Scope = field(default_factory=Scope)
    force: bool = False


def tuned_plan(plan: Plan, wanted: Wanted, log: Path, progress: Progress) -> Outcome:
    """The plan with the settings that were measured to be fastest.

    Ctrl-C while measuring skips the rest and goes on. Raises Stopped on SIGTERM, EngineError
    when no server of this model can start.
    """
    if wanted.mode == OFF:
        return Outcome(plan, OFF)
    if plan.choice.speculation is None or plan.user.value("--spec-type"):
        return Outcome(plan, "none")
    told, doubts, about = quick_task(plan, wanted)
    known, stale = results.find(about)
    if known is not None and not stale and wanted.mode == AUTO and not wanted.force:
        return Outcome(_applied(plan, known), "cached", (_cached_line(known),), result=known)
    notes = tuple(results.stale_lines(known, stale))
    if not told.candidates:
        because = "; ".join(doubts)
        return Outcome(plan.without_speculation(because), "none", notes)
    try:
        with stop_on_signals(but=("SIGINT",)):
            found = tune(Lab(plan, log), told, progress)
    except Interrupted as e:
        kept = _by(plan, e.partial) if e.partial.arms else plan
        return Outcome(kept, "skipped", (*notes, "tuning skipped"), e.partial)
    except KeyboardInterrupt:
        return Outcome(plan, "skipped", (*notes, "tuning skipped"))
    except TuningError as e:
        why = e.__cause__
        if isinstance(why, LaunchFailed) and why.exit.kind in _LASTING:
            raise why from None
        if isinstance(why, LaunchFailed):  # speculation only needs more
            plan = plan.without_speculation("the server did not start even without it")
        return Outcome(plan, "failed", (*notes, f"not tuned: {e.message}"))
    if not found.arms and not found.complete_enough:
        return Outcome(plan, "failed", (*notes, f"not tuned: {found.reason}"), found)
    results.store(about, found)
    return Outcome(_by(plan, found), "measured", (*notes, *doubts), found)


def as_measured(plan: Plan, wanted: Wanted) -> Plan:
    """The plan by an earlier result, where there is one that is not stale."""
    if wanted.mode != AUTO or wanted.force or plan.choice.speculation is None:
        return plan
    known, stale = results.find(quick_task(plan, wanted)[2])
    return _applied(plan, known) if known is not None and not stale else plan


def quick_task(plan: Plan, wanted: Wanted) -> tuple[Task, tuple[str, ...], Subject]:
    """What serve measures, what it rules out unmeasured with the reason, and what a result
    would be about."""
    scope = held(plan, replace(wanted.scope, everything=wanted.force))
    kept, doubts = worth(plan, scope)
    full = wanted.mode == FULL
    found = candidates(kept)
    if full and not scope.named:
        found += combinations(plan, kept)
    told = task(plan, scope, found, wanted.budget, thorough=full, force=wanted.force)
    return told, doubts, subject(plan, kept, scope)


def _applied(plan: Plan, known: Result) -> Plan:
    if known.speculation is None:
        return plan.without_speculation(known.reason)
    return plan.speculating(known.speculation, f"measured: {known.reason}")


def _by(plan: Plan, found: Tuned) -> Plan:
    if found.best is None or found.best.speculation is None:
        return plan.without_speculation(found.reason)
    return plan.speculating(found.best.speculation, _because(found))


def _because(found: Tuned) -> str:
    return f"measured: {found.reason}"


def _cached_line(known: Result) -> str:
    when = datetime.fromtimestamp(known.when).strftime("%Y-%m-%d %H:%M")
    return f"as measured on {when}; `specllama results` shows and clears it"
