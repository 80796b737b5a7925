"""What is measured: which drafts, which n-gram types, which lengths; and what a result of it is
about."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan

from specllama.engine import cpu
from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.client import Prompt
from specllama.engine.command import NGRAM_SIZE_OPTIONS, check_methods
from specllama.engine.launch_options import is_number
from specllama.engine.settings import Speculation
from specllama.gguf import ModelInfo
from specllama.memory.nvml import driver
from specllama.planning.feasible import FeasibleMethod, feasible_methods
from specllama.planning.passthrough import ngram_sizes
from specllama.planning.plan import Plan
from specllama.planning.refusals import batch_size
from specllama.planning.spec_options import SpeculationOptions
from specllama.tuning import results
from specllama.tuning.arms import way
from specllama.tuning.ngrams import MOST_COPIED
from specllama.tuning.results import Subject
from specllama.tuning.run import Task, TrialCandidate
from specllama.watching.traffic import TrafficKey

# Arguments and variables that change neither speed nor acceptance.
_IRRELEVANT = {"--host", "--port", "--api-key", "--metrics", "--slots", "--log-file", "--alias"}
# What decides which devices the server sees, and how it uses them.
_ENV = tuple(
    "GGML_ CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES "
    "ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR OMP_NUM_THREADS".split()
)
# In the order in which equal ones are preferred. ngram-cache only when it is named: α fell from
# 86 % to 11 % on the second request (llama.cpp issue 27852).
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


@dataclass(frozen=True)
class SearchScope:
    """What the user decided. `user_choice`: draft or method are theirs: only that is measured,
    whatever reports say of it; `user_method`: the method is, so that nothing is joined with it.
    `everything`: doubtful ways too. `lengths`: only these K (empty = all); `p_min`: only this
    (None = any). `other_options`: their other options that change what is measured, as words."""

    user_choice: bool = False
    user_method: bool = False
    everything: bool = False
    lengths: tuple[int, ...] = ()
    p_min: float | None = None
    other_options: tuple[str, ...] = ()


def scope_of(spec_options: SpeculationOptions) -> SearchScope:
    """What a user of serve or plan decided."""
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
    """The scope with what the user's own arguments after `--` hold fast."""
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
    return replace(scope, p_min=p_min) if 0 <= p_min <= 1 else scope  # else llama-server says so


def worthwhile_drafts(
    plan: Plan, scope: SearchScope
) -> tuple[list[FeasibleMethod], tuple[str, ...]]:
    """The drafts worth measuring, and the reasons against the others."""
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
    """Each draft by itself; what is joined with it is predicted from that."""
    return tuple(
        TrialCandidate(_draft_alone(w.speculation), w.max_k, w.cost, w.one_pass, _trained(w.draft))
        for w in found
    )


def _trained(draft: ModelInfo | None) -> int:
    """Tokens of the context a small model was trained on, where it says so."""
    return (draft.context_length or 0) if draft is not None and draft.kind == "model" else 0


def _draft_alone(s: Speculation) -> Speculation:
    methods = tuple(m for m in s.methods if m.startswith("draft-"))
    return replace(s, methods=methods, ngram=None)


def ngram_types(plan: Plan, scope: SearchScope) -> tuple[Speculation, ...]:
    """The n-gram types to predict: those that are named, or all that this build has."""
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
    """Whether the user's own arguments after `--` say how to speculate."""
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
    """What the search is told. `prompts`: in place of the workload's; `budget` in seconds."""
    chosen = plan.choice.speculation
    copies = ngram_types(plan, scope) if _batch_fits_copies(plan) else ()
    joined = scope.user_method and chosen is not None and chosen.uses_draft and chosen.uses_ngram
    alone = not scope.user_choice or (scope.user_method and not joined)  # n-grams without a draft
    loads = {"loads": 12} if thorough else {}
    return Task(
        workload=plan.workload.name,
        prompts=plan.prompts(prompts),
        sampling=plan.workload.sampling,
        chat=plan.target.has_chat_template,
        candidates=trial_candidates(found),
        ngrams=copies,
        copies_alone=alone,
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
        answer=plan.workload.answer,
        **loads,
    )


