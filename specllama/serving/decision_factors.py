"""What would change the decision: another draft, quant, temperature, engine or slot count; from
measurements if there are any.   (pure)"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specllama.drafts.families import family_of
from specllama.drafts.ollama import shown_name
from specllama.drafts.rank import draft_cost
from specllama.engine.settings import Speculation
from specllama.formats.engine_config import concurrency, repo_of
from specllama.planning.plan import Plan
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.scope import sets_own_types
from specllama.tuning.judge import MIN_SPEEDUP
from specllama.tuning.results import Result

_LOW, _HIGH = 0.5, 0.7  # of α, for a draft model
_EXPENSIVE = 0.1  # a drafting pass, as a share of the target's
_SMALL_BITS = 4.85  # of a Q4_K_M file
_SUGGESTED = 2


@dataclass(frozen=True)
class DecisionFactor:
    """One thing that would change the decision: `what`, why, and the command to find out ("" =
    none)."""

    what: str
    reason: str
    command: str = ""


def needed_alpha(known: Result) -> float | None:
    """The break-even α of the fastest setting: at its cost, a step has to produce MIN_SPEEDUP times
    as many tokens as plain steps in the same time. Above 1 if no acceptance is enough; None if
    nothing was measured."""
    tried = known.tried
    if tried is None or known.speedup is None or known.speedup[0] <= 0:
        return None
    accepted = tried.tokens_per_step - 1
    needed = MIN_SPEEDUP * tried.tokens_per_step / known.speedup[0] - 1
    return max(0.0, tried.alpha * needed / accepted) if accepted > 0 else None


def decision_factors(
    plan: Plan,
    served: Plan,
    known: Result | None,
    spec_options: SpeculationOptions,
    unfinished: bool = False,
) -> Iterator[DecisionFactor]:
    """What would change the decision; measured facts come before general ones. `unfinished`: there
    is a result, but it decided nothing yet."""
    if unfinished:
        yield DecisionFactor(
            "a longer measurement",
            "the earlier one decided nothing yet; serve goes on with it at the next start",
            _command("serve", plan, *_same_options(plan, spec_options)),
        )
    elif plan.choice.speculation is not None and known is None and not sets_own_types(plan):
        doubted = served.choice.speculation is None
        yield DecisionFactor(
            "a measurement",
            "nothing was measured for this setup, so a general rule decided",
            _command(
                "probe", plan, *(("--all",) if doubted else ()), *_same_options(plan, spec_options)
            ),
        )
    requested = spec_options.draft is not None or spec_options.method not in (None, "none")
    if plan.choice.speculation is None and requested and not sets_own_types(plan):
        option = "--draft" if spec_options.draft is not None else "--method"
        free = replace(spec_options, draft=None, method=None)
        yield DecisionFactor(
            f"no {option}",
            "without it specllama uses the best draft that fits, or n-grams",
            _command("advise", plan, *_same_options(plan, free)),
        )
    if plan.budget is not None and plan.budget.adjusted:
        reason = plan.budget.requested.verdict.missing or plan.budget.requested.verdict.kind
        yield DecisionFactor(
            "more memory",
            f"the requested setup does not fit ({reason})",
            _command("memory", plan, *_same_options(plan, spec_options)),
        )
    spec = known.tried.speculation if known is not None and known.tried else None
    spec = spec or served.choice.speculation or plan.choice.speculation
    if spec is not None:
        yield from _of_draft(plan, spec, known)
        yield from _of_sampling(plan, spec)
    for r in plan.choice.rejected:
        if r.rule in ("engine", "MTP graph"):
            yield DecisionFactor(
                "another engine",
                f"{r.what}: {r.detail}",
                _command(
                    "serve", plan, "--llama-server", "PATH", *_same_options(plan, spec_options)
                ),
            )
    if plan.settings.parallel > 1 and spec is not None:
        yield DecisionFactor(
            "fewer slots",
            f"with {plan.settings.parallel} slots, each step verifies the drafts of all of them, "
            "so each gains less than a single slot would",
            _command("serve", plan, *_same_options(plan, spec_options, one_slot=True)),
        )
    if known is not None and known.prompts == "profile":
        yield DecisionFactor(
            "your own prompts",
            f"measured on the {known.workload} profile's prompts, not yours",
            _command("probe", plan, "--prompts", "FILE"),
        )
    yield from _family_drafts(plan, spec)
    if served.choice.speculation is not None:
        yield DecisionFactor(
            "many users",
            f"speed-up with concurrent requests: {concurrency()}",
            _command(
                "plan",
                plan,
                *("--format", "vllm"),
                *_repositories(served),
                *_same_options(plan, spec_options),
            ),
        )


def _of_draft(plan: Plan, spec: Speculation, known: Result | None) -> Iterator[DecisionFactor]:
    """Another draft, or another quantisation."""
    if "draft-simple" not in spec.methods:
        return
    draft = next(
        (
            d
            for d in (plan.choice.draft, *(a.draft for a in plan.choice.alternatives))
            if d is not None and d.path == spec.draft
        ),
        None,
    )
    find = _command("pick-draft", plan, "--hub")
    share = draft_cost(plan.target, "draft-simple", draft) if draft is not None else 0.0
    reads = f"{shown_name(spec.draft) if spec.draft else 'the draft'} reads {share:.0%} of the target's bytes"
    tried = known.tried if known is not None else None
    if tried is not None and known is not None:
        needed = needed_alpha(known)
        paying = known.speedup is not None and known.speedup[0] >= MIN_SPEEDUP
        if needed is not None and needed > 1:
            yield DecisionFactor(
                "a cheaper draft",
                f"at this cost per step, not even α=1 would pay off (measured: {tried.alpha:.2f})",
                find,
            )
        elif needed is not None and not paying:
            yield DecisionFactor(
                "a draft with higher acceptance",
                f"at this cost per step, break-even is at α={needed:.2f} (measured: {tried.alpha:.2f})",
                find,
            )
        elif needed is not None:
            yield DecisionFactor(
                "other text",
                f"break-even is at α={needed:.2f} (measured: {tried.alpha:.2f})",
            )
        if tried.alpha < _LOW and 0 < share < _EXPENSIVE:
            yield DecisionFactor("a bigger draft", f"α={tried.alpha:.2f} is low, and {reads}", find)
        elif tried.alpha > _HIGH and share > _EXPENSIVE:
            yield DecisionFactor(
                "a smaller draft", f"α={tried.alpha:.2f} leaves room, and {reads}", find
            )
    if draft is not None and share > _EXPENSIVE and draft.bits_per_weight > _SMALL_BITS + 1:
        smaller = share * _SMALL_BITS / draft.bits_per_weight
        yield DecisionFactor(
            "another quantisation of the draft",
            f"{reads} at {draft.bits_per_weight:.1f} bits per weight; Q4_K_M would read {smaller:.0%}",
        )
    if draft is not None and share > _EXPENSIVE and plan.target.bits_per_weight < 8:
        larger = share * plan.target.bits_per_weight / 8.5
        yield DecisionFactor(
            "another quantisation of the target",
            f"the draft's share shrinks as the target grows: {larger:.0%} with a Q8_0 target",
        )


def _of_sampling(plan: Plan, spec: Speculation) -> Iterator[DecisionFactor]:
    temperature = plan.workload.sampling.get("temperature", 0.0)
    if temperature > 0 and spec.uses_draft:
        plain = "draft-simple" in spec.methods  # other kinds cannot be measured in process
        yield DecisionFactor(
            "a lower temperature",
            f"at {temperature:g}, a drafted token is accepted with the target's probability for it; at "
            "0, whenever it is the most likely one",
            _command("pick-draft", plan, "--measure") if plain else "",
        )


def _family_drafts(plan: Plan, spec: Speculation | None) -> Iterator[DecisionFactor]:
    """Known drafts of the family that are not on this machine."""
    family = family_of(plan.target)
    used = spec.methods if spec is not None else ()
    found = [s for s in (family.suggestions if family else ()) if s.method not in used]
    for s in found[:_SUGGESTED]:
        yield DecisionFactor(
            f"another draft: {s.name}",
            f"{s.method} for this family{s.where}; not checked here",
            _command("pick-draft", plan, "--hub"),
        )


def _repositories(served: Plan) -> Iterator[str]:
    """The options of `plan --format vllm` for repositories that the files do not name."""
    spec, draft = served.settings.speculation, served.choice.draft
    if repo_of(served.target) is None:
        yield from ("--target-repo", "OWNER/NAME")
    if spec is not None and spec.draft is not None and draft is not None and not repo_of(draft):
        yield from ("--draft-repo", "OWNER/NAME")


def _command(name: str, plan: Plan, *words: str) -> str:
    engine = () if "--llama-server" in words else plan.engine.option
    return shlex.join(["specllama", name, str(plan.target.path), *engine, *words])


def _same_options(
    plan: Plan, spec_options: SpeculationOptions, one_slot: bool = False
) -> Iterator[str]:
    """The options for exactly this setup, or for the same with one slot."""
    slots = 1 if one_slot else plan.settings.parallel
    given = {
        "-w": plan.workload.name,
        "--draft": str(spec_options.draft) if spec_options.draft is not None else None,
        "--method": spec_options.method,
        "-c": str(plan.budget.requested_context)
        if _context_is_set(plan) and plan.budget is not None
        else None,
        "--parallel": str(slots) if slots > 1 else None,
        "--vram": spec_options.vram,
    }
    for name, value in given.items():
        if value is not None:
            yield from (name, value)
    if plan.user.flags:
        yield from ("--", *plan.user.argv)


def _context_is_set(plan: Plan) -> bool:
    """Whether the user set a context."""
    return plan.budget is not None and plan.budget.requested_context != plan.target.context_length
