"""The output of probe --dry-run: what would be measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.drafts.ollama import shown_name

if TYPE_CHECKING:
    from specllama.engine.settings import Speculation
    from specllama.serving.probe import PlannedProbe


def planned_lines(p: PlannedProbe) -> Iterator[str]:
    """One workload."""
    yield f"{p.plan.target.title}, {p.task.workload}: up to {p.task.budget:.0f} s"
    if p.plan.workload.mixed:
        yield f"workload {p.plan.workload.mixed}"
    yield f"baseline {p.plan.with_speculation(None).command.display()}"
    for c in p.task.candidates:
        longest = f", K up to {c.longest}" if c.speculation.uses_draft else ""
        yield f"measure  {'+'.join(c.speculation.methods)}{_with(c.speculation)}{longest}"
    if p.task.ngrams:
        names = ", ".join("+".join(s.methods) for s in p.task.ngrams)
        alone = "" if p.task.ngrams_alone else ", combined with a draft"
        yield f"predict  {names}{alone}: all sizes, from the baseline's responses"
    if not p.task.candidates and not p.task.ngrams:
        yield f"measure  nothing: {p.plan.choice.reason}"
    for doubt in p.doubts:
        yield f"note     {doubt} (--all measures it)"


def _with(s: Speculation) -> str:
    return f" with {shown_name(s.draft)}" if s.draft is not None else ""


def planned_data(p: PlannedProbe) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "target": str(p.plan.target.path),
        "workload": p.task.workload,
        "seconds": p.task.budget,
        "baseline": list(p.plan.with_speculation(None).command.argv),
        "candidates": [
            {
                "methods": list(c.speculation.methods),
                "draft": str(c.speculation.draft) if c.speculation.draft else None,
                "longest": c.longest if c.speculation.uses_draft else None,
                "pass_cost": c.cost,
            }
            for c in p.task.candidates
        ],
        "ngrams": [list(s.methods) for s in p.task.ngrams],
        "doubts": list(p.doubts),
    }
