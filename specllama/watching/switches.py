"""The last switches of `serve --adaptive` for each model and workload, with reasons, on disk."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllama.storage import cache_dir, delete, read_stored, write_stored

_VERSION = 1
_MAX_SWITCHES = 20  # per model and workload


@dataclass(frozen=True)
class SwitchRecord:
    """One switch. `before`, `after`: names of settings, as in tables; `when`: Unix time."""

    target: str
    workload: str
    when: float
    before: str
    after: str
    reason: str


def add(target: Path, workload: str, before: str, after: str, reason: str) -> None:
    """Saves a switch made now; only the last 20 are kept. Failing to write is ignored."""
    name = str(target.absolute())
    path = _folder() / f"{hashlib.sha256(f'{name}/{workload}'.encode()).hexdigest()[:24]}.json"
    found = [*_read(path), SwitchRecord(name, workload, time.time(), before, after, reason)]
    write_stored(
        path, {"version": _VERSION, "switches": [asdict(s) for s in found[-_MAX_SWITCHES:]]}
    )


def all_switches() -> tuple[SwitchRecord, ...]:
    """All saved switches, newest first. Damaged files are skipped."""
    found = [s for p in _folder().glob("*.json") for s in _read(p)]
    return tuple(sorted(found, key=lambda s: -s.when))


def clear(target: Path | None = None) -> int:
    """Deletes all of them, or those of one target. Returns how many. Raises SpecllamaError."""
    name = str(target.absolute()) if target is not None else None
    count = 0
    for path in _folder().glob("*.json"):
        found = _read(path)
        if found and name in (None, found[0].target):
            delete(path)
            count += len(found)
    return count


def _folder() -> Path:
    return cache_dir() / "switches"


def _read(path: Path) -> list[SwitchRecord]:
    data = read_stored(path)
    try:
        if data is None or data["version"] != _VERSION:
            return []
        return [_switch(s) for s in data["switches"]]
    except (LookupError, ValueError, TypeError):
        return []


def _switch(data: Any) -> SwitchRecord:
    texts = {k: str(data[k]) for k in ("target", "workload", "before", "after", "reason")}
    return SwitchRecord(**texts, when=float(data["when"]))
