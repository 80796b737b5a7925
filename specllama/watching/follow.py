"""Following one server while it serves: looks every few seconds, keeps what real requests showed,
and tells when the picture changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specllama.engine.settings import Speculation
from specllama.errors import SpecllamaError
from specllama.tuning.step_times import StepTimes
from specllama.watching import traffic
from specllama.watching.counters import NOTHING, Counts, Snapshot
from specllama.watching.history import KEPT_S, History
from specllama.watching.reader import CounterReader
from specllama.watching.request_log import RequestLog
from specllama.watching.summary import Samples, TrafficSummary, summarize
from specllama.watching.traffic import TrafficKey, longest
from specllama.watching.verdict import Thresholds, TrafficVerdict, VerdictTracker

LOOK_S = 3.0
RECENT_S = 300.0  # what is judged: a change of traffic shows within minutes
_KEEP_S = 60.0  # between two times that it is written


@dataclass
class Follower:
    """One server that serves `speculation`. `times`: what its steps take, None where nothing
    was measured; `about`: what the traffic is kept as (None = it is not kept); `requests`: where
    they are counted when the server does not. `tick` is called often, and looks when it is time."""

    reader: CounterReader
    speculation: Speculation | None
    times: StepTimes | None = None
    about: TrafficKey | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    requests: RequestLog | None = None
    clock: Callable[[], float] = time.monotonic
    history: History = field(default_factory=History)
    _next: float = 0.0
    _kept: float = 0.0
    _unkept: Counts = NOTHING
    _own: Counts = NOTHING

    def __post_init__(self) -> None:
        self._samples, self._fresh = Samples(self.times), Samples(self.times)
        self._tracker = VerdictTracker(self.limits)
        self._kept = self.clock()
        self._measured: StepTimes | None = None

    def tick(self) -> Counts | None:
        """What is new since the last look; None between looks, and where the server did not
        answer. Never raises."""
        if self.clock() < self._next:
            return None
        self._next = self.clock() + LOOK_S
        return self.look()

    def look(self) -> Counts | None:
        """Looks now."""
        try:
            new = self.history.add(self._read(), self._own)
        except SpecllamaError:
            return None
        self._own = NOTHING
        self._samples.add(new)
        self._fresh.add(new)
        self._unkept += new
        if self.clock() - self._kept >= _KEEP_S:
            self.keep()
        return new

    def exclude(self, own: Counts) -> None:
        """Requests of ours since the last look: the server counts them, but they are no traffic."""
        self._own += own

    def _read(self) -> Snapshot:
        now = self.reader.read()
        if self.requests is None or now.counts.requests is not None:
            return now
        return replace(now, counts=replace(now.counts, requests=float(self.requests.count())))

    def timed(self, times: StepTimes) -> None:
        """Steps have been timed now; what was counted before is judged by it too."""
        self.times = self._measured = times
        self._samples, self._fresh = Samples(times), Samples(times)
        for new in self.history.recent(RECENT_S):
            self._samples.add(new)
            self._fresh.add(new)

    @property
    def snapshot(self) -> Snapshot | None:
        """The last look; `snapshot.idle`: nothing was being answered then."""
        return self.history.last

    @property
    def summary(self) -> TrafficSummary:
        """Of all requests since the server was followed."""
        return summarize(self.history.total, self._samples.ratios, self.times, self.longest)

    @property
    def recent(self) -> TrafficSummary:
        """Of the last minutes, or of longer where these brought too little: what is acted on."""
        for seconds in (RECENT_S, KEPT_S):
            found = self.over(seconds)
            if found.enough and (found.slower is not None or self.times is None):
                return found
        return self.summary

    def over(self, seconds: float) -> TrafficSummary:
        """Of the last `seconds`, 900 at most."""
        samples = Samples(self.times)
        for new in self.history.recent(seconds):
            samples.add(new)
        return summarize(self.history.over(seconds), samples.ratios, self.times, self.longest)

    @property
    def longest(self) -> int | None:
        """The K that runs, where drafts are as long as it says."""
        return longest(self.speculation)

    def turned(self) -> TrafficVerdict | None:
        """What the last minutes come to, when that is another than what was told before. To be
        asked once after each look that brought something."""
        return self._tracker.now if self._tracker.update(self.recent) else None

    @property
    def verdict(self) -> TrafficVerdict:
        """What holds, as it was told last."""
        return self._tracker.now

    def keep(self) -> None:
        """Writes what is new since the last time."""
        self._kept = self.clock()
        if self.about is None or self.speculation is None:
            return
        if not self._unkept.drafted and self._measured is None:
            return
        fresh, self._fresh = self._fresh, Samples(self.times)
        traffic.add(self.about, self.speculation, self._unkept, fresh.ratios, self._measured)
        self._unkept, self._measured = NOTHING, None

    def close(self) -> None:
        """Keeps the rest, and lets the server go."""
        self.keep()
        self.reader.close()
