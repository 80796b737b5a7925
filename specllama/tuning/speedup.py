"""The arithmetic of speculation: acceptance, tokens per step, the cost curve, speed for every
draft length. Pure: numbers in, numbers out.

a_i = share of verify steps in which the first i drafted tokens were all accepted;
τ(K) = 1 + Σ_{i≤K} a_i tokens per step (Leviathan et al. 2023); speed(K) = τ(K) / t(K), where
t(K) is the time of a step that drafts and verifies K tokens. Nothing is ever extrapolated:
a draft length whose cost was not measured has no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from specllama.drafts.acceptance import constant_tau


@dataclass(frozen=True)
class Step:
    """One verify step: `drafted` tokens were verified and `accepted` of them accepted, in `ms`
    (drafting included). It yields accepted + 1 tokens."""

    drafted: int
    accepted: int
    ms: float


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of one step with a given number of drafted tokens: mean and its standard
    error, over `n` steps."""

    ms: float
    error: float
    n: int


def conditional(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Acceptance of each position given that all before it were accepted: a_i / a_{i−1}."""
    out, before = [], 1.0
    for a in acceptance:
        out.append(a / before if before > 0 else 0.0)
        before = a
    return tuple(out)


def effective_acceptance(alpha: float, k: int) -> float:
    """α·K: below 1.0, speculation cannot pay off. A rule of thumb; nothing is decided by it."""
    return alpha * k


def mean_cost(times: Sequence[float]) -> StepCost | None:
    """The mean of all times; None for fewer than two."""
    if len(times) < 2:
        return None
    mean = sum(times) / len(times)
    variance = sum((t - mean) ** 2 for t in times) / (len(times) - 1)
    return StepCost(mean, math.sqrt(variance / len(times)), len(times))


def interpolated(points: Mapping[int, float], x: float) -> float | None:
    """Linear interpolation between the points around x; None outside their range."""
    below = max((k for k in points if k <= x), default=None)
    above = min((k for k in points if k >= x), default=None)
    if below is None or above is None:
        return None
    if below == above:
        return points[below]
    share = (x - below) / (above - below)
    return points[below] + share * (points[above] - points[below])


@dataclass(frozen=True)
class StepLog:
    """The steps of several requests to one server, in order."""

    steps: tuple[Step, ...]

    @property
    def drafting(self) -> tuple[Step, ...]:
        """Steps that verified a draft."""
        return tuple(s for s in self.steps if s.drafted)

    @property
    def tokens(self) -> int:
        return sum(s.accepted + 1 for s in self.steps)

    @property
    def ms(self) -> float:
        return sum(s.ms for s in self.steps)

    @property
    def drafted(self) -> int:
        return sum(s.drafted for s in self.steps)

    @property
    def accepted(self) -> int:
        return sum(s.accepted for s in self.steps)

    @property
    def alpha(self) -> float | None:
        """α = accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """τ over the steps that drafted; None when none did."""
        n = len(self.drafting)
        return 1 + self.accepted / n if n else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.ms * 1000 if self.ms > 0 else None

    @cached_property
    def acceptance(self) -> tuple[float, ...]:
        """a_1, a_2, …: the share of steps that accepted the first i tokens, among those that
        drafted at least i. Drafts shortened by the end of a request do not count."""
        longest = max((s.drafted for s in self.steps), default=0)
        out = []
        for i in range(1, longest + 1):
            samples = [s for s in self.steps if s.drafted >= i]
            out.append(sum(s.accepted >= i for s in samples) / len(samples))
        # with fewer samples a_i may come out higher by chance, but it never grows with i
        for i in range(1, len(out)):
            out[i] = min(out[i], out[i - 1])
        return tuple(out)

    def cost(self, drafted: int) -> StepCost | None:
        """The cost of a step with that many drafted tokens; None for fewer than two samples.
        Outliers (another program ran) are omitted: more than four times the median absolute
        deviation from the median."""
        return _cost([s.ms for s in self.steps if s.drafted == drafted])

    def curve(self) -> dict[int, StepCost]:
        """t(0), t(1), …, for each measured length."""
        lengths = sorted({s.drafted for s in self.steps})
        found = {k: self.cost(k) for k in lengths}
        return {k: c for k, c in found.items() if c is not None}


def _cost(times: Sequence[float]) -> StepCost | None:
    if len(times) < 2:
        return None
    middle = median(times)
    spread = median([abs(t - middle) for t in times])
    inliers = [t for t in times if abs(t - middle) <= max(4 * spread, 0.02 * middle)] or list(times)
    mean = sum(inliers) / len(inliers)
    variance = sum((t - mean) ** 2 for t in inliers) / max(1, len(inliers) - 1)
    # Timers and schedulers are no more precise than 1 %, whatever a few steps suggest.
    error = max(math.sqrt(variance / len(inliers)), 0.01 * mean / math.sqrt(len(inliers)))
    return StepCost(mean, error, len(inliers))


@dataclass(frozen=True)
class Trend:
    """Conditional acceptance by depth within a draft: `start` + `slope` × depth. `mean`: over all
    depths."""

    start: float
    slope: float
    mean: float

    def at(self, depth: int) -> float:
        return min(0.99, max(0.01, self.start + self.slope * depth))


def trend(log: StepLog) -> Trend:
    """Trained heads get worse with depth; a draft model, which sees its own text, does not. A
    decline only counts if the steps show it significantly (two standard errors)."""
    seen: list[tuple[int, float, int]] = []  # depth, share right, how often
    for depth in range(1, max((s.drafted for s in log.steps), default=0) + 1):
        reached = [s for s in log.steps if s.drafted >= depth and s.accepted >= depth - 1]
        if reached:
            right = sum(s.accepted >= depth for s in reached)
            seen.append((depth, right / len(reached), len(reached)))
    total = sum(n for _, _, n in seen)
    if not total:
        return Trend(0.0, 0.0, 0.0)
    mean = sum(p * n for _, p, n in seen) / total
    middle = sum(d * n for d, _, n in seen) / total
    spread = sum(n * (d - middle) ** 2 for d, _, n in seen)
    if spread <= 0:
        return Trend(mean, 0.0, mean)
    slope = sum(n * (d - middle) * (p - mean) for d, p, n in seen) / spread
    error = math.sqrt(max(mean * (1 - mean), 0.01) / spread)
    slope = slope if slope < -2 * error else 0.0
    return Trend(mean - slope * middle, slope, mean)


def replayed_tau(log: StepLog, k: int, by_depth: Trend) -> float:
    """τ of one response at draft length k.

    Where steps begin depends on K: a_1 at K = 8 is not a_1 at K = 1. So τ is not computed from
    a_i, but by replaying the verify loop over the response: its steps show which tokens the
    draft predicted. A prediction made deeper in a draft than at this K counts for a little more
    if acceptance declines with depth.
    """
    predicted = _predicted(log)
    begins = [0.0] * (len(predicted) + k + 2)
    begins[0] = 1.0
    steps = 0.0
    for at in range(len(predicted)):
        steps += begins[at]
        reached, length = begins[at], min(k, len(predicted) - at - 1)
        for i in range(length):
            right = _right(predicted[at + i], i + 1, by_depth)
            begins[at + i + 1] += reached * (1 - right)
            reached *= right
        begins[at + length + 1] += reached
    return len(predicted) / steps if steps > 0 else 1.0


def _predicted(log: StepLog) -> list[tuple[bool | None, int]]:
    """For each token except the first: whether the draft predicted it (None: it did not try, after
    a fully accepted draft), and the depth in its draft."""
    out: list[tuple[bool | None, int]] = []
    for s in log.steps:
        out += [(True, i + 1) for i in range(s.accepted)]
        out.append((False if s.drafted > s.accepted else None, s.accepted + 1))
    return out


def _right(guess: tuple[bool | None, int], depth: int, by_depth: Trend) -> float:
    """Probability that a prediction would be right at another depth than it was made at."""
    was, made_at = guess
    if was is None:
        return by_depth.at(depth)
    before, now = by_depth.at(made_at), by_depth.at(depth)
    if was:
        return min(1.0, now / before)
    return max(0.0, (now - before) / (1 - before))


def agreement(log: StepLog) -> list[bool]:
    """For each token of a response except the first: whether the draft predicted it. The token after
    a fully accepted draft was not predicted; it counts like the one before."""
    bits: list[bool] = []
    for s in log.steps:
        bits += [True] * s.accepted
        bits.append(s.accepted == s.drafted > 0)
    return bits


def fit_cost(log: StepLog) -> tuple[float, float]:
    """Least-squares fit of t = fixed + per_token × drafted over all steps: (fixed ms, ms per
    drafted token). Shows the trend; jumps only show in the curve."""
    n = len(log.steps)
    if n < 2:
        return (log.ms / n if n else 0.0), 0.0
    x_mean = log.drafted / n
    t_mean = log.ms / n
    spread = sum((s.drafted - x_mean) ** 2 for s in log.steps)
    slope = sum((s.drafted - x_mean) * (s.ms - t_mean) for s in log.steps) / spread if spread else 0
    return t_mean - slope * x_mean, slope


def break_even(curve: Mapping[int, StepCost], baseline_ms: float) -> float | None:
    """The lowest constant acceptance at which some measured K is as fast as plain decoding; None if
    none is, even at 1.0."""

    def gain(p: float) -> float:
        return max(
            (constant_tau(p, k) / c.ms * baseline_ms for k, c in curve.items() if k and c.ms > 0),
            default=0.0,
        )

    if gain(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= 1 else (middle, high)
    return high
