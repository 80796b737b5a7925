"""Counts of real requests, on disk: one small file per model, drafting method and workload.

Only counts and times are saved, no prompts or completions. They lose half of their weight in a
week of use: seven days with requests, however far apart.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from specllama.engine.settings import Speculation
from specllama.storage import cache_dir, delete, read_stored, write_stored
from specllama.tuning.confidence import Ratios
from specllama.tuning.records import method_label, setting_label
from specllama.tuning.results_json import read_ratios, read_spec, spec_data
from specllama.tuning.step_times import StepTimes, read_times, times_data
from specllama.watching.counters import NOTHING, Counts
from specllama.watching.summary import TrafficSummary, summarize

_VERSION = 1
_HALF_LIFE_DAYS = 7  # of use
_MAX_SETTINGS = 4  # draft lengths or n-gram sizes
_MAX_SAMPLES = 40  # per setting: speed-ups of parts of the traffic
_MIN_WEIGHT = 1.0  # in tokens; older counts below it are dropped


@dataclass(frozen=True)
class TrafficSubject:
    """A model, its drafting method and a workload. `files`: path, size and time of each; another
    `engine` or other `devices` invalidate times, but not counts."""

    target: str
    workload: str
    method: str
    files: tuple[tuple[str, int, int], ...]
    engine: str = ""
    devices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        data = [self.workload, self.method, self.files]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class TrafficCounts:
    """One setting's counts, and the speed-ups of parts of its traffic. `when`: last use."""

    speculation: Speculation
    counts: Counts = NOTHING
    ratios: Ratios = field(default_factory=Ratios)
    when: float = 0.0

    @property
    def label(self) -> str:
        return setting_label(self.speculation)

    def summary(self, times: StepTimes | None) -> TrafficSummary:
        return summarize(self.counts, self.ratios, times, longest(self.speculation))


@dataclass(frozen=True)
class Traffic:
    """The traffic of one model, method and workload: settings, last served first; `since`: first
    request; `days` of use; `times`: step times measured while idle, None = not measured."""

    subject: TrafficSubject
    settings: tuple[TrafficCounts, ...]
    since: float
    days: int
    day: str
    times: StepTimes | None = None
    file: Path = Path()

    @property
    def last(self) -> TrafficCounts:
        return self.settings[0]


def longest(s: Speculation | None) -> int | None:
    """The K of a setting whose drafts always have K tokens: a draft model without p_min."""
    if s is None or not s.uses_draft or s.uses_ngram or s.p_min:
        return None
    return s.n_max


def add(
    subject: TrafficSubject,
    speculation: Speculation,
    new: Counts,
    ratios: Ratios,
    times: StepTimes | None = None,
    now: float | None = None,
) -> None:
    """Adds new counts. Failing to write is ignored: the next start then knows less."""
    now = time.time() if now is None else now
    before = find(subject)
    day = _day(now)
    old = before.settings if before is not None else ()
    if before is not None and before.day != day:
        old = tuple(_aged(s) for s in old)
    if before is not None and not _same_machine(before.subject, subject):
        old = tuple(replace(s, ratios=Ratios()) for s in old)
    mine = next((s for s in old if s.speculation == speculation), TrafficCounts(speculation))
    mine = TrafficCounts(speculation, mine.counts + new, _recent(mine.ratios + ratios), now)
    rest = [s for s in old if s.speculation != speculation and _weight(s) >= _MIN_WEIGHT]
    if times is None and before is not None and _same_machine(before.subject, subject):
        times = before.times
    traffic = Traffic(
        subject,
        (mine, *sorted(rest, key=lambda s: -s.when))[:_MAX_SETTINGS],
        before.since if before is not None else now,
        (before.days if before is not None else 0) + (before is None or before.day != day),
        day,
        times,
    )
    write_stored(_folder() / f"{subject.key}.json", _data(traffic))


def another_day(target: str, workload: str, now: float | None = None) -> None:
    """Ages the traffic for a day on which the model was used without speculation, so that a
    setting that lost is retried some day."""
    day = _day(time.time() if now is None else now)
    for t in all_traffic():
        if (t.subject.target, t.subject.workload) == (target, workload) and t.day != day:
            aged = tuple(_aged(s) for s in t.settings)
            write_stored(t.file, _data(replace(t, settings=aged, day=day, days=t.days + 1)))


def find(subject: TrafficSubject) -> Traffic | None:
    """The traffic for this key; its times only if measured on this engine and these devices."""
    found = _read(_folder() / f"{subject.key}.json")
    if found is not None and not _same_machine(found.subject, subject):
        return replace(found, times=None)
    return found


