"""The verdict on real requests, and when it changes. Pure.

A verdict holds until it clearly no longer applies; otherwise figures near a threshold would change
it every few seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specllama.tuning.judge import MIN_SPEEDUP
from specllama.watching.summary import BETTER, SURELY, TrafficSummary, traffic_figures

UNKNOWN, PAYS, EVEN, SLOWER, LOW, VERY_LOW, ACCEPTED = (
    *("unknown", "pays", "even", "slower"),
    *("low acceptance", "very low acceptance", "accepted"),
)
_OVER = 0.5  # probability of being slower at which "slower" or "pays" ends
_STILL_BETTER = 1.02
_NEAR = 0.03  # of α
_MIN_DRAFTED = 30  # tokens
_CONFIRMED = 3  # identical snapshots in a row


@dataclass(frozen=True)
class Thresholds:
    """α below which a draft is doubtful (`warn`), and below which it should be off, if its
    speed-up is unknown."""

    warn: float = 0.5
    off: float = 0.4


# n-grams: long copies are cheap, so a low acceptance rate can pay off; or the speed was measured
NO_THRESHOLDS = Thresholds(0.0, 0.0)


def surely_at_most(drafted: int, accepted: int) -> float:
    """An upper limit for α, two standard errors above the observed one; 1 if hardly anything was
    drafted."""
    if drafted < _MIN_DRAFTED:
        return 1.0
    alpha = accepted / drafted
    return alpha + 2 * math.sqrt(alpha * (1 - alpha) / drafted)


@dataclass(frozen=True)
class TrafficVerdict:
    """`kind`: one of the constants above; `better`: another K worth switching to."""

    kind: str = UNKNOWN
    better: int | None = None


def traffic_verdict(
    p: TrafficSummary, limits: Thresholds, before: TrafficVerdict | None = None
) -> TrafficVerdict:
    """`before`: the current verdict."""
    before = before or TrafficVerdict()
    if not p.enough or p.counts.alpha is None:
        return TrafficVerdict()
    if p.speedup is None:
        return TrafficVerdict(_by_acceptance(p.counts.alpha, limits, before.kind))
    if p.slower is None:  # too few responses yet
        return TrafficVerdict()
    return TrafficVerdict(_by_speed(p.speedup, p.slower, before.kind), _better(p, before.better))


def _by_speed(speedup: float, slower: float, before: str) -> str:
    if slower > SURELY or (before == SLOWER and slower > _OVER):
        return SLOWER
    if (slower < 1 - SURELY and speedup >= MIN_SPEEDUP) or (before == PAYS and slower < _OVER):
        return PAYS
    return EVEN


def _better(p: TrafficSummary, before: int | None) -> int | None:
    """A better K stays until it hardly is, or another is clearly better."""
    speedup = p.by_length.get(before or 0)
    if speedup is None or speedup < max(1.0, _STILL_BETTER * p.by_length[max(p.by_length)]):
        return p.better
    return before if max(p.by_length.values()) < BETTER * speedup else p.better


def _by_acceptance(alpha: float, limits: Thresholds, before: str) -> str:
    off = limits.off + (_NEAR if before == VERY_LOW else 0.0)
    warn = limits.warn + (_NEAR if before in (LOW, VERY_LOW) else 0.0)
    return VERY_LOW if alpha < off else LOW if alpha < warn else ACCEPTED


class VerdictTracker:
    """Tracks changes of the verdict. A change needs several snapshots in a row, so that one odd
    response does not count."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self.now = TrafficVerdict()
        self._next, self._count = TrafficVerdict(), 0

    def update(self, p: TrafficSummary) -> bool:
        """Whether the verdict changes."""
        found = traffic_verdict(p, self._limits, self.now)
        if found == self.now or found.kind == UNKNOWN:
            self._count = 0
            return False
        self._count = self._count + 1 if found == self._next else 1
        self._next = found
        if self._count < _CONFIRMED:
            return False
        self.now, self._count = found, 0
        return True


def sentence(p: TrafficSummary, v: TrafficVerdict, adaptive: bool = False) -> str:
    """The summary and verdict in one line. `adaptive`: serve switches by itself."""
    text = traffic_figures(p)
    if v.kind == SLOWER and p.slower is not None:
        sure = ">99%" if p.slower > 0.99 else f"{p.slower:.0%}"
        text += f" ({sure} likely to be slower than plain decoding)"
    if v.kind in (LOW, VERY_LOW):
        doubt = "probably does not" if v.kind == VERY_LOW else "may not"
        text += f": low acceptance, and step times were not measured: speculation {doubt} pay off"
    if v.better is not None:
        text += f": expecting about {p.by_length[v.better]:.2f}x with K={v.better}"
    change = v.better is not None or v.kind in (SLOWER, VERY_LOW)
    return f"{text}; `--adaptive` would switch" if change and not adaptive else text
