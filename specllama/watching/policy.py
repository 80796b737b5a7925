"""When another setting should serve, by what real requests show of the one that runs. Pure.

A setting that drafts is left when it is surely slower than plain decoding, or when another is
expected to be clearly faster. Without speculation nothing is counted that would tell whether it
would pay again: what was left is tried anew after a pause, which doubles each time it loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.settings import Speculation
from specllama.tuning.arms import label
from specllama.tuning.judge import LEAST_GAIN
from specllama.watching.summary import BETTER, ENOUGH_DRAFTED, SURELY, TrafficSummary


@dataclass(frozen=True)
class SwitchTiming:
    """Seconds. `between` two switches; `pause` before a setting that lost is tried again, the
    first time and at most; `quiet`: without a request, before a server is ended whose slots hold
    nothing, and as much more for each second that reading their prompts again would take, to
    `most_quiet`."""

    between: float = 600.0
    pause: float = 600.0
    longest_pause: float = 86_400.0
    quiet: float = 10.0
    most_quiet: float = 900.0

    def times(self, factor: float) -> SwitchTiming:
        return SwitchTiming(
            self.between * factor,
            self.pause * factor,
            self.longest_pause * factor,
            self.quiet * factor,
            self.most_quiet * factor,
        )

    def quiet_for(self, reread_s: float) -> float:
        """How long nobody has to ask before a server may be ended whose slots hold prompts that
        take `reread_s` to be read again."""
        return min(self.quiet * (1 + reread_s), max(self.quiet, self.most_quiet))


@dataclass(frozen=True)
class ServableSetting:
    """A setting that may serve. `expected`: its speed-up over plain decoding as it was measured
    before, None where it was not; `source`: where that was."""

    speculation: Speculation
    expected: float | None = None
    source: str = ""

    @property
    def name(self) -> str:
        return label(self.speculation)


@dataclass(frozen=True)
class Switch:
    """What should serve (None = plain decoding), and why."""

    to: Speculation | None
    reason: str


@dataclass
class _Backoff:
    count: int = 0
    until: float = 0.0


@dataclass
class Policy:
    """`running` since `since` (any clock of seconds). `options`: all settings that may serve;
    `any_length`: shorter drafts too, where the user did not fix K."""

    running: Speculation | None
    options: Sequence[ServableSetting]
    since: float
    pace: SwitchTiming = field(default_factory=SwitchTiming)
    any_length: bool = True
    _losses: dict[str, _Backoff] = field(default_factory=dict)

    def decide(self, p: TrafficSummary, now: float, hardly_accepted: bool = False) -> Switch | None:
        """`p`: the last minutes of real requests to what runs; `hardly_accepted`: α is so low
        that it decides where no speed is known."""
        if now - self.since < self.pace.between:
            return None
        if self.running is None:
            return self._again(p, now)
        if _pays(p):
            self._losses.pop(label(self.running), None)
        if p.surely_slower or (hardly_accepted and p.enough and p.speedup is None):
            return self._away(p, now)
        if (shorter := self._shorter(p, p.better, now)) is not None:
            return shorter
        return self._faster(p, now) if p.enough and p.speedup is not None else None

    def switched(self, to: Speculation | None, now: float) -> None:
        """`to` serves from now on; what ran before has lost."""
        if self.running is not None and to != self.running:
            self.lost(self.running, now)
        self.running, self.since = to, now

    def lost(self, what: Speculation, now: float) -> None:
        """It is not tried again before a pause is over."""
        losses = self._losses.setdefault(label(what), _Backoff())
        losses.count += 1
        pause = self.pace.pause * 2 ** min(losses.count - 1, 30)
        losses.until = now + min(pause, self.pace.longest_pause)

    def _away(self, p: TrafficSummary, now: float) -> Switch:
        """From what is slower than plain decoding: to a shorter draft that still pays, another
        setting, or none."""
        pays = p.best if p.best is not None and p.by_length[p.best] >= LEAST_GAIN else None
        if (shorter := self._shorter(p, pays, now)) is not None:
            return shorter
        said = f"{figures(p)}, {p.slower or 0:.0%} chance that it is slower than plain decoding"
        if p.speedup is None:
            said = f"{figures(p)}: so few accepted, speculation hardly pays"
        other = self._best(now, BETTER)
        if other is None:
            return Switch(None, said)
        return Switch(other.speculation, f"{said}; {_measured(other)}")

    def _shorter(self, p: TrafficSummary, k: int | None, now: float) -> Switch | None:
        if k is None or self.running is None or not self.any_length or k == self.running.n_max:
            return None
        to = replace(self.running, n_max=k)
        if self._waits(to, now):
            return None
        return Switch(to, f"{figures(p)}; K={k} is expected to be about {p.by_length[k]:.2f}x")

    def _faster(self, p: TrafficSummary, now: float) -> Switch | None:
        other = self._best(now, BETTER * (p.speedup or 1.0))
        if other is None:
            return None
        return Switch(other.speculation, f"{figures(p)}; {_measured(other)}")

    def _again(self, p: TrafficSummary, now: float) -> Switch | None:
        """From plain decoding, where somebody asks at all."""
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
            said = f"tried anew after {after}: only drafting tells whether it pays again"
            return Switch(other.speculation, said)
        return Switch(other.speculation, _measured(other))

    def _best(self, now: float, least: float) -> ServableSetting | None:
        """The fastest other setting that does not wait, of those expected to reach `least`."""
        found = [
            o
            for o in self.options
            if o.expected is not None
            and o.expected >= least
            and not self._waits(o.speculation, now)
        ]
        return max(found, key=lambda o: o.expected or 0.0, default=None)

    def _waits(self, s: Speculation, now: float) -> bool:
        losses = self._losses.get(label(s))
        return s == self.running or (losses is not None and now < losses.until)


def figures(p: TrafficSummary) -> str:
    """What real requests show, in a few words."""
    drafted = p.counts.drafted or 0
    alpha = f"α={p.counts.alpha:.2f} over {drafted:,.0f} drafted tokens" if p.counts.alpha else ""
    said = alpha or f"none of {drafted:,.0f} drafted tokens accepted"
    return f"{said}, about {p.speedup:.2f}x" if p.speedup is not None else said


def _pays(p: TrafficSummary) -> bool:
    known = p.enough and p.slower is not None and p.speedup is not None
    return known and (p.slower or 0) < 1 - SURELY and (p.speedup or 0) >= LEAST_GAIN


def _measured(o: ServableSetting) -> str:
    if o.expected is None:
        return f"{o.name} was never measured"
    return f"{o.name} was {o.expected:.2f}x {o.source}".rstrip()


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
