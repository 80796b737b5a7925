"""What a picture of real requests comes to, and when that is another than before. Pure.

One that has been said holds until it is clearly over: figures near a threshold would else be
news every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.watching.summary import BETTER, SURELY, TrafficSummary

UNKNOWN, PAYS, EVEN, SLOWER, LOW, VERY_LOW, ACCEPTED = (
    *("unknown", "pays", "even", "slower"),
    *("low acceptance", "very low acceptance", "accepted"),
)
_GAIN = 1.03  # under it speculation is as good as none
_OVER = 0.5  # chance of being slower at which "slower" or "pays" is over
_STILL_BETTER = 1.02
_NEAR = 0.03  # of α
_CONFIRMED = 3  # looks in a row that see the same


@dataclass(frozen=True)
class Thresholds:
    """α under which a draft is doubtful, and under which it is better switched off, where
    nothing else is known of it."""

    warn: float = 0.5
    off: float = 0.4


COPIES = Thresholds(0.0, 0.0)  # long copies cost little: few of them accepted may pay


@dataclass(frozen=True)
class TrafficVerdict:
    """`kind`: one of the words above; `better`: another K that would be worth a change."""

    kind: str = UNKNOWN
    better: int | None = None


def verdict(
    p: TrafficSummary, limits: Thresholds, before: TrafficVerdict | None = None
) -> TrafficVerdict:
    """`before`: what holds so far."""
    before = before or TrafficVerdict()
    if not p.enough or p.counts.alpha is None:
        return TrafficVerdict()
    if p.speedup is None:
        return TrafficVerdict(_by_acceptance(p.counts.alpha, limits, before.kind))
    if p.slower is None:  # a few answers: nobody knows yet
        return TrafficVerdict()
    return TrafficVerdict(_by_speed(p.speedup, p.slower, before.kind), _better(p, before.better))


def _by_speed(speedup: float, slower: float, before: str) -> str:
    if slower > SURELY or (before == SLOWER and slower > _OVER):
        return SLOWER
    if (slower < 1 - SURELY and speedup >= _GAIN) or (before == PAYS and slower < _OVER):
        return PAYS
    return EVEN


def _better(p: TrafficSummary, before: int | None) -> int | None:
    """A K that was said to be better stays until it hardly is, or another is clearly better."""
    said = p.by_length.get(before or 0)
    if said is None or said < max(1.0, _STILL_BETTER * p.by_length[max(p.by_length)]):
        return p.better
    return before if max(p.by_length.values()) < BETTER * said else p.better


def _by_acceptance(alpha: float, limits: Thresholds, before: str) -> str:
    off = limits.off + (_NEAR if before == VERY_LOW else 0.0)
    warn = limits.warn + (_NEAR if before in (LOW, VERY_LOW) else 0.0)
    return VERY_LOW if alpha < off else LOW if alpha < warn else ACCEPTED


class VerdictTracker:
    """Tells when the verdict has changed: seen some times in a row, so that one odd answer
    is no news."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self.now = TrafficVerdict()
        self._next, self._count = TrafficVerdict(), 0

    def see(self, p: TrafficSummary) -> bool:
        """Whether it is another than the one that held."""
        found = verdict(p, self._limits, self.now)
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
    """The picture in one line. `adaptive`: what is better is done without being asked."""
    drafted = p.counts.drafted or 0
    alpha = f"α={p.counts.alpha:.2f} over {drafted:,.0f} drafted tokens" if p.counts.alpha else ""
    said = alpha or f"none of {drafted:,.0f} drafted tokens accepted"
    if p.speedup is not None:
        said += f", about {p.speedup:.2f}x"
    if v.kind == SLOWER and p.slower is not None:
        sure = ">99%" if p.slower > 0.99 else f"{p.slower:.0%}"
        said += f" ({sure} chance that it is slower than plain decoding)"
    if v.kind in (LOW, VERY_LOW):
        doubt = "speculation hardly pays" if v.kind == VERY_LOW else "it may not pay"
        said += f": so few accepted, {doubt}"
    if v.better is not None:
        said += f": K={v.better} would be about {p.by_length[v.better]:.2f}x"
    change = v.better is not None or v.kind in (SLOWER, VERY_LOW)
    return f"{said}; `--adaptive` would switch" if change and not adaptive else said
