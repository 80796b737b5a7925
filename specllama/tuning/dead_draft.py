"""A draft that drafts and is never right: speculation is on and only costs time. Pure.

Counted by step, not by token: a step that drafts 16 tokens and keeps one brings as much as one
that drafts 2 and keeps one.
"""

from __future__ import annotations

from specllama.drafts.ollama import shown_name
from specllama.engine.settings import Speculation

_LEAST_STEPS = 20  # of fewer, one in eight keeps nothing where every tenth draft is right
_LEAST_KEPT = 0.05  # accepted tokens a step: even if drafting were free, 1.05x is all they give


def accepts_nothing(drafted: int, accepted: int, steps: int) -> bool:
    """Whether what is drafted can only cost time. `steps`: passes of the target, each of which
    brings one token of its own."""
    return drafted > 0 and steps >= _LEAST_STEPS and accepted < _LEAST_KEPT * steps


def only_costs(drafted: int, accepted: int) -> str:
    """What that is called."""
    return f"it only costs time: {accepted} of {drafted} drafted tokens accepted"


def what_to_do(spec: Speculation) -> str:
    """Why a draft is usually never right, and what helps."""
    method = next((m for m in spec.methods if m.startswith("draft-")), "")
    if not method:
        return "this text does not repeat what was copied; --method none serves without it"
    if method == "draft-simple":
        return (
            "it answers unlike the target (another model, or a damaged file): "
            "`specllama pick-draft` lists others; --method none serves without it"
        )
    if spec.draft is None:
        return (
            "its MTP head is damaged, wrongly converted or quantised too far: take another file of "
            "this model; --method none serves without it"
        )
    return (
        f"{shown_name(spec.draft)} was trained for another model or not at all, or wrongly converted: take "
        "the one made for this model (`specllama pick-draft --hub`); --method none serves without it"
    )
