"""Every method and draft a plan could use, with the limits set by its files and by memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specllama.drafts import compat
from specllama.drafts.compat import BLOCK_METHODS, DFLASH_BLOCK
from specllama.drafts.rank import draft_cost
from specllama.engine.settings import Speculation
from specllama.gguf import ModelInfo
from specllama.memory.decide import FITS, verdict_of
from specllama.memory.place import RAM
from specllama.planning import memory_inputs
from specllama.planning.plan import Plan

_HOT = 0.7  # temperature


@dataclass(frozen=True)
class FeasibleMethod:
    """A method, with its draft, that fits. `max_k`: the largest K that its heads, block size and memory
    allow; `cost`: one pass of the draft as a share of the target's, by bytes; `one_pass`: a block
    is one pass. `doubt`: why published measurements agree that it does not pay off, "" = they
    do not."""

    speculation: Speculation
    draft: ModelInfo | None
    max_k: int
    cost: float
    one_pass: bool = False
    doubt: str = ""


def feasible_methods(
    plan: Plan, most_k: int = DFLASH_BLOCK, unlikely: bool = False
) -> tuple[FeasibleMethod, ...]:
    """The plan's own choice first, then what else fits; with `unlikely`, also what is not expected
    to pay off."""
    return tuple(_feasible(plan, most_k, unlikely))


def _feasible(plan: Plan, most_k: int, unlikely: bool) -> Iterator[FeasibleMethod]:
    choice = plan.choice
    found = [(choice.speculation, choice.draft)]
    found += [(a.speculation, a.draft) for a in choice.alternatives]
    if unlikely:
        found += [(a.speculation, a.draft) for a in choice.unlikely]
    seen: list[Speculation] = []
    for spec, draft in found:
        if spec is None or spec in seen or not _fits(plan, spec, draft, bool(seen)):
            continue
        seen.append(spec)
        method = next((m for m in spec.methods if m.startswith("draft-")), "")
        yield FeasibleMethod(
            spec,
            draft,
            _longest(plan, spec, draft, method, most_k),
            draft_cost(plan.target, method, draft) if method else 0.0,
            method in BLOCK_METHODS,
            _doubt(plan, method),
        )


def _fits(plan: Plan, spec: Speculation, draft: ModelInfo | None, other: bool) -> bool:
    """Whether a method `other` than the plan's own fits in memory."""
    if plan.budget is None or not other:
        return True
    q, use = plan.budget.request, plan.budget.chosen.use
    return (
        verdict_of(q, use, memory_inputs.drafting_of(spec, draft, plan.user, q.machine))[0].kind
        == FITS
    )


def _longest(
    plan: Plan, spec: Speculation, draft: ModelInfo | None, method: str, most_k: int
) -> int:
    """The largest K up to `most_k`."""
    if not method:
        return spec.n_max
    limit = min(most_k, compat.longest_draft(method, draft or plan.target) or most_k)
    if plan.budget is None:
        return limit
    q, use = plan.budget.request, plan.budget.chosen.use
    for k in range(limit, spec.n_max, -1):
        drafting = memory_inputs.drafting_of(replace(spec, n_max=k), draft, plan.user, q.machine)
        if verdict_of(q, use, drafting)[0].kind == FITS:
            return k
    return max(1, min(limit, spec.n_max))


def _doubt(plan: Plan, method: str) -> str:
    """Why published measurements agree that a method loses, "" = they do not."""
    target = plan.target
    if method == "draft-mtp" and target.mla_rank:
        return "MLA targets with MTP were slower in every published measurement"
    temperature = plan.workload.sampling.get("temperature", 0.0)
    if method and temperature > _HOT and plan.workload.name == "creative":
        return f"acceptance of creative text at temperature {temperature:g} is too low to pay off"
    if method and target.experts and _experts_on_cpu(plan):
        return "with experts on the CPU, each drafted token activates more of them"
    return ""


def _experts_on_cpu(plan: Plan) -> bool:
    """Whether routed experts are in RAM while layers are on a GPU."""
    if plan.budget is None or not plan.budget.request.machine.gpus:
        return False
    return any(x.experts and x.device == RAM for x in plan.budget.request.use.moved)
