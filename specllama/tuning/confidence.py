"""Confidence in a speed-up: intervals and probabilities over prompts. Pure.

One prompt gives one logarithm of a ratio (plain time per token ÷ own), weighted by its tokens.
Prompts differ more than the steps within one, so they are the sample: Student's t with few
degrees of freedom, not a bootstrap (its percentile interval over 2 to 6 prompts covers half to
84 %, tests/test_confidence.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

_MIN_ERROR = 0.01  # of one prompt: timers and schedulers are no more precise
_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratios:
    """Speed-ups of several prompts: logarithms, and weights (tokens). `shared`: the standard
    error, as a logarithm, of what they have in common: predicted costs, which are wrong for all
    texts alike if they were measured at a bad moment."""

    logs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    shared: float = 0.0

    def __add__(self, other: Ratios) -> Ratios:
        own, theirs = sum(self.weights), sum(other.weights)
        shared = math.hypot(own * self.shared, theirs * other.shared) / ((own + theirs) or 1)
        return Ratios(self.logs + other.logs, self.weights + other.weights, shared)

    def __len__(self) -> int:
        return len(self.logs)

    def shifted(self, by: float) -> Ratios:
        """All of them times exp(by)."""
        return replace(self, logs=tuple(x + by for x in self.logs))

    @property
    def mean(self) -> float:
        """Weighted mean of the logarithms; 0 when there are none."""
        total = sum(self.weights)
        return sum(w * x for w, x in zip(self.weights, self.logs, strict=True)) / (total or 1)

    @property
    def value(self) -> float:
        """The speed-up: the weighted geometric mean."""
        return math.exp(self.mean)

    @property
    def freedom(self) -> float:
        """Degrees of freedom: prompts that count alike, less one."""
        squares = sum(w * w for w in self.weights)
        return sum(self.weights) ** 2 / squares - 1 if squares else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite for fewer than two prompts."""
        n, total = len(self), sum(self.weights)
        if n < 2 or self.freedom <= 0:
            return math.inf
        m = self.mean
        spread = sum(w * w * (x - m) ** 2 for w, x in zip(self.weights, self.logs, strict=True))
        found = math.sqrt(spread / total**2 * n / (n - 1))
        return math.hypot(max(found, _MIN_ERROR / math.sqrt(n)), self.shared)

    def interval(self, comparisons: int = 1) -> Interval:
        """The 95 % interval, wider when it is one of several comparisons (Bonferroni)."""
        if math.isinf(self.error):
            return Interval(self.value, 0.0, math.inf)
        p = 1 - (1 - _LEVEL) / 2 / max(1, comparisons)
        half = student_quantile(p, self.freedom) * self.error
        return Interval(self.value, math.exp(self.mean - half), _exp(self.mean + half))

    def chance_below(self, ratio: float) -> float:
        """Probability that the true speed-up is below `ratio` (Student's t, no prior)."""
        if math.isinf(self.error):
            return 0.5
        return student_cdf((math.log(ratio) - self.mean) / self.error, self.freedom)


def shrunk(r: Ratios) -> float:
    """The ratio, shrunk towards 1 (positive-part James-Stein estimator, 1961); 1 for fewer than
    three prompts."""
    if len(r) < 3 or not r.mean:
        return 1.0
    return math.exp(r.mean * max(0.0, 1 - (r.error / r.mean) ** 2))


def ratios(pairs: Sequence[tuple[float, float, float]]) -> Ratios:
    """From (baseline ms per token, own ms per token, tokens) of each prompt; those without a
    speed (0) are omitted."""
    good = [(math.log(base / own), n) for base, own, n in pairs if base > 0 and own > 0 and n > 0]
    return Ratios(tuple(x for x, _ in good), tuple(float(n) for _, n in good))


def _exp(x: float) -> float:
    """exp without overflow: with two prompts of very different weight the interval is huge."""
    return math.exp(x) if x < 700 else math.inf


def student_cdf(t: float, freedom: float) -> float:
    """Student's t: P(T ≤ t), by the regularised incomplete beta function."""
    tail = 0.5 * _beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=1024)
def student_quantile(p: float, freedom: float) -> float:
    """The t with P(T ≤ t) = p, by bisection."""
    low, high = -1e4, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (Lentz; Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    tiny, c = 1e-300, 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or tiny)
    out = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            out *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * out / a