def _batch_fits_copies(plan: Plan) -> bool:
    """Whether the user's -b has room for the longest copy that is tried, in every slot."""
    chosen = plan.choice.speculation
    named = chosen is not None and chosen.uses_ngram
    return named or batch_size(plan.user) > plan.settings.parallel * MOST_COPIED


def _slot_context(plan: Plan) -> int:
    """Tokens of one slot, 0 = not known."""
    total = plan.budget.chosen.use.context if plan.budget is not None else plan.settings.context
    return (total or plan.target.context_length or 0) // plan.settings.parallel


def result_subject(
    plan: Plan, drafts: Sequence[FeasibleMethod], scope: SearchScope, prompts: Sequence[Prompt] = ()
) -> Subject:
    """What a result of measuring these ways is about: what was asked, not what fits of it at
    the moment."""
    files = [*plan.target.shards]
    for w in drafts:
        files += w.draft.shards if w.draft is not None else ()
    return Subject(
        target=str(plan.target.path.absolute()),
        workload=plan.workload.name,
        files=results.stamp(files),
        asked=tuple(_option_words(plan, scope, prompts)),
        engine=engine_label(plan),
        devices=tuple(device_names(plan)),
        prompts="yours" if prompts else "profile",
    )


def traffic_key(plan: Plan) -> TrafficKey | None:
    """What traffic of this plan is kept as; None when it does not speculate."""
    spec = plan.settings.speculation
    if spec is None:
        return None
    files = results.stamp([*plan.target.shards, *([spec.draft] if spec.draft else [])])
    return TrafficKey(
        target=str(plan.target.path.absolute()),
        workload=plan.workload.name,
        way=way(spec),
        files=files,
        engine=engine_label(plan),
        devices=tuple(device_names(plan)),
    )


def _option_words(plan: Plan, scope: SearchScope, prompts: Sequence[Prompt]) -> Iterator[str]:
    # the context that was wanted: what fits of it changes from day to day
    context = plan.budget.requested_context if plan.budget is not None else plan.settings.context
    yield f"-c {context}"
    yield f"-np {plan.settings.parallel}"
    if scope.user_choice:
        chosen = plan.choice.speculation
        yield f"named {','.join(chosen.methods) if chosen else 'none'} {scope.user_method}"
    if scope.everything:
        yield "everything"
    yield from (f"K={k}" for k in scope.lengths)
    if scope.p_min is not None:
        yield f"p_min={scope.p_min:g}"
    yield from scope.other_options
    for flag in plan.user.flags:
        if not _IRRELEVANT & set(flag.option.names):
            yield " ".join(flag.words)
    for name, value in sorted(plan.command.env.items()):
        secret = "KEY" in name or "TOKEN" in name
        if name.startswith(_ENV) and not secret:
            yield f"{name}={value}"
    w = plan.workload
    content = repr((w.methods, sorted(w.sampling.items()), asdict(w.ngram), prompts or w.prompts))
    yield hashlib.sha256(content.encode()).hexdigest()[:16]


def engine_label(plan: Plan) -> str:
    """The engine with its build and file: times of another do not hold."""
    build = results.stamp([plan.engine.identity])
    return f"{plan.engine.label} {plan.capabilities.label} {build[0][1:] if build else ()}"


def device_names(plan: Plan) -> Iterator[str]:
    """What it runs on, by name."""
    gpus = plan.budget.request.machine.gpus if plan.budget is not None else ()
    yield from (f"{g.name} {g.label}" for g in gpus)
    if any(g.name.startswith("CUDA") for g in gpus) and (version := driver()):
        yield f"driver {version}"
    yield f"CPU {cpu.name()} ({os.cpu_count()})"
