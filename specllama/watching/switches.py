"""What `serve --adaptive` switched, and why: the last ones of each model and workload, on disk."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllama.storage import cache_dir, drop, read_stored, write_stored

_VERSION = 1
_MOST = 20  # of one model and workload


@dataclass(frozen=True)
class SwitchRecord:
    """One switch. `before`, `after`: settings by their names in tables; `when` in seconds since
    1970."""

    target: str
    workload: str
    when: float
    before: str
    after: str
    reason: str


def add(target: Path, workload: str, before: str, after: str, reason: str) -> None:
    """Keeps a switch made now, the oldest of more than 20 goes. A home that cannot be written
    costs the list."""
    name = str(target.absolute())
    path = _folder() / f"{hashlib.sha256(f'{name}/{workload}'.encode()).hexdigest()[:24]}.json"
    found = [*_read(path), SwitchRecord(name, workload, time.time(), before, after, reason)]
    write_stored(path, {"version": _VERSION, "switches": [asdict(s) for s in found[-_MOST:]]})


def all_switches() -> tuple[SwitchRecord, ...]:
    """All that are kept, the newest first. Damaged files are passed over."""
    found = [s for p in _folder().glob("*.json") for s in _read(p)]
    return tuple(sorted(found, key=lambda s: -s.when))


def clear(target: Path | None = None) -> int:
    """Forgets all of them, or those of one target. Returns how many."""
    name = str(target.absolute()) if target is not None else None
    count = 0
    for path in _folder().glob("*.json"):
        found = _read(path)
        if found and name in (None, found[0].target):
            drop(path)
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
