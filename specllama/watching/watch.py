"""Watches one running server from outside: its counters now and since it started."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.errors import UsageError
from specllama.tuning.confidence import Ratios
from specllama.tuning.records import setting_label
from specllama.watching import own_requests, running
from specllama.watching.counters import NOTHING, Counts, Gauges, Snapshot
from specllama.watching.errors import WatchingError
from specllama.watching.history import History
from specllama.watching.reader import CounterReader, RouterIdle, ServerUnreachable
from specllama.watching.request_log import RequestLog
from specllama.watching.running import RunningServe
from specllama.watching.summary import Samples, TrafficSummary, summarize
from specllama.watching.traffic import longest
from specllama.watching.verdict import Thresholds, TrafficVerdict, traffic_verdict

UP, LOST, UNLOADED = "up", "lost", "unloaded"
MINUTE_S, QUARTER_S = 60.0, 900.0
_MEASURING = "specllama is measuring this server: its own requests are not counted"
_FIRST_LOOK_S = 12.0  # wait this long for idle probes to end: they take at most 10 s at a time


@dataclass(frozen=True)
class ServerView:
    """What to show of a server. `state`: up, lost (no response) or unloaded (a router without the
    model), with the reason in `reason`. `now`: the last minute; `since`: since the server started;
    `judged`: basis of the verdict; `gauges`: the engine's own values; `tuned`: data of its `serve`.
    `requests`: completed since its start, None if not counted; `decoding`: tok/s of running
    requests, from slots."""

    url: str
    state: str
    reason: str = ""
    model: str = ""
    engine: str = ""
    now: TrafficSummary = field(default_factory=TrafficSummary)
    since: TrafficSummary = field(default_factory=TrafficSummary)
    judged: TrafficSummary = field(default_factory=TrafficSummary)
    verdict: TrafficVerdict = field(default_factory=TrafficVerdict)
    gauges: Gauges = field(default_factory=Gauges)
    tuned: RunningServe | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    requests: int | None = None
    decoding: float | None = None
    speeds: tuple[float | None, ...] = ()
    restarts: int = 0
    missing: tuple[str, ...] = ()

    @property
    def alpha(self) -> float | None:
        """Over the last minute, else since the start, else the engine's own value."""
        found = (self.now.counts.alpha, self.since.counts.alpha, self.gauges.alpha)
        return next((a for a in found if a is not None), None)

    @property
    def tau(self) -> float | None:
        found = (self.now.counts.tau, self.since.counts.tau, self.gauges.tau)
        return next((t for t in found if t is not None), None)

    @property
    def acceptance(self) -> tuple[float, ...]:
        return self.now.counts.acceptance or self.since.counts.acceptance

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed: over the last minute, else now, else since the start."""
        found = (
            self.now.counts.tokens_per_second,
            self.decoding,
            # of a `serve` it includes the requests of its start check
            (self.gauges.tokens_per_second or None) if self.tuned is None else None,
            self.since.counts.tokens_per_second,
        )
        return next((s for s in found if s is not None), None)

    @property
    def drift(self) -> float | None:
        """α now minus α from tuning."""
        if self.alpha is None or self.tuned is None or self.tuned.alpha is None:
            return None
        return self.alpha - self.tuned.alpha

    @property
    def setting(self) -> str:
        return setting_label(self.tuned.speculation) if self.tuned is not None else ""


def server_to_watch(url: str | None, port: int | None) -> tuple[str, Sequence[RunningServe]]:
    """(the address to watch, your other running serves). Raises UsageError if none is running."""
    if url is not None and port is not None:
        raise UsageError("--url and --port cannot be combined")
    if url is not None:
        return url, ()
    if port is not None:
        return f"http://127.0.0.1:{port}", ()
    mine = running.all_running()
    if not mine:
        raise UsageError(
            "you have no running `specllama serve`",
            "For another server, use `specllama watch --url http://HOST:PORT`.",
        )
    return mine[0].url, mine[1:]


class Watch:
    """Watches one server. `model`: of a router. Raises UsageError for an invalid URL."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        model: str = "",
    ) -> None:
        self._tuned = running.at(url)
        slots = self._tuned is not None and self._tuned.slots
        self._reader = CounterReader(url, api_key, model, slots)
        self._history = History()
        self._log, self._logged = _request_log(self._tuned), 0
        self._requests: int | None = None
        self._own = NOTHING  # of specllama's own requests, in the counters of `_before`
        self._before: Snapshot | None = None
        self._decoding: float | None = None
        self._verdict = TrafficVerdict()

    def close(self) -> None:
        self._reader.close()

    def look(self) -> ServerView:
        """Reads the server now. An unreachable or unloaded server also gives a view. Raises
        UsageError if a key is required and WatchingError if the server cannot be watched, unless
        it was watched before: then it is lost."""
        until = time.monotonic() + _FIRST_LOOK_S
        while True:
            try:
                if self._read():
                    return self._view(UP)
            except RouterIdle as e:
                return self._view(UNLOADED, e.message)
            except (WatchingError, UsageError) as e:
                if isinstance(e, ServerUnreachable) or self._before is not None:
                    return self._view(LOST, e.message)
                raise
            if self._before is not None or time.monotonic() > until:
                return self._view(UP, note=_MEASURING)
            time.sleep(0.5)

    def _read(self) -> bool:
        """Reads the counters; False, changing nothing, while they include requests of specllama
        itself that its `serve` has not published yet. Raises as `CounterReader.read`."""
        tuned = running.at(self._reader.url)
        if tuned is not None and not tuned.ready:
            raise ServerUnreachable("`specllama serve` is restarting the server")
        now = self._reader.read()
        if tuned is not None and (own_requests.marks(tuned.pid) or self._published_more(tuned)):
            return False
        self._history.add(now, self._refresh(tuned))
        self._requests = self._completed()
        self._decoding = _progress(self._before, now)
        self._before = now
        return True

    def _published_more(self, before: RunningServe) -> bool:
        now = running.at(self._reader.url)
        return now is None or (now.since, now.own) != (before.since, before.own)

    def _view(self, state: str, reason: str = "", note: str = "") -> ServerView:
        last, tuned = self._history.last, self._tuned
        times = tuned.times if tuned is not None else None
        k = longest(tuned.speculation) if tuned is not None else None
        samples = Samples(times)
        for new in self._history.recent(QUARTER_S):
            samples.add(new)
        total = self._since_start()
        earlier = tuned.samples if tuned is not None else Ratios()
        since = summarize(total, max(samples.ratios, earlier, key=len), times, k)
        limits = tuned.limits if tuned is not None else Thresholds()
        judged = summarize(self._history.over(QUARTER_S), samples.ratios, times, k)
        judged = judged if judged.enough else since
        self._verdict = traffic_verdict(judged, limits, self._verdict)
        return ServerView(
            url=self._reader.url,
            state=state,
            reason=reason,
            model=self._reader.model or (Path(tuned.model).name if tuned is not None else ""),
            engine=last.engine if last is not None else "",
            now=summarize(self._history.over(MINUTE_S), Ratios(), times, k),
            since=since,
            judged=judged,
            verdict=self._verdict,
            gauges=last.gauges if last is not None and state == UP else Gauges(),
            tuned=tuned,
            limits=limits,
            requests=self._requests,
            decoding=self._decoding if state == UP else None,
            speeds=tuple(c.tokens_per_second for c in self._history.parts(QUARTER_S, 15.0)),
            restarts=self._history.restarts,
            missing=(*((note,) if note else ()), *(_notes(last) if last is not None else ())),
        )

    def _since_start(self) -> Counts:
        """All that the server counted for real requests; after a restart, all that was observed."""
        last = self._history.last
        if last is None:
            return NOTHING
        return self._history.total if self._history.restarts else last.counts.without(self._own)

    def _refresh(self, tuned: RunningServe | None) -> Counts:
        """Returns specllama's own requests since the last snapshot. Its `serve` may have started
        another server in the meantime, or may be new."""
        if tuned is None:
            return NOTHING
        if self._tuned is None:  # what was counted before it was ready is its own
            self._history = History()
        if self._tuned is None or tuned.since != self._tuned.since:
            self._logged += self._completed_before(tuned)
            self._log, self._own = _request_log(tuned), NOTHING
        new = tuned.own + self._own.scaled(-1)
        self._tuned, self._own = tuned, tuned.own
        return new

    def _completed_before(self, tuned: RunningServe) -> int:
        """Real requests to the server before the one of `tuned`, whose start check is in the same
        log."""
        if self._log is None or self._tuned is None:
            return 0
        end = tuned.server_begin if tuned.log == self._tuned.log else None
        return self._log.count(end) - int(self._own.requests or 0)

    def _completed(self) -> int | None:
        """Real requests that were completed; None if not counted."""
        total = self._since_start()
        if total.requests is not None:
            return int(total.requests)
        if self._log is None or self._tuned is None:
            return None
        return max(0, self._logged + self._log.count() - int(self._own.requests or 0))


def _notes(last: Snapshot) -> Iterator[str]:
    """Missing figures, and oddities."""
    yield from last.missing
    if last.counts.drafted == 0 and last.counts.tokens:
        yield "no tokens drafted: speculation is off, or finds nothing to draft"
    off = [str(s.id) for s in last.slots if s.speculative is False]
    if off and len(off) < len(last.slots):
        yield f"no speculation in slot {', '.join(off)}, unlike the others"


def _request_log(tuned: RunningServe | None) -> RequestLog | None:
    if tuned is None or tuned.log is None:
        return None
    return RequestLog(tuned.log, tuned.log_begin)


def _progress(before: Snapshot | None, now: Snapshot) -> float | None:
    """tok/s of the running requests, averaged per slot."""
    if before is None or now.when <= before.when:
        return None
    old = {(s.id, s.task): s.decoded for s in before.slots if s.busy}
    grown = [s.decoded - old[s.id, s.task] for s in now.slots if s.busy and (s.id, s.task) in old]
    made = [g for g in grown if g > 0]
    return sum(made) / len(made) / (now.when - before.when) if made else None
