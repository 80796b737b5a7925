"""serve's tuning: what was measured before, else a short search, then the plan that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from specllama.engine.command import check_methods
from specllama.memory.nvml import driver
from specllama.planning.plan import Plan
from specllama.planning.ways import Way, ways
from specllama.serving.lab import Lab
from specllama.serving.stop import stop_on_signals
from specllama.tuning import results
from specllama.tuning.arms import Progress, Tuned
from specllama.tuning.errors import TuningError
from specllama.tuning.results import Result, Subject
from specllama.tuning.run import Candidate, Task
from specllama.tuning.search import Interrupted, tune

AUTO, OFF, FULL = "auto", "off", "full"
# Arguments that change neither speed nor acceptance.
_IRRELEVANT = {"--host", "--port", "--api-key", "--metrics", "--slots", "--log-file", "--alias"}


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
    """How to tune. `named`: the user chose draft or method, so that nothing is ruled out
    unmeasured. `force`: serve the fastest way found even when it does not pay."""

    mode: str
    budget: float
    named: bool
    force: bool = False


def tuned_plan(plan: Plan, wanted: Wanted, log: Path, progress: Progress) -> Outcome:
    """The plan with the settings that were measured to be fastest.

    Ctrl-C while measuring skips the rest and goes on. Raises Stopped on SIGTERM.
    """
    if wanted.mode == OFF:
        return Outcome(plan, OFF)
    if plan.choice.speculation is None or plan.user.value("--spec-type"):
        return Outcome(plan, "none")
    about = subject(plan)
    known, stale = results.find(about)
    if known is not None and not stale and wanted.mode == AUTO and not wanted.force:
        return Outcome(_applied(plan, known), "cached", (_cached_line(known),), result=known)
    notes = tuple(results.stale_lines(known, stale))
    task, doubts = quick_task(plan, wanted)
    if not task.candidates:
        because = "; ".join(doubts)
        return Outcome(plan.without_speculation(because), "none", notes)
    try:
        with stop_on_signals(but=("SIGINT",)):
            found = tune(Lab(plan, log), task, progress)
    except Interrupted as e:
        kept = _by(plan, e.partial) if e.partial.arms else plan
        return Outcome(kept, "skipped", (*notes, "tuning skipped"), e.partial)
    except KeyboardInterrupt:
        return Outcome(plan, "skipped", (*notes, "tuning skipped"))
    except TuningError as e:
        return Outcome(plan, "failed", (*notes, f"not tuned: {e.message}"))
    if not found.arms and not found.complete_enough:
        return Outcome(plan, "failed", (*notes, f"not tuned: {found.reason}"), found)
    results.store(about, found)
    return Outcome(_by(plan, found), "measured", (*notes, *doubts), found)


def as_measured(plan: Plan, wanted: Wanted) -> Plan:
    """The plan by an earlier result, where there is one that is not stale."""
    if wanted.mode != AUTO or wanted.force or plan.choice.speculation is None:
        return plan
    known, stale = results.find(subject(plan))
    return _applied(plan, known) if known is not None and not stale else plan


def quick_task(plan: Plan, wanted: Wanted) -> tuple[Task, tuple[str, ...]]:
    """What serve measures, and what it rules out unmeasured with the reason."""
    kept, doubts = trusted(ways(plan), wanted.named or wanted.force)
    full = wanted.mode == FULL
    return (
        Task(
            workload=plan.workload.name,
            prompts=plan.workload.prompts,
            sampling=plan.workload.sampling,
            chat=plan.target.has_chat_template,
            candidates=candidates(kept) + (combinations(plan, kept) if full else ()),
            budget=wanted.budget,
            thorough=full,
            force=wanted.force,
            slots=plan.settings.parallel,
            hybrid=plan.target.memory != "attention",
        ),
        doubts,
    )


def trusted(found: Sequence[Way], all_of_them: bool) -> tuple[list[Way], tuple[str, ...]]:
    """The ways worth measuring, and the reasons against the others."""
    if all_of_them:
        return list(found), ()
    doubts = tuple(
        f"{w.speculation.methods[0]} is not measured: {w.doubt}" for w in found if w.doubt
    )
    return [w for w in found if not w.doubt], tuple(dict.fromkeys(doubts))


def candidates(found: Sequence[Way]) -> tuple[Candidate, ...]:
    return tuple(Candidate(w.speculation, w.longest, w.expected) for w in found)


def combinations(plan: Plan, found: Sequence[Way]) -> tuple[Candidate, ...]:
    """Each drafting method with ngram-mod, for text that repeats: copies where there is
    something to copy, drafts elsewhere."""
    out = []
    for way in found:
        methods = ("ngram-mod", *way.speculation.methods)
        if way.speculation.uses_draft and not check_methods(plan.capabilities, methods):
            spec = replace(way.speculation, methods=methods, ngram=plan.workload.ngram)
            out.append(Candidate(spec, way.longest))
    return tuple(out)


def subject(plan: Plan) -> Subject:
    """What a result of this plan is about."""
    files = [*plan.target.shards]
    for way in ways(plan):
        files += way.draft.shards if way.draft is not None else ()
    # the context that was wanted: what fits of it changes from day to day
    context = plan.budget.wanted if plan.budget is not None else plan.settings.context
    flags = [f"-c {context}", f"-np {plan.settings.parallel}"]
    flags += [" ".join(f.words) for f in plan.user.flags if not _IRRELEVANT & set(f.option.names)]
    flags += [",".join(w.speculation.methods) for w in ways(plan)]
    build = results.stamp([plan.engine.identity])
    size = build[0][1:] if build else ()
    gpus = plan.budget.question.machine.gpus if plan.budget is not None else ()
    devices = [f"{g.name} {g.label}" for g in gpus]
    if any(g.name.startswith("CUDA") for g in gpus) and (version := driver()):
        devices.append(f"driver {version}")
    return Subject(
        target=str(plan.target.path.absolute()),
        workload=plan.workload.name,
        files=results.stamp(files),
        flags=tuple(flags),
        engine=f"{plan.engine.label} {plan.capabilities.label} {size}",
        devices=tuple(devices),
    )


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
