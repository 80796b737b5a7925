"""What verifying costs, from one plain server. Pure.

V(b) is the time of one pass of the target over b tokens. A plain server shows it: a prompt that
it has in its cache, followed by b new tokens, is evaluated as one batch of b (`timings.prompt_n`
says how many it was). Only the last row of such a batch goes through the output matrix, while
verifying needs every row; the matrix's share of the weights says what the other rows add
(compared with real verify steps on llama.cpp b11434: within 3 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from specllama.tuning.speedup import StepCost, tau_constant

EVER_SEEN = 0.95  # acceptance per position: the best heads on code reach 0.9 (families.toml)


@dataclass(frozen=True)
class VerifyCosts:
    """`plain`: ms of a step without a draft (t_1); `verify`: b → ms of a pass that verifies b
    tokens, for the b that were measured. `slots`: so many requests are answered at once, so
    that verifying b of each is a pass of slots × b."""

    plain: StepCost
    verify: Mapping[int, float] = field(default_factory=dict)
    slots: int = 1

    @property
    def known(self) -> bool:
        """Whether more than the plain step is."""
        return len(self.verify) > 1

    @property
    def longest(self) -> int:
        """The most tokens whose verification has a cost, per request."""
        return max(self.verify, default=1) // self.slots

    def of(self, b: int) -> float | None:
        """ms to verify b tokens of each request, between measured sizes by a straight line;
        None beyond the largest: nothing is extrapolated."""
        b *= self.slots
        if b == self.slots == 1:
            return self.plain.ms
        sizes = sorted(self.verify)
        if not sizes or not sizes[0] <= b <= sizes[-1]:
            return None
        above = next(x for x in sizes if x >= b)
        if above == b:
            return self.verify[b]
        below = max(x for x in sizes if x < b)
        share = (b - below) / (above - below)
        return self.verify[below] + share * (self.verify[above] - self.verify[below])

    @property
    def step(self) -> float:
        """ms of a plain step of all requests together."""
        return self.of(1) or self.plain.ms


def verifying(
    samples: Mapping[int, Sequence[float]], plain: StepCost, output_share: float, slots: int = 1
) -> VerifyCosts:
    """Costs from ms of batches on a cached prefix, by their size. `output_share`: the output
    matrix's part of the bytes that a pass reads."""
    middle = {b: median(times) for b, times in samples.items() if times}
    one = middle.get(1, plain.ms)
    per_row = 1 / (1 - min(0.9, max(0.0, output_share)))
    found = {b: plain.ms + (ms - one) * per_row for b, ms in middle.items() if b > 1}
    found = {b: max(ms, 0.5 * plain.ms) for b, ms in found.items()}
    return VerifyCosts(plain, {1: plain.ms, **found} if found else {}, slots)


def drafted_gain(
    costs: VerifyCosts, p: float, k: int, own: float, once: bool = False
) -> float | None:
    """Speed-up of drafts of k tokens of which each is right with probability p, when one pass
    of the draft takes `own` ms. A step runs the draft k times and once more over what was
    verified (common/speculative.cpp: draft(), process()); `once`: the block is one pass."""
    verify = costs.of(k + 1)
    if verify is None:
        return None
    return tau_constant(p, k) * costs.step / (verify + own * (2 if once else k + 1))


def best_length(costs: VerifyCosts, p: float, own: float, most: int, once: bool = False) -> int:
    """The K up to `most` with the highest gain at acceptance p; `most` where V is not known."""
    gains = {k: drafted_gain(costs, p, k, own, once) for k in range(1, most + 1)}
    known = {k: g for k, g in gains.items() if g is not None}
    return max(known, key=lambda k: known[k]) if known else most


def needed_acceptance(
    costs: VerifyCosts, own: float, most: int, least_gain: float, once: bool = False
) -> float | None:
    """The least acceptance per position at which some K reaches `least_gain`; None when none
    does even at 1."""

    def gain(p: float) -> float:
        found = (drafted_gain(costs, p, k, own, once) for k in range(1, most + 1))
        return max((g for g in found if g is not None), default=0.0)

    if gain(1.0) < least_gain:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= least_gain else (middle, high)
    return high


def why_no_draft(
    costs: VerifyCosts, own: float, most: int, least_gain: float, once: bool = False
) -> str:
    """The sentence that ends a candidate without a launch; "" when it may pay. `own`: the least
    that one pass of it can cost (by its bytes)."""
    most = min(most, costs.longest - 1)
    if not costs.known or most < 1:
        return ""
    free = max((drafted_gain(costs, 1.0, k, 0.0) or 0.0, k) for k in range(1, most + 1))
    if free[0] < least_gain:
        return (
            f"no draft can pay here: verifying {free[1] + 1} tokens takes as long as "
            f"{(free[1] + 1) / max(0.01, free[0]):.1f} plain steps, so that even one that is always "
            f"right and costs nothing gives {free[0]:.2f}x"
        )
    need = needed_acceptance(costs, own, most, least_gain, once)
    if need is None:
        return f"it costs {own:.1f} ms a token beside {costs.plain.ms:.1f}: it cannot pay even if always right"
    if need > EVER_SEEN:
        return (
            f"it would have to guess {need:.0%} of the tokens for {least_gain:g}x here; "
            f"more than {EVER_SEEN:.0%} is never seen"
        )
    return ""
