"""Saved tuning results: one JSON file per subject.

A result from another build, engine file or device is stale: it is listed and marked as stale, but
not used. A search that ran out of time is saved as open, with its data, and continued at the next
start. A choice made by --force is never saved.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

from specllama.engine.settings import Speculation
from specllama.storage import cache_dir, delete, read_stored, write_stored
from specllama.tuning.judge import fastest
from specllama.tuning.records import (
    DECIDED,
    FORCED,
    NO_TIME,
    OPEN,
    Confirmation,
    TuningResult,
    decoding_speed,
    setting_label,
)
from specllama.tuning.results_json import (
    prediction_data,
    read_prediction,
    read_ratios,
    read_short_step,
    read_spec,
    spec_data,
)
from specllama.tuning.search import OpenResult
from specllama.tuning.step_times import StepTimes, read_times, step_times, times_data

UNSAVED = "the result could not be saved (`specllama doctor` shows why): it will be measured again"
_VERSION = 3
_MAX_STORED = 6  # predictions of an open result

FileStamp = tuple[str, int, int]  # path, size and time


@dataclass(frozen=True)
class Subject:
    """What a result is about. `files`: path, size and time of each model file; `options`: the
    user's choices, and every argument and variable that matters; `prompts`: their origin
    (`profile` or `yours`). A change of `engine` or `devices` makes a result stale."""

    target: str
    workload: str
    files: tuple[FileStamp, ...]
    options: tuple[str, ...]
    engine: str
    devices: tuple[str, ...]
    prompts: str = "profile"

    @property
    def key(self) -> str:
        data = [self.workload, self.files, self.options]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class TriedSetting:
    """The fastest measured setting, served or not: its α, and mean tokens per step (1 = nothing
    was accepted)."""

    speculation: Speculation
    alpha: float
    tokens_per_step: float


@dataclass(frozen=True)
class Result:
    """`speculation` None = off. `speedup`: (value, low, high), None if nothing was measured;
    `slower`: the chance of being slower than plain decoding. `state` as in TuningResult;
    `texts`: number of prompts it is based on; `since`: time of the first one. `times`: step
    times of the fastest measured setting. `short_step`: as in Baseline, None = not measured. `options`
    and `files`: as in Subject; older versions did not save them."""

    target: str
    workload: str
    speculation: Speculation | None
    reason: str
    speedup: tuple[float, float, float] | None
    slower: float | None
    tokens_per_second: float | None
    engine: str
    devices: tuple[str, ...]
    when: float
    since: float
    state: str
    prompts: str
    texts: int
    open_result: OpenResult
    file: Path
    tried: TriedSetting | None = None
    times: StepTimes | None = None
    short_step: float | None = None
    options: tuple[str, ...] | None = None
    files: tuple[FileStamp, ...] = ()

    @property
    def label(self) -> str:
        return setting_label(self.speculation)


def stamp(paths: Iterable[Path]) -> tuple[FileStamp, ...]:
    """Path, size and time of each existing file."""
    found = [(p.absolute(), p.stat()) for p in paths if p.exists()]
    return tuple((str(p), s.st_size, s.st_mtime_ns) for p, s in found)


def store(subject: Subject, tuned: TuningResult) -> bool:
    """Saves a result. False if it cannot be written: the next start then measures again."""
    if tuned.state == FORCED:
        return True
    before, stale = find(subject)
    before = None if stale else before
    if before is not None and before.state == DECIDED != tuned.state:
        return True  # measured again, with less certainty than before
    best, now = tuned.best, time.time()
    fastest_setting = best or fastest(tuned.confirmations)
    s = fastest_setting.speedup if fastest_setting is not None else None
    data = {
        "version": _VERSION,
        "target": subject.target,
        "workload": subject.workload,
        "engine": subject.engine,
        "devices": list(subject.devices),
        "options": list(subject.options),
        "files": [list(file) for file in subject.files],
        "when": now,
        "since": before.since if before is not None and before.state == OPEN else now,
        "state": tuned.state,
        "prompts": subject.prompts,
        "texts": len(fastest_setting.pooled_ratios) if fastest_setting is not None else 0,
        "speculation": spec_data(best.speculation) if best is not None else None,
        "reason": tuned.reason,
        "speedup": [s.value, s.low, s.high] if s is not None else None,
        "slower": fastest_setting.slower if fastest_setting is not None else None,
        "tokens_per_second": _speed(tuned, before),
        "tried": _tried_data(fastest_setting) if fastest_setting is not None else None,
        "times": times_data(step_times(tuned)),
        "short": _short_step_of(tuned),
        "open": _open_data(tuned, before) if tuned.state == OPEN else None,
    }
    return write_stored(_folder() / f"{subject.key}.json", data)


def _speed(tuned: TuningResult, before: Result | None) -> float | None:
    """Tokens per second of what is served. Without speculation and without a new baseline, as when
    an open result is continued: the one known before."""
    if tuned.best is not None:
        return decoding_speed(tuned.baseline, tuned.best.measurement, tuned.best.speedup)
    if tuned.baseline is not None:
        return tuned.baseline.measurement.tokens_per_second
    return before.tokens_per_second if before is not None and before.speculation is None else None


def _short_step_of(tuned: TuningResult) -> float | None:
    """`short_step` as in Baseline, from this baseline launch or from an earlier one."""
    if tuned.baseline is not None:
        return tuned.baseline.short_step
    return tuned.predictions[0].short_step if tuned.predictions else None


def _open_data(tuned: TuningResult, before: Result | None) -> dict[str, Any]:
    """The data that the next start continues from."""
    measured = dict(before.open_result.measured) if before is not None else {}
    measured |= {a.label: a.ratios for a in tuned.confirmations}
    best = sorted(tuned.predictions, key=lambda p: -p.ratios.mean)[:_MAX_STORED]
    if any(d.reason.startswith(NO_TIME) for d in tuned.dropped):
        best = []  # a method was not tried: next time, all are
    servers = [t.measurement for t in tuned.trials]
    servers += [c.measurement for c in tuned.confirmations]
    servers += [tuned.baseline.measurement] if tuned.baseline is not None else []
    sent = [a.prompt_ids for m in servers for a in m.responses]
    prompts = len({ids for ids in sent if ids}) or len(sent)  # several servers may get the same
    return {
        "predictions": [prediction_data(p) for p in best],
        "measured": {name: asdict(r) for name, r in measured.items()},
        "used": prompts + (before.open_result.prompts_used if before is not None else 0),
    }


def _tried_data(confirmation: Confirmation) -> dict[str, Any] | None:
    m = confirmation.measurement
    tokens = sum(max(0, a.tokens - 1) for a in m.responses)
    if m.alpha is None or tokens <= m.accepted:
        return None
    per_step = tokens / (tokens - m.accepted)
    spec = spec_data(confirmation.speculation)
    return {"speculation": spec, "alpha": m.alpha, "tokens_per_step": per_step}


def find(subject: Subject) -> tuple[Result | None, str]:
    """(the saved result or None, the reason why it is stale or "")."""
    found = _read(_folder() / f"{subject.key}.json")
    if found is None:
        return None, ""
    if found.engine != subject.engine:
        return found, f"measured with {found.engine}, now {subject.engine}"
    if found.devices != subject.devices:
        return found, f"measured on {', '.join(found.devices) or 'the CPU'}"
    return found, ""


def all_results() -> tuple[Result, ...]:
    """All saved results, newest first. Damaged files are skipped."""
    found = (_read(p) for p in _folder().glob("*.json"))
    return tuple(sorted((r for r in found if r is not None), key=lambda r: -r.when))


def clear_results(target: Path | None = None) -> int:
    """Removes all results, or those of one target. Returns how many. Raises SpecllamaError."""
    count = 0
    for r in all_results():
        if target is None or r.target == str(target.absolute()):
            delete(r.file)
            count += 1
    return count


def _folder() -> Path:
    return cache_dir() / "tuning"


def _read(path: Path) -> Result | None:
    data = read_stored(path)
    try:
        if data is None or data["version"] != _VERSION:
            return None
        speedup = data["speedup"]
        ends = tuple(inf if x is None else float(x) for x in speedup or ())
        return Result(
            target=str(data["target"]),
            workload=str(data["workload"]),
            speculation=read_spec(data["speculation"]) if data["speculation"] else None,
            reason=str(data["reason"]),
            speedup=(ends[0], ends[1], ends[2]) if speedup else None,
            slower=_maybe(data["slower"]),
            tokens_per_second=_maybe(data["tokens_per_second"]),
            engine=str(data["engine"]),
            devices=tuple(map(str, data["devices"])),
            when=float(data["when"]),
            since=float(data["since"]),
            state=str(data["state"]),
            prompts=str(data["prompts"]),
            texts=int(data["texts"]),
            open_result=_open_result(data["open"]),
            file=path,
            tried=_tried(data.get("tried")),
            times=read_times(data.get("times")),
            short_step=read_short_step(short) if (short := data.get("short")) is not None else None,
            options=tuple(map(str, data["options"])) if "options" in data else None,
            files=tuple((str(p), int(s), int(t)) for p, s, t in data.get("files", ())),
        )
    except (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None


def _maybe(x: Any) -> float | None:
    return None if x is None else float(x)


def _open_result(data: Mapping[str, Any] | None) -> OpenResult:
    if not data:
        return OpenResult()
    return OpenResult(
        tuple(read_prediction(p) for p in data["predictions"]),
        {str(name): read_ratios(r) for name, r in data["measured"].items()},
        int(data["used"]),
    )


def _tried(data: Mapping[str, Any] | None) -> TriedSetting | None:
    if not data:
        return None
    alpha, per_step = float(data["alpha"]), float(data["tokens_per_step"])
    if not (0 <= alpha <= 1 <= per_step < inf):
        raise ValueError("acceptance out of range")
    return TriedSetting(read_spec(data["speculation"]), alpha, per_step)


def stale_lines(found: Result | None, reason: str) -> Iterator[str]:
    """The notes about a result that is not used."""
    if found is not None and reason:
        yield f"a saved result ({found.label}) is stale: {reason}"


def format_time(seconds: float) -> str:
    """A time for display. Never raises, whatever number a file has."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "unknown date"
