"""probe: measures every method for a model on one or more workloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.client import Prompt
from specllama.engine.settings import Settings
from specllama.errors import UsageError
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.result_keys import result_subject
from specllama.serving.scope import (
    SearchScope,
    make_task,
    sets_own_types,
    with_fixed_values,
    worthwhile_drafts,
)
from specllama.serving.trial_servers import TrialServers
from specllama.stop import ALL, stop_on_signals
from specllama.tuning import results
from specllama.tuning.records import DECIDED, OPEN, Progress, TuningResult
from specllama.tuning.results import Subject
from specllama.tuning.run import Task
from specllama.tuning.search import Interrupted, tune


@dataclass(frozen=True)
class ProbeOptions:
    """What to probe. `budget`: seconds for all workloads together; `prompts`: the user's own,
    replacing the workload's, from `prompts_file`; `everything`: also unpromising methods and combinations; `lengths`:
    only these K."""

    settings: Settings
    spec_options_list: tuple[SpeculationOptions, ...]
    user_args: tuple[str, ...] = ()
    llama_server: str | None = None
    prompts: tuple[Prompt, ...] = ()
    prompts_file: Path | None = None
    budget: float = 300.0
    everything: bool = False
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedProbe:
    """One workload: what will be measured, what is ruled out and why, and what the result is stored
    under."""

    options: ProbeOptions
    spec_options: SpeculationOptions
    plan: Plan
    task: Task
    doubts: tuple[str, ...]
    subjects: tuple[Subject, ...]


@dataclass(frozen=True)
class ProbeResult:
    """One workload: its plan and its result. `stopped`: interrupted by Ctrl-C; `unsaved`: it could
    not be written to the cache."""

    planned: PlannedProbe
    tuned: TuningResult
    stopped: bool = False
    unsaved: bool = False

    @property
    def plan(self) -> Plan:
        return self.planned.plan


def plan_probes(options: ProbeOptions) -> Iterator[PlannedProbe]:
    """What probe would measure, by workload. Starts nothing."""
    for spec_options in options.spec_options_list:
        plan = prepare(
            options.settings,
            spec_options,
            options.user_args,
            options.llama_server,
            check_port=False,
        )
        yield _planned(plan, spec_options, options)


def run_probe(options: ProbeOptions, log: Path, progress: Progress) -> tuple[ProbeResult, ...]:
    """One result per workload, in order. After Ctrl-C or SIGTERM, those so far (the last one
    `stopped`); KeyboardInterrupt if there are none.

    Raises TuningError if a baseline cannot be measured, UsageError if the user's draft or method
    cannot be used.
    """
    out: list[ProbeResult] = []
    planned = tuple(plan_probes(options))
    for each in planned:
        _check_choice(each)
    for each in planned:
        runner = TrialServers(each.plan, log)
        try:
            with stop_on_signals(ALL):
                found = tune(runner, each.task, progress)
        except Interrupted as e:
            return (*out, ProbeResult(each, e.partial, stopped=True))
        except KeyboardInterrupt:
            if out:
                return tuple(out)
            raise
        finally:
            runner.stop()
        keep = found.state in (DECIDED, OPEN)
        saved = [results.store(subject, found) for subject in each.subjects if keep]
        out.append(ProbeResult(each, found, unsaved=not all(saved)))
    return tuple(out)


def _check_choice(p: PlannedProbe) -> None:
    """Raises UsageError for a draft or method of the user's that cannot be used."""
    requested = p.spec_options.draft is not None or p.spec_options.method not in (None, "none")
    choice = p.plan.choice
    if requested and choice.speculation is None:
        raise UsageError(f"nothing to measure: {choice.reason}", choice.remedy)


def _planned(plan: Plan, spec_options: SpeculationOptions, options: ProbeOptions) -> PlannedProbe:
    if sets_own_types(plan):
        raise UsageError(
            "--spec-type after -- is not allowed: probe measures with and without speculation",
            "Use probe's own --method TYPE instead.",
        )
    user_choice = spec_options.draft is not None or spec_options.method is not None
    user_method = spec_options.method is not None
    other_options = (f"--vram {spec_options.vram}",) if spec_options.vram is not None else ()
    scope = with_fixed_values(
        plan,
        SearchScope(
            user_choice,
            user_method,
            options.everything,
            options.lengths,
            other_options=other_options,
        ),
    )
    drafts, doubts = worthwhile_drafts(plan, scope)
    default_scope = replace(scope, everything=False)
    default_drafts, _ = worthwhile_drafts(plan, default_scope)  # the best of all answers this too
    budget = options.budget / len(options.spec_options_list)
    search_task = make_task(plan, scope, drafts, budget, thorough=True, prompts=options.prompts)
    searches = [(drafts, scope), (default_drafts, default_scope)]
    subjects = tuple(
        dict.fromkeys(result_subject(plan, w, s, options.prompts) for w, s in searches)
    )
    return PlannedProbe(options, spec_options, plan, search_task, doubts, subjects)
