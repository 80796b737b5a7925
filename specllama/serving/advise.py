"""Why a model is served as it is, what would change that, and what its tokens cost. Decides
nothing: the plan is serve's, the figures are from stored results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.engine.client import Prompt
from specllama.engine.settings import Settings
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.decision_factors import DecisionFactor, decision_factors
from specllama.serving.scope import scope_of, sets_own_types
from specllama.serving.token_cost import HourlyPrice, TokenCost, cost_of
from specllama.serving.tune import (
    AUTO,
    TuningOptions,
    apply_stored_result,
    serve_task,
    unfinished_result,
)
from specllama.tuning import results
from specllama.tuning.other_options import closest_result_line
from specllama.tuning.results import Result

# Which rule decided.
REQUESTED, MEASURED, MEMORY = "requested", "measured", "memory"
REPORTS, NOTHING, PREDICTED, NGRAMS = "reports", "nothing fits", "predicted", "ngrams"
REJECTED = "rejected"
RULES = {
    REQUESTED: "set by your options",
    MEASURED: "measured on this machine",
    MEMORY: "the requested setup does not fit in memory",
    REPORTS: "published measurements agree that it does not pay off, so it is not measured",
    REJECTED: "the draft or method that you set does not fit this model and this engine",
    NOTHING: "no draft or n-gram method fits this model and this engine",
    PREDICTED: "the highest predicted speed-up; serve measures it",
    NGRAMS: "no draft fits, so n-grams copy earlier text; serve measures them",
}


@dataclass(frozen=True)
class Advice:
    """`plan`: what serve would start with. `result`: the stored result behind it; `notes`: about
    results that are not used; `elsewhere`: results of the same model for other workloads."""

    plan: Plan
    rule: str
    result: Result | None
    notes: tuple[str, ...]
    elsewhere: tuple[Result, ...]
    factors: tuple[DecisionFactor, ...]
    price: HourlyPrice | None = None
    cost: TokenCost | None = None


def explain_decision(
    settings: Settings,
    spec_options: SpeculationOptions,
    user_args: Sequence[str] = (),
    llama_server: str | None = None,
    prompts: tuple[Prompt, ...] = (),
    price: HourlyPrice | None = None,
) -> Advice:
    """serve's decision with its reasons. Starts nothing. Raises what `prepare` raises."""
    plan = prepare(settings, spec_options, user_args, llama_server, check_port=False)
    options = TuningOptions(AUTO, 60, scope_of(spec_options), prompts=prompts)
    notes: tuple[str, ...] = ()
    served, stored, unfinished = plan, None, None
    if plan.choice.speculation is not None and not sets_own_types(plan):
        task, doubts, subject = serve_task(plan, options)
        found, stale = results.find(subject)
        served, stored = apply_stored_result(plan, options)
        unfinished = unfinished_result(plan, options)
        notes = doubts
        if stored is None and found is not None:
            notes += tuple(results.stale_lines(found, stale)) or (
                f"not decided yet: {found.reason}",
            )
        if found is None:
            notes += tuple(closest_result_line(subject))
        drafts = plan.choice.speculation.uses_draft
        if stored is None and not task.candidates and (drafts or not task.ngrams):
            remaining = ("serve measures whether n-grams pay off",) if task.ngrams else ()
            served = plan.without_speculation("; ".join((*doubts, *remaining)))
            notes = notes[len(doubts) :]  # as the reason
    others = _elsewhere(plan, stored)
    return Advice(
        plan=served,
        rule=rule_of(plan, served, stored, spec_options),
        result=stored,
        notes=notes,
        elsewhere=others,
        factors=tuple(decision_factors(plan, served, stored, spec_options, unfinished is not None)),
        price=price,
        cost=cost_of(stored or unfinished, price) if price is not None else None,
    )


def rule_of(
    plan: Plan, served: Plan, stored: Result | None, spec_options: SpeculationOptions
) -> str:
    """Which rule decided. `plan`: before stored results; `served`: after them."""
    if sets_own_types(plan) or spec_options.method == "none":
        return REQUESTED
    if stored is not None:
        return MEASURED
    if plan.budget is not None and plan.budget.adjusted:
        return MEMORY
    if plan.choice.speculation is not None and served.choice.speculation is None:
        return REPORTS
    spec = served.choice.speculation
    set_by_user = spec_options.draft is not None or spec_options.method is not None
    if spec is None:
        return REJECTED if set_by_user else NOTHING
    if set_by_user:
        return REQUESTED
    return PREDICTED if spec.uses_draft else NGRAMS


def _elsewhere(plan: Plan, stored: Result | None) -> tuple[Result, ...]:
    """The newest result of each other workload."""
    found: dict[str, Result] = {}
    for r in results.all_results():
        same = r.target == str(plan.target.path.absolute())
        if same and r.workload != plan.workload.name and r.speedup is not None:
            found.setdefault(r.workload, r)
    return tuple(r for r in found.values() if stored is None or r.file != stored.file)
