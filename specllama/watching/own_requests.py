"""Marks the requests that specllama itself sends to a running `serve`: they are no real requests.

The sender writes a small file before its first request. The counters of that time are excluded, and
`serve` removes the file once it has published them (`RunningServe.own`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from specllama.storage import cache_dir, drop, read_stored, write_stored
from specllama.watching import running


@contextmanager
def measuring(url: str) -> Iterator[None]:
    """Marks all requests to the user's `serve` at this URL, if any, as our own."""
    served = running.at(url)
    if served is None:
        yield
        return
    for old in _folder().glob("*.json"):
        pid = old.name.partition("-")[0]
        if not pid.isdecimal() or not psutil.pid_exists(int(pid)):
            drop(old)
    file = _file(served.pid)
    write_stored(file, {**running.this_process(), "ended": False})
    try:
        yield
    finally:
        write_stored(file, {**running.this_process(), "ended": True})


@contextmanager
def idle_probes() -> Iterator[None]:
    """Marks requests that `serve` sends to its own server; it publishes their counts within."""
    file = _file(os.getpid())
    write_stored(file, {**running.this_process(), "ended": False})
    try:
        yield
    finally:
        drop(file)


def marks(serve: int | None = None) -> tuple[Path, ...]:
    """The files about one `serve` (its pid; None: this process)."""
    return tuple(_folder().glob(f"{os.getpid() if serve is None else serve}-*.json"))


def ended(mark: Path) -> bool:
    """Whether the sender has sent its last request, or is gone."""
    data = read_stored(mark)
    return not isinstance(data, dict) or data.get("ended") is True or not running.alive(data)


def _folder() -> Path:
    return cache_dir() / "own_requests"


def _file(serve: int) -> Path:
    return _folder() / f"{serve}-{os.getpid()}.json"
