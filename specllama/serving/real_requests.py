"""Follows real requests while `serve` runs: reads the server's counters, stores them for the next
start, and reports changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from specllama.engine.keys import first
from specllama.planning.plan import Plan
from specllama.serving.idle_probes import IdleProbes
from specllama.serving.launch import Launch
from specllama.serving.result_keys import traffic_subject
from specllama.serving.scope import sets_own_types
from specllama.storage import drop
from specllama.tuning.step_times import StepTimes
from specllama.watching import own_requests, running, traffic
from specllama.watching.counters import Counts
from specllama.watching.figures import summary_data, verdict_data
from specllama.watching.follow import Follower
from specllama.watching.reader import CounterReader
from specllama.watching.request_log import RequestLog, log_size
from specllama.watching.running import RunningServe
from specllama.watching.verdict import NO_THRESHOLDS, Thresholds, sentence, surely_at_most

_NEAR = 0.7  # of the α at which a speed-up was measured
_IDLE_LOOKS = 2  # in a row, before an idle probe is sent
_SMALL_CACHE = 512  # tokens of a conversation that are cheap to evaluate again


class EventListener(Protocol):
    """Receives events while it serves."""

    def event(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        """One line for the user, and the same as data."""


@dataclass(frozen=True)
class TuningReference:
    """Earlier measurements of the served settings, None if there are none. `times` of steps;
    real requests are compared with the rest."""

    times: StepTimes | None = None
    alpha: float | None = None
    speedup: float | None = None


class TrafficMonitor:
    """Follows one server from when it is ready until it is stopped. `probes`: measure it while idle
    if its step times are unknown; `url`: the clients' address; `adaptive`: better settings are
    switched to, not only suggested."""

    def __init__(
        self, up: Launch, measured: TuningReference, probes: bool, url: str, adaptive: bool = False
    ) -> None:
        plan, self._adaptive = up.plan, adaptive
        spec = None if sets_own_types(plan) else plan.settings.speculation
        subject = traffic_subject(plan) if spec is not None else None
        before = traffic.find(subject) if subject is not None else None
        times = measured.times or (before.times if before is not None else None)
        settings = plan.settings
        # reading /slots keeps a server awake that may sleep
        awake = plan.user.value("--sleep-idle-seconds") is None
        reader = CounterReader(
            settings.url, first(settings.api_key) if settings.api_key else None, own=True
        )
        uses_ngram = _uses_ngram(plan)
        of_drafts = Thresholds(plan.workload.warn_under, plan.workload.off_under)
        # what was measured decides, not a threshold for settings whose costs are unknown
        self._unmeasured = times is None and measured.speedup is None and not uses_ngram
        limits = NO_THRESHOLDS if uses_ngram else _near(of_drafts, measured)
        begin = log_size(up.server.log)
        requests = RequestLog(up.server.log, begin)
        self.follower = Follower(reader, spec, times, subject, limits, requests)
        self._up, self._idle_looks, self._awake = up, 0, awake
        self._aged = spec is not None
        self._probes = IdleProbes(up.client, plan) if probes and times is None and spec else None
        self._shown = RunningServe(
            url=url,
            model=str(plan.target.path),
            workload=plan.workload.name,
            speculation=spec,
            times=times,
            alpha=measured.alpha,
            speedup=measured.speedup,
            limits=limits,
            slots=awake,
            log=up.server.log,
            log_begin=begin,
            server_begin=up.server.output.begin,
            since=time.time(),
        )
        self.follower.look()
        self._announce()

    def low_acceptance(self, drafted: int, accepted: int) -> str:
        """A warning if test requests show an α surely below the workload's `off`, and no
        speed-up was measured; else ""."""
        workload = self._up.plan.workload
        if not self._unmeasured or surely_at_most(drafted, accepted) >= workload.off_under:
            return ""
        advice = "--tune auto measures it, --method none turns it off"
        if sets_own_types(self._up.plan):
            advice = "without --spec-type, serve measures what is fastest"
        return (
            f"α={accepted / drafted:.2f} is very low and the speed was not measured: speculation "
            f"is probably slower than plain decoding; {advice}"
        )

    def tick(self, listener: EventListener) -> None:
        """Call often: reads the counters when due. Never raises."""
        new = self.follower.tick()
        if new is None:
            return
        if (self.follower.own, self.follower.samples) != (self._shown.own, self._shown.samples):
            self._announce()
        for mark in self.follower.ended_marks:
            drop(mark)
        if new.tokens and (v := self.follower.changed_verdict()) is not None:
            p = self.follower.recent
            text = sentence(p, v, self._adaptive)
            listener.event("real requests", text, {**summary_data(p), **verdict_data(v)})
        if new.tokens and not self._aged:  # without speculation nothing is added
            self._aged = True
            traffic.another_day(
                str(self._up.plan.target.path.absolute()), self._up.plan.workload.name
            )
        self._probe(new)

    def close(self, restarting: bool = False) -> None:
        """Reads the counters a last time, while the server still responds. `restarting`: another
        server follows."""
        if restarting:
            running.announce(replace(self._shown, ready=False))
        else:
            running.withdraw()
        self.follower.look()
        self.follower.close()

    def _probe(self, new: Counts) -> None:
        """Measures step times while the server is idle, if that evicts no long conversation."""
        last = self.follower.snapshot
        quiet = last is not None and last.idle and not new.tokens and not own_requests.marks()
        self._idle_looks = self._idle_looks + 1 if quiet else 0
        if self._probes is None or self._idle_looks < _IDLE_LOOKS or not self._cheap():
            return
        with own_requests.idle_probes():
            times = self._probes.run(self.idle)
            if times is not None:
                self.follower.set_times(times)
            self.follower.exclude(self._probes.take_counts())
            self._announce()
        if self._probes.done:
            self._probes = None

    def _announce(self) -> None:
        """Publishes what `watch` cannot know: step times, our own requests, earlier samples."""
        follower = self.follower
        self._shown = replace(
            self._shown, times=follower.times, own=follower.own, samples=follower.samples
        )
        running.announce(self._shown)

    def idle(self) -> bool:
        """Whether no request is running."""
        return self.follower.reader.idle()

    def _cheap(self) -> bool:
        """Whether no long conversation would be evicted: it moves to the prompt cache in RAM
        (--cache-ram), or there is none."""
        plan = self._up.plan
        if plan.capabilities.find("--cache-ram") and plan.user.value("--cache-ram") != "0":
            return True
        slots = self._up.client.slots() if self._awake else None
        known = [s.get("n_prompt_tokens") for s in slots or ()]
        return all(n is None or (isinstance(n, int) and n <= _SMALL_CACHE) for n in known)


def _near(limits: Thresholds, measured: TuningReference) -> Thresholds:
    """A measured speed-up decides as long as α is near the one it was measured at."""
    if measured.speedup is None:
        return limits
    near = _NEAR * measured.alpha if measured.alpha is not None else 0.0
    return Thresholds(min(limits.warn, near), min(limits.off, near))


def _uses_ngram(plan: Plan) -> bool:
    """Whether n-grams draft, where a low α can pay off."""
    if sets_own_types(plan):  # --spec-default is ngram-mod
        types = plan.user.value("--spec-type") or ""
        return "ngram" in types or plan.user.on("--spec-default")
    return plan.settings.speculation is not None and plan.settings.speculation.uses_ngram