def of(target: str, workload: str, files: Sequence[tuple[str, int, int]]) -> tuple[Traffic, ...]:
    """All methods that a model served for a workload, last served first. `files` of the model, as
    from results.stamp: traffic of another file with the same name does not count."""
    return tuple(
        t
        for t in all_traffic()
        if (t.subject.target, t.subject.workload) == (target, workload)
        and set(files) <= set(t.subject.files)
    )


def all_traffic() -> tuple[Traffic, ...]:
    """All saved traffic, last served first. Damaged files are skipped."""
    found = (_read(p) for p in _folder().glob("*.json"))
    return tuple(sorted((t for t in found if t is not None), key=lambda t: -t.last.when))


def clear(target: Path | None = None) -> int:
    """Deletes all of it, or that of one target. Returns how many. Raises SpecllamaError."""
    count = 0
    for t in all_traffic():
        if target is None or t.subject.target == str(target.absolute()):
            delete(t.file)
            count += 1
    return count


def _folder() -> Path:
    return cache_dir() / "traffic"


def _day(now: float) -> str:
    return datetime.fromtimestamp(now).strftime("%Y-%m-%d")


def _same_machine(a: TrafficSubject, b: TrafficSubject) -> bool:
    return (a.engine, a.devices) == (b.engine, b.devices)


def _aged(s: TrafficCounts) -> TrafficCounts:
    share = 0.5 ** (1 / _HALF_LIFE_DAYS)
    left = [(x, w * share) for x, w in zip(s.ratios.logs, s.ratios.weights, strict=True)]
    left = [(x, w) for x, w in left if w >= _MIN_WEIGHT]
    ratios = Ratios(tuple(x for x, _ in left), tuple(w for _, w in left))
    return replace(s, counts=s.counts.scaled(share), ratios=ratios)


def _recent(r: Ratios) -> Ratios:
    return Ratios(r.logs[-_MAX_SAMPLES:], r.weights[-_MAX_SAMPLES:])


def _weight(s: TrafficCounts) -> float:
    return max(s.counts.tokens or 0.0, s.counts.drafted or 0.0)


_COUNTED = ("drafted", "accepted", "steps", "tokens", "seconds", "requests")


def _data(t: Traffic) -> dict[str, Any]:
    a = t.subject
    return {
        "version": _VERSION,
        "target": a.target,
        "workload": a.workload,
        "way": a.method,
        "files": [list(f) for f in a.files],
        "engine": a.engine,
        "devices": list(a.devices),
        "since": t.since,
        "days": t.days,
        "day": t.day,
        "times": times_data(t.times),
        "settings": [
            {
                "speculation": spec_data(s.speculation),
                "counts": {n: _rounded(getattr(s.counts, n)) for n in _COUNTED},
                "by_position": [_rounded(x) for x in s.counts.by_position],
                "logs": [round(x, 4) for x in s.ratios.logs],
                "weights": [_rounded(w) for w in s.ratios.weights],
                "when": s.when,
            }
            for s in t.settings
        ],
    }


def _rounded(x: float | None) -> float | None:
    return None if x is None else round(x, 2)


def _read(path: Path) -> Traffic | None:
    data = read_stored(path)
    try:
        if data is None or data["version"] != _VERSION:
            return None
        subject = TrafficSubject(
            str(data["target"]),
            str(data["workload"]),
            str(data["way"]),
            tuple((str(p), int(size), int(when)) for p, size, when in data["files"]),
            str(data["engine"]),
            tuple(str(d) for d in data["devices"]),
        )
        settings = tuple(_read_counts(s) for s in data["settings"])
        if not settings or any(method_label(s.speculation) != subject.method for s in settings):
            return None
        times = read_times(data["times"])
        since, days = float(data["since"]), int(data["days"])
        return Traffic(subject, settings, since, days, str(data["day"]), times, path)
    except (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None


def _read_counts(data: Mapping[str, Any]) -> TrafficCounts:
    stored = {n: data["counts"][n] for n in _COUNTED}
    counts: dict[str, Any] = {n: None if x is None else float(x) for n, x in stored.items()}
    by_position = tuple(float(x) for x in data["by_position"])
    numbers = [x for x in (*counts.values(), *by_position) if x is not None]
    if not all(0 <= x < math.inf for x in numbers):
        raise ValueError("count out of range")
    return TrafficCounts(
        read_spec(data["speculation"]),
        Counts(**counts, by_position=by_position),
        read_ratios(data),
        float(data["when"]),
    )
