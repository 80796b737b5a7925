"""When to switch to another setting, based on real requests to the current one. Pure.

A setting is replaced when it is almost certainly slower than plain decoding, or when another is
expected to be clearly faster. Without speculation no counter shows whether it would pay off
again: a replaced setting is retried after a pause, which doubles each time it loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.settings import Speculation
from specllama.tuning.judge import MIN_SPEEDUP
from specllama.tuning.records import setting_label
from specllama.watching.summary import (
    BETTER,
    ENOUGH_DRAFTED,
    SURELY,
    TrafficSummary,
    traffic_figures,
)


@dataclass(frozen=True)
class SwitchTiming:
    """Seconds. `between` two switches; `pause` before a setting that lost is retried, at first and
    at most; `quiet`: idle time before a server with empty slots is stopped, plus as much for each
    second that reprocessing their prompts would take, up to `most_quiet`."""

    between: float = 600.0
    pause: float = 600.0
    longest_pause: float = 86_400.0
    quiet: float = 10.0
    most_quiet: float = 900.0

    def scaled(self, factor: float) -> SwitchTiming:
        return SwitchTiming(
            self.between * factor,
            self.pause * factor,
            self.longest_pause * factor,
            self.quiet * factor,
            self.most_quiet * factor,
        )

    def quiet_for(self, reread_s: float) -> float:
        """Idle time before a server may be stopped whose slots hold prompts that take `reread_s`
        to reprocess."""
        return min(self.quiet * (1 + reread_s), max(self.quiet, self.most_quiet))


@dataclass(frozen=True)
class ServableSetting:
    """A setting that may serve. `expected`: its measured speed-up over plain decoding, None if not
    measured; `source`: of the measurement."""

    speculation: Speculation
    expected: float | None = None
    source: str = ""

    @property
    def name(self) -> str:
        return setting_label(self.speculation)


@dataclass(frozen=True)
class Switch:
    """The setting to switch to (None = plain decoding), and why."""

    to: Speculation | None
    reason: str


@dataclass
class _Backoff:
    count: int = 0
    until: float = 0.0


@dataclass
class Policy:
    """`running` since `since` (any clock in seconds). `options`: all settings that may serve;
    `any_length`: shorter drafts too, if the user did not set K."""

    running: Speculation | None
    options: Sequence[ServableSetting]
    since: float
    pace: SwitchTiming = field(default_factory=SwitchTiming)
    any_length: bool = True
    _losses: dict[str, _Backoff] = field(default_factory=dict)

    def decide(self, p: TrafficSummary, now: float, hardly_accepted: bool = False) -> Switch | None:
        """`p`: the last minutes of real requests; `hardly_accepted`: α is so low that it decides
        if the speed is unknown."""
        if now - self.since < self.pace.between:
            return None
        if self.running is None:
            return self._again(p, now)
        if _pays(p):
            self._losses.pop(setting_label(self.running), None)
        if p.surely_slower or (hardly_accepted and p.enough and p.speedup is None):
            return self._away(p, now)
        if (shorter := self._shorter(p, p.better, now)) is not None:
            return shorter
        return self._faster(p, now) if p.enough and p.speedup is not None else None

    def switched(self, to: Speculation | None, now: float) -> None:
        """`to` serves from now on; the setting before has lost."""
        if self.running is not None and to != self.running:
            self.lost(self.running, now)
        self.running, self.since = to, now

    def lost(self, what: Speculation, now: float) -> None:
        """Not retried before a pause is over."""
        losses = self._losses.setdefault(setting_label(what), _Backoff())
        losses.count += 1
        pause = self.pace.pause * 2 ** min(losses.count - 1, 30)
        losses.until = now + min(pause, self.pace.longest_pause)

    def _away(self, p: TrafficSummary, now: float) -> Switch:
        """Away from a setting slower than plain decoding: to a shorter draft that still pays off,
        another setting, or none."""
        pays = p.best if p.best is not None and p.by_length[p.best] >= MIN_SPEEDUP else None
        if (shorter := self._shorter(p, pays, now)) is not None:
            return shorter
        reason = (
            f"{traffic_figures(p)}, {p.slower or 0:.0%} likely to be slower than plain decoding"
        )
        if p.speedup is None:
            reason = f"{traffic_figures(p)}: too low to pay off, at unknown step times"
        other = self._best(now, BETTER)
        if other is None:
            return Switch(None, reason)
        return Switch(other.speculation, f"{reason}; {_measured(other)}")

    def _shorter(self, p: TrafficSummary, k: int | None, now: float) -> Switch | None:
        if k is None or self.running is None or not self.any_length:
            return None
        to = replace(self.running, n_max=k)
        if self._waits(to, now):
            return None
        return Switch(to, f"{traffic_figures(p)}; expecting about {p.by_length[k]:.2f}x with K={k}")

    def _faster(self, p: TrafficSummary, now: float) -> Switch | None:
        other = self._best(now, BETTER * (p.speedup or 1.0))
        if other is None:
            return None
        return Switch(other.speculation, f"{traffic_figures(p)}; {_measured(other)}")

    def _again(self, p: TrafficSummary, now: float) -> Switch | None:
        """Back from plain decoding, if there are requests."""
        if (p.counts.tokens or 0) < ENOUGH_DRAFTED:
            return None
        other = self._best(now, BETTER)
        if other is None:
            unknown = (o for o in self.options if o.expected is None)
            other = next((o for o in unknown if not self._waits(o.speculation, now)), None)
        if other is None:
            return None
        if other.name in self._losses:
            after = _minutes(now - self.since)
            reason = f"retrying after {after}: only drafting shows whether it pays off again"
            return Switch(other.speculation, reason)
        return Switch(other.speculation, _measured(other))

    def _best(self, now: float, least: float) -> ServableSetting | None:
        """The fastest other setting that is not paused, of those expected to reach `least`."""
        found = [
            o
            for o in self.options
            if o.expected is not None
            and o.expected >= least
            and not self._waits(o.speculation, now)
        ]
        return max(found, key=lambda o: o.expected or 0.0, default=None)

    def _waits(self, s: Speculation, now: float) -> bool:
        losses = self._losses.get(setting_label(s))
        return s == self.running or (losses is not None and now < losses.until)


def _pays(p: TrafficSummary) -> bool:
    known = p.enough and p.slower is not None and p.speedup is not None
    return known and (p.slower or 0) < 1 - SURELY and (p.speedup or 0) >= MIN_SPEEDUP


def _measured(o: ServableSetting) -> str:
    if o.expected is None:
        return f"{o.name} has not been measured"
    return f"{o.name} measured {o.expected:.2f}x {o.source}".rstrip()


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
