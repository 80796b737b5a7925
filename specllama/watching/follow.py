"""Follows one server while it serves: reads its counters every few seconds, saves the figures of
real requests, and reports changes of the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from specllama.engine.settings import Speculation
from specllama.errors import SpecllamaError
from specllama.tuning.confidence import Ratios
from specllama.tuning.step_times import StepTimes
from specllama.watching import own_requests, traffic
from specllama.watching.counters import NOTHING, Counts, Snapshot, between
from specllama.watching.history import KEPT_S, History
from specllama.watching.reader import CounterReader
from specllama.watching.request_log import RequestLog
from specllama.watching.summary import Samples, TrafficSummary, summarize
from specllama.watching.traffic import TrafficSubject, longest
from specllama.watching.verdict import Thresholds, TrafficVerdict, VerdictTracker

LOOK_S = 3.0
RECENT_S = 300.0  # basis of the verdict, so that a change of traffic shows within minutes
_SAVE_S = 60.0  # between two writes


@dataclass
class Follower:
    """One server that serves `speculation`. `times`: of its steps, None if not measured; `subject`:
    of the saved traffic (None = not saved); `requests`: counts requests if the server does
    not; `own`: what the server counted for requests of specllama itself; `ended_marks`: of such
    requests, now all in `own`. `tick` is called often, and reads the counters when due."""

    reader: CounterReader
    speculation: Speculation | None
    times: StepTimes | None = None
    subject: TrafficSubject | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    requests: RequestLog | None = None
    clock: Callable[[], float] = time.monotonic
    history: History = field(default_factory=History)
    own: Counts = NOTHING
    ended_marks: tuple[Path, ...] = ()
    _next: float = 0.0
    _saved_at: float = 0.0
    _unsaved: Counts = NOTHING
    _own: Counts = NOTHING

    def __post_init__(self) -> None:
        self._samples, self._fresh = Samples(self.times), Samples(self.times)
        self._tracker = VerdictTracker(self.limits)
        self._saved_at = self.clock()
        self._measured: StepTimes | None = None

    def tick(self) -> Counts | None:
        """New counts since the last snapshot; None if none is due, or the server did not respond.
        Never raises."""
        if self.clock() < self._next:
            return None
        self._next = self.clock() + LOOK_S
        return self.look()

    def look(self) -> Counts | None:
        """Reads the counters now; returns as `tick` does."""
        ended = tuple(m for m in own_requests.marks() if own_requests.ended(m))
        try:
            now = self._read()
        except SpecllamaError:
            return None
        new = self.history.add(now, self._own_since(self.history.last, now))
        self._own, self.ended_marks = NOTHING, ended
        self._samples.add(new)
        self._fresh.add(new)
        self._unsaved += new
        if self.clock() - self._saved_at >= _SAVE_S:
            self.save()
        return new

    def exclude(self, own: Counts) -> None:
        """Excludes our own requests since the last snapshot: they are not traffic."""
        self._own += own
        self.own += own

    def _own_since(self, before: Snapshot | None, now: Snapshot) -> Counts:
        """What of the new counts is our own: all of them before the server was ready, or while
        another specllama measures it."""
        if before is None:
            self.own = now.counts
            return NOTHING
        if not own_requests.marks():  # those written later have not sent anything before `now`
            return self._own
        all_new = between(before, now)
        self.own += all_new.without(self._own)
        return all_new

    def _read(self) -> Snapshot:
        now = self.reader.read()
        if self.requests is None or now.counts.requests is not None:
            return now
        return replace(now, counts=replace(now.counts, requests=float(self.requests.count())))

    def set_times(self, times: StepTimes) -> None:
        """Sets newly measured step times, also for earlier counts."""
        self.times = self._measured = times
        self._samples, self._fresh = Samples(times), Samples(times)
        for new in self.history.recent(RECENT_S):
            self._samples.add(new)
            self._fresh.add(new)

    @property
    def samples(self) -> Ratios:
        """The speed-ups of parts of the traffic."""
        return self._samples.ratios

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot; `snapshot.idle`: no requests were running."""
        return self.history.last

    @property
    def summary(self) -> TrafficSummary:
        """Summary of all requests while following the server."""
        return summarize(self.history.total, self._samples.ratios, self.times, self.longest)

    @property
    def recent(self) -> TrafficSummary:
        """Summary of the last minutes, or longer if there was too little traffic: basis of
        decisions."""
        for seconds in (RECENT_S, KEPT_S):
            found = self.over(seconds)
            if found.enough and (found.slower is not None or self.times is None):
                return found
        return self.summary

    def over(self, seconds: float) -> TrafficSummary:
        """Summary of the last `seconds`, at most 900."""
        samples = Samples(self.times)
        for new in self.history.recent(seconds):
            samples.add(new)
        return summarize(self.history.over(seconds), samples.ratios, self.times, self.longest)

    @property
    def longest(self) -> int | None:
        """The current K, if drafts always have that length."""
        return longest(self.speculation)

    def changed_verdict(self) -> TrafficVerdict | None:
        """The verdict on the last minutes if it has changed, else None. Call once after each
        snapshot with new counts."""
        return self._tracker.now if self._tracker.update(self.recent) else None

    @property
    def verdict(self) -> TrafficVerdict:
        """The current verdict."""
        return self._tracker.now

    def save(self) -> None:
        """Saves new traffic since the last save."""
        self._saved_at = self.clock()
        if self.subject is None or self.speculation is None:
            return
        if not self._unsaved.drafted and self._measured is None:
            return
        fresh, self._fresh = self._fresh, Samples(self.times)
        traffic.add(self.subject, self.speculation, self._unsaved, fresh.ratios, self._measured)
        self._unsaved, self._measured = NOTHING, None

    def close(self) -> None:
        """Saves the rest and closes the connection."""
        self.save()
        self.reader.close()
