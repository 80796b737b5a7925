"""What is measured: which ways, which draft lengths, and what a result of it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specllama.engine.client import Prompt
from specllama.engine.command import check_methods
from specllama.memory.nvml import driver
from specllama.planning.plan import Plan
from specllama.planning.ways import Way, ways
from specllama.tuning import results
from specllama.tuning.results import Subject
from specllama.tuning.run import MOST_K, Candidate, Task

# Arguments that change neither speed nor acceptance.
_IRRELEVANT = {"--host", "--port", "--api-key", "--metrics", "--slots", "--log-file", "--alias"}


@dataclass(frozen=True)
class Scope:
    """What the user decided. `named`: draft or method are theirs: only that is measured,
    whatever reports say of it. `everything`: doubtful ways too. `lengths`: only these K (empty
    = all); `p_min`: only this (None = any)."""

    named: bool = False
    everything: bool = False
    lengths: tuple[int, ...] = ()
    p_min: float | None = None


def held(plan: Plan, scope: Scope) -> Scope:
    """The scope with what the user's own arguments after `--` hold fast."""
    length = plan.user.value("--spec-draft-n-max") or plan.user.value("--draft-max") or ""
    least = plan.user.value("--spec-draft-p-min") or plan.user.value("--draft-p-min")
    if length.isdigit() and int(length) > 0:
        scope = replace(scope, lengths=(int(length),))
    try:
        return scope if least is None else replace(scope, p_min=float(least))
    except ValueError:  # llama-server will say so
        return scope


def worth(plan: Plan, scope: Scope) -> tuple[list[Way], tuple[str, ...]]:
    """The ways worth measuring, and the reasons against the others."""
    found = ways(plan, max(scope.lengths, default=MOST_K))
    if scope.named and plan.choice.speculation is not None:
        return [w for w in found if w.speculation.methods == plan.choice.speculation.methods], ()
    if scope.everything:
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


def task(
    plan: Plan,
    scope: Scope,
    found: Sequence[Candidate],
    budget: float,
    thorough: bool,
    force: bool = False,
    prompts: Sequence[Prompt] = (),
) -> Task:
    """What the search is told. `prompts`: in place of the workload's; `budget` in seconds."""
    return Task(
        workload=plan.workload.name,
        prompts=tuple(prompts) or plan.workload.prompts,
        sampling=plan.workload.sampling,
        chat=plan.target.has_chat_template,
        candidates=tuple(found),
        budget=budget,
        thorough=thorough,
        force=force,
        lengths=scope.lengths,
        p_min=scope.p_min,
        slots=plan.settings.parallel,
        hybrid=plan.target.memory != "attention",
    )


def subject(plan: Plan, kept: Sequence[Way], scope: Scope) -> Subject:
    """What a result of measuring these ways is about."""
    files = [*plan.target.shards]
    for way in kept:
        files += way.draft.shards if way.draft is not None else ()
    # the context that was wanted: what fits of it changes from day to day
    context = plan.budget.wanted if plan.budget is not None else plan.settings.context
    flags = [f"-c {context}", f"-np {plan.settings.parallel}"]
    flags += [f"K={k}" for k in scope.lengths]
    flags += [f"p_min={scope.p_min:g}"] if scope.p_min is not None else []
    flags += [" ".join(f.words) for f in plan.user.flags if not _IRRELEVANT & set(f.option.names)]
    flags += [",".join(w.speculation.methods) for w in kept]
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
