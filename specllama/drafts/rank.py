"""Predicted speed-up of a draft before measuring: a range, not a promise.

speed-up(K) = τ(K) / (draft cost of K tokens + verify cost of K+1), in units of one
plain step of the target; decoding is memory-bound, so costs are shares of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.drafts.acceptance import LONGEST_K, constant_tau
from specllama.drafts.compat import BLOCK_METHODS
from specllama.drafts.families import Prior, prior
from specllama.gguf import ModelInfo

# Assumptions, not measurements; `pick-draft` shows ranges, and measurements replace them.
# Verifying one more token on a dense model costs little more than its arithmetic
# (tests/test_rank.py compares it with a reported pair).
_DENSE_PER_TOKEN = 0.03
# Share of experts in a MoE model's active bytes; the rest is attention and shared experts.
_EXPERT_SHARE = 0.8


@dataclass(frozen=True)
class PriorPrediction:
    """The speed-up at the best K for the prior α; `low`, `high`: at the ends of the prior's range."""

    prior: Prior
    k: int
    tau: float
    speedup: float
    low: float
    high: float


def predict(
    target: ModelInfo, method: str, draft: ModelInfo | None, workload: str, longest: int = LONGEST_K
) -> PriorPrediction:
    """The prediction for a draft method; `draft` None = the target's own head."""
    expected = prior(method, workload)
    step = draft_cost(target, method, draft)
    block = method in BLOCK_METHODS

    def speedup(p: float, k: int) -> float:
        return constant_tau(p, k) / ((step if block else step * k) + verify_cost(target, k))

    # α averages over positions; as a conditional acceptance it is low, which errs on the safe
    # side.
    k = max(range(1, max(1, longest) + 1), key=lambda k: speedup(expected.alpha, k))
    return PriorPrediction(
        prior=expected,
        k=k,
        tau=constant_tau(expected.alpha, k),
        speedup=speedup(expected.alpha, k),
        low=speedup(expected.low, k),
        high=speedup(expected.high, k),
    )


def draft_cost(target: ModelInfo, method: str, draft: ModelInfo | None) -> float:
    """Cost of one drafting pass, as a share of the target's pass."""
    whole = max(1, target.active_bytes)
    if method == "draft-mtp":
        head = draft if draft is not None else target
        # the head's block(s) and one pass through the output matrix
        return (head.mtp_bytes / max(1, head.mtp_heads) + target.output_bytes) / whole
    assert draft is not None
    # a trained drafter without an output matrix reads the target's
    borrowed = 0 if draft.output_bytes or draft.kind == "model" else target.output_bytes
    return (draft.active_bytes + borrowed) / whole


def verify_cost(target: ModelInfo, k: int) -> float:
    """Cost of a pass over k+1 tokens, as a multiple of a plain step. More tokens activate more
    experts: of E experts, k+1 tokens that use u each read 1 − (1 − u/E)^(k+1)."""
    if not target.experts or not target.experts_used:
        return 1 + _DENSE_PER_TOKEN * k
    u = min(1.0, target.experts_used / target.experts)
    growth = (1 - (1 - u) ** (k + 1)) / u
    return 1 + _EXPERT_SHARE * (growth - 1) + _DENSE_PER_TOKEN * k
