"""The user's running `specllama serve` processes: one small file each, without keys. A crash may
leave it behind, and it can be deleted at any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from specllama.engine.errors import PortUnusable
from specllama.engine.settings import Speculation
from specllama.storage import cache_dir, drop, read_stored, write_stored
from specllama.tuning.confidence import Ratios
from specllama.tuning.results_json import read_ratios, read_spec, spec_data
from specllama.tuning.step_times import StepTimes, read_times, times_data
from specllama.watching.counters import NOTHING, Counts
from specllama.watching.verdict import Thresholds

_VERSION = 1


@dataclass(frozen=True)
class RunningServe:
    """One `serve`, with its measurements from tuning: `times` of its steps, `alpha` and `speedup`
    (None = not measured). `slots`: may be read, since the server never sleeps; `log`: of the
    server, whose text begins at `server_begin` and real requests at `log_begin`; `own`: what the server counted for requests of
    specllama itself; `samples`: speed-ups of parts of the real requests; `ready`: False while the
    server is restarted; `since`: its current server was ready."""

    url: str
    model: str
    workload: str
    speculation: Speculation | None = None
    times: StepTimes | None = None
    alpha: float | None = None
    speedup: float | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    slots: bool = False
    log: Path | None = None
    log_begin: int = 0
    server_begin: int = 0
    own: Counts = NOTHING
    samples: Ratios = field(default_factory=Ratios)
    ready: bool = True
    pid: int = 0
    since: float = 0.0


def announce(running: RunningServe) -> Path:
    """Writes this process's file, replacing an earlier one. Remove it on exit."""
    path = _folder() / f"{os.getpid()}.json"
    write_stored(path, _data(running))
    return path


def withdraw() -> None:
    """Removes this process's file."""
    drop(_folder() / f"{os.getpid()}.json")


def all_running() -> tuple[RunningServe, ...]:
    """Those whose process is alive, last started first. Removes files of dead ones."""
    found = []
    for path in _folder().glob("*.json"):
        data = read_stored(path)
        running = _read(data)
        if running is not None and alive(data):
            found.append(running)
        elif _dead(data):
            drop(path)
    return tuple(sorted(found, key=lambda r: -r.since))


def at(url: str) -> RunningServe | None:
    """The user's `serve` at this URL, if any."""
    base = url.rstrip("/").removesuffix("/v1").replace("//localhost:", "//127.0.0.1:")
    return next((r for r in all_running() if r.url == base), None)


@contextmanager
def port_users_named() -> Iterator[None]:
    """Adds to an error about a port the user's `serve` that has it."""
    try:
        yield
    except PortUnusable as e:
        mine = next((r for r in all_running() if httpx.URL(r.url).port == e.port), None)
        if mine is None:
            raise
        model = Path(mine.model).name
        who = f"{e.message}: your `specllama serve` of {model} (process {mine.pid}) has it"
        raise PortUnusable(e.port, who, e.hint) from None


def _folder() -> Path:
    return cache_dir() / "running"


def _data(r: RunningServe) -> dict[str, Any]:
    return {
        "version": _VERSION,
        **this_process(),
        "since": r.since or time.time(),
        "url": r.url,
        "model": r.model,
        "workload": r.workload,
        "speculation": spec_data(r.speculation) if r.speculation is not None else None,
        "times": times_data(r.times),
        "alpha": r.alpha,
        "speedup": r.speedup,
        "warn": r.limits.warn,
        "off": r.limits.off,
        "slots": r.slots,
        "log": str(r.log) if r.log is not None else None,
        "log_begin": r.log_begin,
        "server_begin": r.server_begin,
        "own": asdict(r.own),
        "samples": asdict(r.samples),
        "ready": r.ready,
    }


def _read(data: Any) -> RunningServe | None:
    try:
        if data is None or data["version"] != _VERSION:
            return None
        return RunningServe(
            url=str(data["url"]),
            model=str(data["model"]),
            workload=str(data["workload"]),
            speculation=read_spec(data["speculation"]) if data["speculation"] else None,
            times=read_times(data["times"]),
            alpha=_maybe(data["alpha"]),
            speedup=_maybe(data["speedup"]),
            limits=Thresholds(float(data["warn"]), float(data["off"])),
            slots=data["slots"] is True,
            log=Path(data["log"]) if data["log"] else None,
            log_begin=int(data["log_begin"]),
            server_begin=int(data.get("server_begin", 0)),
            own=_counts(data.get("own")),
            samples=read_ratios(data["samples"]) if "samples" in data else Ratios(),
            ready=data.get("ready") is not False,
            pid=int(data["pid"]),
            since=float(data["since"]),
        )
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None


def _maybe(x: Any) -> float | None:
    return None if x is None else float(x)


def _counts(data: Any) -> Counts:
    if not data:  # of an earlier version
        return NOTHING
    by_position = tuple(float(x) for x in data["by_position"])
    counts = {n: _maybe(x) for n, x in data.items() if n != "by_position"}
    return Counts(by_position=by_position, **counts)  # type: ignore[arg-type]


def this_process() -> dict[str, Any]:
    """Identifies this process, since pids are reused."""
    return {"pid": os.getpid(), "process": psutil.Process().create_time()}


def alive(data: Mapping[str, Any]) -> bool:
    """Whether the process of a file runs."""
    try:
        process = psutil.Process(int(data["pid"]))
        same = abs(process.create_time() - float(data["process"])) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, LookupError, ValueError, TypeError, OverflowError):
        return False


def _dead(data: Any) -> bool:
    """Whether the process of a file is gone. Files of a later version are left alone."""
    return isinstance(data, dict) and data.get("version") == _VERSION and not alive(data)
