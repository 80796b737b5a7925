"""What a draft may bring, before anything is measured: a range, never a promise.

speed-up(K) = τ(K) / (draft cost of K tokens + verify cost of K+1), in units of one
plain step of the target; decoding is bound by memory, so costs are shares of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.drafts.families import Prior, prior
from specllama.gguf import ModelInfo

_MOST_K = 8
# Assumptions, not readings; `pick-draft` shows ranges, and a measurement replaces them.
# Verifying one more token on a dense model costs little more than its arithmetic
# (tests/test_rank.py holds it against a reported pair).
_DENSE_PER_TOKEN = 0.03
# Of a MoE model's active bytes the part that is experts; the rest is attention and shared.
_EXPERT_SHARE = 0.8


@dataclass(frozen=True)
class PriorPrediction:
    """At the best K for the prior α. `low`/`high`: speed-ups at the ends of its range."""

    prior: Prior
    k: int
    tau: float
    speedup: float
    low: float
    high: float


def tau(p: float, k: int) -> float:
    """Tokens per verify step with constant conditional acceptance p and draft length k:
    (1 − p^(k+1)) / (1 − p) (Leviathan et al. 2023, eq. 1)."""
    return float(k + 1) if p >= 1 else (1 - p ** (k + 1)) / (1 - p)


def predict(
    target: ModelInfo, method: str, draft: ModelInfo | None, workload: str, most_k: int = _MOST_K
) -> PriorPrediction:
    """The prediction for a draft method; `draft` None = the target's own head."""
    expected = prior(method, workload)
    step = draft_cost(target, method, draft)
    once = method in ("draft-dflash", "draft-dspark")  # a whole block in one pass

    def speedup(p: float, k: int) -> float:
        return tau(p, k) / ((step if once else step * k) + verify_cost(target, k))

    # α is an average over positions; as a conditional acceptance it is a little low,
    # which errs on the safe side.
    k = max(range(1, max(1, most_k) + 1), key=lambda k: speedup(expected.alpha, k))
    return PriorPrediction(
        prior=expected,
        k=k,
        tau=tau(expected.alpha, k),
        speedup=speedup(expected.alpha, k),
        low=speedup(expected.low, k),
        high=speedup(expected.high, k),
    )


def draft_cost(target: ModelInfo, method: str, draft: ModelInfo | None) -> float:
    """One drafting pass, as a share of the target's."""
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
    """A pass over k+1 tokens, as a share of a plain step. With experts, more tokens wake
    more of them: of E experts, k+1 tokens that use u each read 1 − (1 − u/E)^(k+1)."""
    if not target.experts or not target.experts_used:
        return 1 + _DENSE_PER_TOKEN * k
    u = min(1.0, target.experts_used / target.experts)
    growth = (1 - (1 - u) ** (k + 1)) / u
    return 1 + _EXPERT_SHARE * (growth - 1) + _DENSE_PER_TOKEN * k
