"""A server's counters, and their differences between two snapshots. Pure.

Counters only grow until the server restarts; then everything in the later snapshot is new.
Printed counters are rounded: differences that rounding could cause are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_CONTRADICTED = "the counters contradict themselves"
_ROUNDED = 20  # a count must be this many times its rounding before α is reported


@dataclass(frozen=True)
class Counts:
    """Counts since the server started or between two snapshots. None: the engine does not count
    it. `steps` that verified a draft; `by_position`: drafted tokens accepted at each depth;
    `tokens` generated, including the first of each completion, in `seconds` of decoding, summed
    over requests. `rounding`: maximum error of the counts, `rounding_s` of the seconds."""

    drafted: float | None = None
    accepted: float | None = None
    steps: float | None = None
    by_position: tuple[float, ...] = ()
    tokens: float | None = None
    seconds: float | None = None
    requests: float | None = None
    rounding: float = 0.0
    rounding_s: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            **{n: _both(getattr(self, n), getattr(other, n)) for n in _COUNTED},
            by_position=_summed(self.by_position, other.by_position),
            rounding=max(self.rounding, other.rounding),
            rounding_s=max(self.rounding_s, other.rounding_s),
        )

    def scaled(self, share: float) -> Counts:
        """All counts times `share`, for aging."""
        scaled: dict[str, Any] = {
            n: None if (v := getattr(self, n)) is None else v * share for n in _COUNTED
        }
        return replace(self, **scaled, by_position=tuple(x * share for x in self.by_position))

    def without(self, own: Counts) -> Counts:
        """These counts without those of `own`. A remainder that rounding explains is 0."""
        left: dict[str, Any] = {}
        for n in _COUNTED:
            slack = max(2 * self.rounding_s, 1e-3) if n == "seconds" else 2 * self.rounding
            counted, ours = getattr(self, n), getattr(own, n)
            rest = None if counted is None else counted - (ours or 0.0)
            left[n] = rest if rest is None or not ours or rest > slack else 0.0
        ours_at = (*own.by_position, *(0.0,) * len(self.by_position))
        by_position = tuple(
            max(0.0, x - y) for x, y in zip(self.by_position, ours_at, strict=False)
        )
        return replace(self, **left, by_position=by_position)

    @property
    def drafting(self) -> bool:
        """Whether enough was drafted for a meaningful rate."""
        return bool(self.drafted) and (self.drafted or 0) > _ROUNDED * self.rounding

    @property
    def doubt(self) -> str:
        """Why these counts are impossible, "" if they are not."""
        slack = 2 * self.rounding
        accepted = self.accepted or 0.0
        drafted = accepted if self.drafted is None else self.drafted + slack
        steps = None if self.steps is None else self.steps + slack
        if (problem := contradiction(drafted, accepted, steps)) or not self.steps:
            return problem
        worst = next((a for a in self.by_position if not 0 <= a <= self.steps + slack), None)
        if worst is None:
            return ""
        return f"{_CONTRADICTED}: {worst / self.steps:g} of the drafts accepted"

    @property
    def alpha(self) -> float | None:
        """α = accepted / drafted; None if unknown or implausible."""
        if not self.drafting or self.accepted is None or self.doubt:
            return None
        return min(1.0, self.accepted / (self.drafted or 1.0))

    @property
    def tau(self) -> float | None:
        """τ: tokens per verify step, 1 + accepted / steps."""
        if not self.drafting or self.accepted is None or not self.steps or self.doubt:
            return None
        return 1 + self.accepted / self.steps

    @property
    def acceptance(self) -> tuple[float, ...]:
        """a_1, a_2, …: the share of verify steps in which the first i drafted tokens were all
        accepted; it never grows with i."""
        if not self.drafting or not self.steps or self.doubt:
            return ()
        out: list[float] = []
        for accepted in self.by_position:  # rounded steps may be slightly too low
            out.append(min(out[-1] if out else 1.0, accepted / self.steps))
        return tuple(out)

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed of one request, without the first token, which comes from the prompt."""
        if not self.tokens or not self.seconds:
            return None
        if self.tokens <= _ROUNDED * self.rounding or self.seconds <= _ROUNDED * self.rounding_s:
            return None
        return max(0.0, self.tokens - (self.requests or 0)) / self.seconds

    @property
    def drafted_per_second(self) -> float | None:
        """Drafted tokens per second of decoding."""
        known = self.drafting and self.seconds and self.seconds > _ROUNDED * self.rounding_s
        return self.drafted / self.seconds if known and self.drafted and self.seconds else None


_COUNTED = ("drafted", "accepted", "steps", "tokens", "seconds", "requests")
NOTHING = Counts()


@dataclass(frozen=True)
class Gauges:
    """Current values. None: not reported. `busy`: running requests; α, τ and tok/s as computed by
    the engine."""

    busy: int | None = None
    alpha: float | None = None
    tau: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Slot:
    """One slot of llama-server: whether it is processing a request, `decoded` tokens of its current
    or last `task`, whether it can speculate, tokens in its cache."""

    id: int
    busy: bool
    decoded: int = 0
    task: int | None = None
    speculative: bool | None = None
    cached: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a server. `when`: time.monotonic(); `started`: its start as Unix time, None if
    not reported; `missing`: notes on missing values."""

    engine: str
    when: float
    counts: Counts
    gauges: Gauges = Gauges()
    slots: tuple[Slot, ...] = ()
    started: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether the server is known to have no running requests."""
        if self.slots:
            return not any(s.busy for s in self.slots)
        return self.gauges.busy == 0


def between(before: Snapshot, after: Snapshot) -> Counts:
    """Counts between two snapshots; all counts of `after` if the server restarted in between."""
    old, new = before.counts, after.counts
    if before.engine != after.engine or before.started != after.started or _fell(old, new):
        return new
    # a counter that first appears in `after` was 0 before
    found = old.scaled(-1) + new
    gone: dict[str, Any] = {n: None for n in _COUNTED if getattr(new, n) is None}
    return replace(found, **gone)


def _fell(old: Counts, new: Counts) -> bool:
    """Whether a counter decreased."""
    pairs = [(getattr(old, n), getattr(new, n)) for n in _COUNTED]
    pairs += zip(old.by_position, new.by_position, strict=False)
    gone = len(old.by_position) > len(new.by_position)
    return gone or any(b < a for a, b in pairs if a is not None and b is not None)


def _both(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _summed(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    longest = max(len(a), len(b))
    return tuple(
        (a[i] if i < len(a) else 0.0) + (b[i] if i < len(b) else 0.0) for i in range(longest)
    )


def contradiction(drafted: float, accepted: float, steps: float | None = None) -> str:
    """Why these counts are impossible, "" if they are not. `steps`: verify steps, None if not
    counted. A counter that decreased (a restart in between) is negative here."""
    counts = (drafted, accepted, 0 if steps is None else steps)
    if not all(math.isfinite(n) for n in counts):
        return "the counters are not finite numbers"
    if accepted > drafted or min(drafted, accepted) < 0:
        return f"{_CONTRADICTED}: {accepted:,.0f} of {drafted:,.0f} drafted tokens accepted"
    if steps is not None and steps < 0:
        return f"{_CONTRADICTED}: {steps:,.0f} verify steps"
    return ""
