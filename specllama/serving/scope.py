"""What is measured: which drafts, n-gram types and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.client import Prompt
from specllama.engine.command import NGRAM_SIZE_OPTIONS, check_methods
from specllama.engine.launch_options import is_number
from specllama.engine.settings import Speculation
from specllama.gguf import ModelInfo
from specllama.planning.feasible import FeasibleMethod, feasible_methods
from specllama.planning.passthrough import ngram_sizes
from specllama.planning.plan import Plan
from specllama.planning.refusals import batch_size
from specllama.planning.spec_options import SpeculationOptions
from specllama.tuning.ngrams import LONGEST_NGRAM_DRAFT
from specllama.tuning.run import Task, TrialCandidate

# The order in which equal ones are preferred. ngram-cache only if the user sets it: α fell from
# 86 % to 11 % on the second request (llama.cpp issue 27852).
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


@dataclass(frozen=True)
class SearchScope:
    """What the user fixed. `user_choice`: the draft or method, so only that is measured, even if it
    is unpromising; `user_method`: the method, so nothing is combined with it. `everything`:
    unpromising methods too. `lengths`: only these K (empty = all); `p_min`: only this one
    (None = any). `other_options`: other options that affect measurements, as text."""

    user_choice: bool = False
    user_method: bool = False
    everything: bool = False
    lengths: tuple[int, ...] = ()
    p_min: float | None = None
    other_options: tuple[str, ...] = ()


def scope_of(spec_options: SpeculationOptions) -> SearchScope:
    """The scope from the options of serve or plan."""
    options = {
        "--draft-layers": spec_options.draft_layers,
        "--draft-cache": spec_options.draft_cache,
        "--vram": spec_options.vram,
    }
    return SearchScope(
        user_choice=bool(spec_options.draft or spec_options.method),
        user_method=bool(spec_options.method),
        lengths=(spec_options.n_max,) if spec_options.n_max else (),
        p_min=spec_options.p_min,
        other_options=tuple(
            f"{name} {value}" for name, value in options.items() if value is not None
        ),
    )


def with_fixed_values(plan: Plan, scope: SearchScope) -> SearchScope:
    """The scope with the values fixed by arguments after `--`."""
    length = plan.user.value("--spec-draft-n-max") or plan.user.value("--draft-max") or ""
    if plan.user.value("--model-draft") is not None:
        scope = replace(scope, user_choice=True)
    least = plan.user.value("--spec-draft-p-min") or plan.user.value("--draft-p-min")
    if is_number(length) and int(length) > 0:
        scope = replace(scope, lengths=(int(length),))
    try:
        p_min = float(least) if least is not None else nan
    except ValueError:
        p_min = nan
    return replace(scope, p_min=p_min) if 0 <= p_min <= 1 else scope  # else llama-server rejects it


def worthwhile_drafts(
    plan: Plan, scope: SearchScope
) -> tuple[list[FeasibleMethod], tuple[str, ...]]:
    """The drafts worth measuring, and why the others are not."""
    longest = {"most_k": max(scope.lengths)} if scope.lengths else {}
    feasible = feasible_methods(plan, unlikely=scope.everything, **longest)
    found = [w for w in feasible if w.speculation.uses_draft]
    if scope.user_choice:
        own = plan.choice.speculation
        return [w for w in found if own is not None and w.speculation.methods == own.methods], ()
    if scope.everything:
        return found, ()
    doubts = tuple(
        f"{w.speculation.methods[0]} is not measured: {w.doubt}" for w in found if w.doubt
    )
    return [w for w in found if not w.doubt], tuple(dict.fromkeys(doubts))


def trial_candidates(found: Sequence[FeasibleMethod]) -> tuple[TrialCandidate, ...]:
    """Each draft alone; combinations are predicted from it."""
    return tuple(
        TrialCandidate(
            _draft_alone(w.speculation), w.max_k, w.cost, w.one_pass, _trained_context(w.draft)
        )
        for w in found
    )


def _trained_context(draft: ModelInfo | None) -> int:
    """The context that a draft model was trained on, in tokens; 0 = unknown."""
    return (draft.context_length or 0) if draft is not None and draft.kind == "model" else 0


def _draft_alone(s: Speculation) -> Speculation:
    methods = tuple(m for m in s.methods if m.startswith("draft-"))
    return replace(s, methods=methods, ngram=None)


def ngram_types(plan: Plan, scope: SearchScope) -> tuple[Speculation, ...]:
    """The n-gram types to predict: those set by the user, or all that this build has."""
    chosen = plan.choice.speculation
    named = [m for m in (chosen.methods if chosen else ()) if m.startswith("ngram-")]
    if scope.user_method:
        types: Sequence[str] = named
    else:
        types = [m for m in _NGRAMS if not check_methods(plan.capabilities, [m])]
    return tuple(
        Speculation((m,), ngram=ngram_sizes(plan.workload.ngram, m, plan.user)) for m in types
    )


def sets_own_types(plan: Plan) -> bool:
    """Whether arguments after `--` set the speculation type."""
    return bool(plan.user.value("--spec-type")) or plan.user.on("--spec-default")


def make_task(
    plan: Plan,
    scope: SearchScope,
    found: Sequence[FeasibleMethod],
    budget: float,
    thorough: bool,
    force: bool = False,
    prompts: Sequence[Prompt] = (),
) -> Task:
    """The input of the search. `prompts`: replacing the workload's; `budget` in seconds."""
    chosen = plan.choice.speculation
    joined = scope.user_method and chosen is not None and chosen.uses_draft and chosen.uses_ngram
    alone = not scope.user_choice or (scope.user_method and not joined)  # n-grams without a draft
    ngrams = ngram_types(plan, scope) if _batch_fits_ngrams(plan) and (alone or found) else ()
    loads = {"loads": 12} if thorough else {}
    return Task(
        workload=plan.workload.name,
        prompts=plan.prompts(prompts),
        sampling=plan.workload.sampling,
        chat=plan.target.has_chat_template,
        candidates=trial_candidates(found),
        ngrams=ngrams,
        ngrams_alone=alone,
        drafts_alone=not joined,
        fixed=any(plan.user.value(name) for name in NGRAM_SIZE_OPTIONS),
        budget=budget,
        thorough=thorough,
        everything=thorough and scope.everything,
        force=force,
        lengths=scope.lengths,
        p_min=scope.p_min,
        slots=plan.settings.parallel,
        hybrid=plan.target.memory != "attention",
        by_request=plan.capabilities.flavour == IK_LLAMA,
        output_share=plan.target.output_bytes / max(1, plan.target.active_bytes),
        context=_slot_context(plan),
        max_tokens=plan.workload.max_tokens,
        **loads,
    )


def _batch_fits_ngrams(plan: Plan) -> bool:
    """Whether the user's -b is large enough for the longest n-gram draft, in every slot."""
    chosen = plan.choice.speculation
    named = chosen is not None and chosen.uses_ngram
    return named or batch_size(plan.user) > plan.settings.parallel * LONGEST_NGRAM_DRAFT


def _slot_context(plan: Plan) -> int:
    """Context of one slot in tokens, 0 = unknown."""
    total = plan.budget.chosen.use.context if plan.budget is not None else plan.settings.context
    return (total or plan.target.context_length or 0) // plan.settings.parallel
