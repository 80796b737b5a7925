"""Drafts that are (almost) never accepted: speculation is on but only costs time. Pure.

Counted by step, not by token: accepting one of 16 drafted tokens gains as much as one of 2.
"""

from __future__ import annotations

from specllama.drafts.ollama import shown_name
from specllama.engine.settings import Speculation

# With fewer steps, one in eight samples accepts nothing although every tenth draft is right.
_MIN_STEPS = 20
_MIN_ACCEPTED = 0.05  # accepted tokens per step: at most 1.05x, even if drafting were free


def accepts_nothing(drafted: int, accepted: int, steps: int) -> bool:
    """Whether drafting can only cost time. `steps`: passes of the target, each of which yields
    one token without a draft."""
    return drafted > 0 and steps >= _MIN_STEPS and accepted < _MIN_ACCEPTED * steps


def cost_without_gain(drafted: int, accepted: int) -> str:
    """The finding, for the user."""
    return f"it only costs time: {accepted} of {drafted} drafted tokens accepted"


def advice_for(spec: Speculation) -> str:
    """The usual cause of drafts that are never accepted, and what helps."""
    method = next((m for m in spec.methods if m.startswith("draft-")), "")
    if not method:
        return "the text does not repeat itself; use --method none"
    if method == "draft-simple":
        return (
            "its output does not match the target's (another model, or a damaged file): "
            "`specllama pick-draft` lists others; or use --method none"
        )
    if spec.draft is None:
        return (
            "its MTP head is damaged, converted incorrectly or quantised too far: use another file of "
            "this model, or use --method none"
        )
    return (
        f"{shown_name(spec.draft)} is untrained, converted incorrectly or made for another model: use the "
        "one made for this model (`specllama pick-draft --hub`), or use --method none"
    )
