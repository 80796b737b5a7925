"""What was measured before, on disk: one JSON file per target, candidates, workload and flags.

A result made with another build, engine file or device is kept but stale: it is shown, said to
be stale, and not used.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllama.engine.settings import NgramSizes, Speculation
from specllama.storage import cache_dir, write_atomically
from specllama.tuning.arms import Tuned, label

_VERSION = 1


@dataclass(frozen=True)
class Subject:
    """What a result is about. `files`: path, size and time of each model file; `flags`: the
    user's arguments that matter; `engine` and `devices` make a result stale, not another."""

    target: str
    workload: str
    files: tuple[tuple[str, int, int], ...]
    flags: tuple[str, ...]
    engine: str
    devices: tuple[str, ...]

    @property
    def key(self) -> str:
        data = [self.workload, self.files, self.flags]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Result:
    """`speculation` None = off. `speedup`: (value, low, high), None when nothing was measured."""

    target: str
    workload: str
    speculation: Speculation | None
    reason: str
    speedup: tuple[float, float, float] | None
    tokens_per_second: float
    engine: str
    devices: tuple[str, ...]
    when: float
    file: Path

    @property
    def label(self) -> str:
        return label(self.speculation)


def stamp(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of each file that is there."""
    found = [(p.absolute(), p.stat()) for p in paths if p.exists()]
    return tuple((str(p), s.st_size, s.st_mtime_ns) for p, s in found)


def store(subject: Subject, tuned: Tuned) -> None:
    """Keeps a result. A home that cannot be written costs the next start a tuning run."""
    best, s = tuned.best, tuned.best.speedup if tuned.best else None
    rate = (best or tuned.baseline).measurement.tokens_per_second
    data = {
        "version": _VERSION,
        "target": subject.target,
        "workload": subject.workload,
        "engine": subject.engine,
        "devices": list(subject.devices),
        "when": time.time(),
        "speculation": _spec_data(best.speculation) if best else None,
        "reason": tuned.reason,
        "speedup": [s.value, s.low, s.high] if s else None,
        "tokens_per_second": rate,
    }
    try:
        write_atomically(_folder() / f"{subject.key}.json", json.dumps(data, indent=1))
    except OSError:
        pass


def find(subject: Subject) -> tuple[Result | None, str]:
    """(the result for exactly this, why it is stale). ("", not stale; None when there is none.)"""
    found = _read(_folder() / f"{subject.key}.json")
    if found is None:
        return None, ""
    if found.engine != subject.engine:
        return found, f"it was measured with {found.engine}, this is {subject.engine}"
    if found.devices != subject.devices:
        return found, f"it was measured on {', '.join(found.devices) or 'the CPU'}"
    return found, ""


def all_results() -> tuple[Result, ...]:
    """Every result kept, the newest first. Damaged files are passed over."""
    found = (_read(p) for p in _folder().glob("*.json"))
    return tuple(sorted((r for r in found if r is not None), key=lambda r: -r.when))


def clear(target: Path | None = None) -> int:
    """Removes all results, or those of one target. Returns how many."""
    count = 0
    for r in all_results():
        if target is None or r.target == str(target.absolute()):
            r.file.unlink(missing_ok=True)
            count += 1
    return count


def _folder() -> Path:
    return cache_dir() / "tuning"


def _spec_data(s: Speculation | None) -> dict[str, Any] | None:
    return None if s is None else {**asdict(s), "draft": str(s.draft) if s.draft else None}


def _read(path: Path) -> Result | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            return None
        speedup = data["speedup"]
        return Result(
            target=str(data["target"]),
            workload=str(data["workload"]),
            speculation=_spec(data["speculation"]),
            reason=str(data["reason"]),
            speedup=(float(speedup[0]), float(speedup[1]), float(speedup[2])) if speedup else None,
            tokens_per_second=float(data["tokens_per_second"]),
            engine=str(data["engine"]),
            devices=tuple(str(d) for d in data["devices"]),
            when=float(data["when"]),
            file=path,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _spec(data: Mapping[str, Any] | None) -> Speculation | None:
    if data is None:
        return None
    ngram = data["ngram"]
    return Speculation(
        methods=tuple(str(m) for m in data["methods"]),
        draft=Path(data["draft"]) if data["draft"] else None,
        n_max=int(data["n_max"]),
        n_min=int(data["n_min"]),
        p_min=float(data["p_min"]),
        draft_layers=data["draft_layers"],
        cache_type=data["cache_type"],
        ngram=NgramSizes(int(ngram["n"]), int(ngram["m"]), int(ngram["min_hits"]))
        if ngram
        else None,
    )


def stale_lines(found: Result | None, why: str) -> Iterator[str]:
    """What a user is told about a result that is not used."""
    if found is not None and why:
        yield f"an earlier result ({found.label}) is stale: {why}"
