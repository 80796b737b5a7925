"""Verification cost, from one baseline server. Pure.

V(b) is the time of one pass of the target over b tokens. A baseline server shows it: a cached
prompt followed by b new tokens is evaluated as one batch of b (`timings.prompt_n` reports b).
Only the last row of such a batch goes through the output matrix, while verification needs every
row; the cost of the other rows follows from the matrix's share of the weights (within 3 % of
real verify steps on llama.cpp b11434).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from specllama.drafts.acceptance import constant_tau
from specllama.tuning.speedup import StepCost, interpolated

_ERRORS = 2.0
HIGHEST_ACCEPTANCE = 0.95  # acceptance per token: the best heads on code reach 0.9 (families.toml)


@dataclass(frozen=True)
class VerifyCosts:
    """`plain_step`: ms of a step without a draft (t_1); `verify`: b → ms of a pass that verifies b
    tokens, for each measured b. `slots`: number of concurrent requests, so that verifying b
    tokens of each is a pass over slots × b."""

    plain_step: StepCost
    verify: Mapping[int, float] = field(default_factory=dict)
    slots: int = 1

    @property
    def known(self) -> bool:
        """Whether V(b) is known beyond the plain step."""
        return len(self.verify) > 1

    @property
    def longest(self) -> int:
        """The most tokens per request with a known verification cost."""
        return max(self.verify, default=1) // self.slots

    def of(self, b: int) -> float | None:
        """ms to verify b tokens of each request, interpolated linearly between measured sizes;
        None beyond the largest: nothing is extrapolated."""
        b *= self.slots
        if b == self.slots == 1:
            return self.plain_step.ms
        return interpolated(self.verify, b)

    @property
    def at_slowest(self) -> VerifyCosts:
        """The same if a plain step takes as long as its error allows (two standard errors), where
        drafts gain most."""
        more = _ERRORS * self.plain_step.error
        plain = replace(self.plain_step, ms=self.plain_step.ms + more)
        return replace(
            self, plain_step=plain, verify={b: ms + more for b, ms in self.verify.items()}
        )

    @property
    def step(self) -> float:
        """ms of a plain step for all concurrent requests."""
        return self.of(1) or self.plain_step.ms


def verify_costs(
    samples: Mapping[int, Sequence[float]],
    plain_step: StepCost,
    output_share: float,
    slots: int = 1,
) -> VerifyCosts:
    """Costs from ms of batches after a cached prefix, by size. `output_share`: the output matrix's
    share of the bytes read per pass."""
    middle = {b: median(times) for b, times in samples.items() if times}
    one = middle.get(1, plain_step.ms)
    per_row = 1 / (1 - min(0.9, max(0.0, output_share)))
    found = {b: plain_step.ms + (ms - one) * per_row for b, ms in middle.items() if b > 1}
    found = {b: max(ms, 0.5 * plain_step.ms) for b, ms in found.items()}
    return VerifyCosts(plain_step, {1: plain_step.ms, **found} if found else {}, slots)


def drafted_gain(
    costs: VerifyCosts, p: float, k: int, draft_ms: float, one_pass: bool = False
) -> float | None:
    """Speed-up with draft length k and acceptance p per token, if one pass of the draft takes
    `draft_ms`. A step runs the draft k times and once more over the verified tokens
    (common/speculative.cpp: draft(), process()); `one_pass`: it drafts a block in one pass."""
    verify = costs.of(k + 1)
    if verify is None:
        return None
    return constant_tau(p, k) * costs.step / (verify + draft_ms * (2 if one_pass else k + 1))


def best_length(
    costs: VerifyCosts, p: float, draft_ms: float, longest: int, one_pass: bool = False
) -> int:
    """The K up to `longest` with the highest gain at acceptance p; `longest` if V is unknown."""
    gains = {k: drafted_gain(costs, p, k, draft_ms, one_pass) for k in range(1, longest + 1)}
    known = {k: g for k, g in gains.items() if g is not None}
    return max(known, key=lambda k: known[k]) if known else longest


def needed_acceptance(
    costs: VerifyCosts, draft_ms: float, longest: int, least_gain: float, one_pass: bool = False
) -> float | None:
    """The lowest acceptance per token at which some K reaches `least_gain`; None if none does
    even at 1."""

    def gain(p: float) -> float:
        found = (drafted_gain(costs, p, k, draft_ms, one_pass) for k in range(1, longest + 1))
        return max((g for g in found if g is not None), default=0.0)

    if gain(1.0) < least_gain:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= least_gain else (middle, high)
    return high


def why_no_draft(
    costs: VerifyCosts, draft_ms: float, longest: int, least_gain: float, one_pass: bool = False
) -> str:
    """Why a draft cannot pay off, so that it is not launched; "" if it may. `draft_ms`: the minimum
    time of one pass of it (by its bytes)."""
    longest = min(longest, costs.longest - 1)
    if not costs.known or longest < 1:
        return ""
    free = max((drafted_gain(costs, 1.0, k, 0.0) or 0.0, k) for k in range(1, longest + 1))
    if free[0] < least_gain:
        return (
            f"no draft can pay off here: verifying {free[1] + 1} tokens takes as long as "
            f"{(free[1] + 1) / max(0.01, free[0]):.1f} plain steps, so even a free "
            f"draft at 100% acceptance gives {free[0]:.2f}x"
        )
    need = needed_acceptance(costs, draft_ms, longest, least_gain, one_pass)
    if need is None:
        return (
            f"drafting takes {draft_ms:.1f} ms per token, plain decoding "
            f"{costs.plain_step.ms:.1f} ms: not even 100% acceptance would pay off"
        )
    if need > HIGHEST_ACCEPTANCE:
        return (
            f"{least_gain:g}x would need {need:.0%} acceptance per token here; "
            f"more than {HIGHEST_ACCEPTANCE:.0%} has never been observed"
        )
    return ""
