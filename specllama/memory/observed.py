"""Memory that a server really used, from its log, and the error of the estimate.

llama.cpp prints every buffer it allocates while loading (src/llama-model.cpp,
llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp), from b9181 at
verbosity 4. The difference from the estimate is saved by file and build, and shown next time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specllama.memory.devices import MIB
from specllama.storage import cache_dir, read_stored, write_stored

_BUFFER = re.compile(r"(\S+) +(model|KV|RS|output|compute) buffer size = +(\d+(?:\.\d+)?) MiB")
_PARTS = {"model": "weights", "KV": "KV cache", "RS": "recurrent state", "compute": "compute"}
_LISTENS = "listening on"
_MAX_LINES = 100_000


@dataclass(frozen=True)
class ObservedMemory:
    """Bytes by part over all models and devices, from a server's log."""

    weights: int
    cache: int
    state: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.state + self.compute


def read_log(text: str) -> ObservedMemory | None:
    """The buffers of a loaded server; None if the log does not contain them.

    Each context prints its output buffer, then its compute buffers. A buffer that is reserved
    again is not a new one: until the server listens it is the draft's, whose graph then samples
    too, later the target's. It may grow, but never shrinks.
    """
    sums = dict.fromkeys(_PARTS.values(), 0)
    contexts: list[dict[str, int]] = [{}]
    listens = False
    for line in text.splitlines()[:_MAX_LINES]:
        m = _BUFFER.search(line)
        if m is None:
            listens = listens or _LISTENS in line
            continue
        buffer, kind, size = m[1], m[2], int(float(m[3]) * MIB)
        if kind == "output":
            contexts.append({})
        elif kind == "compute":
            reserved = contexts[min(1, len(contexts) - 1) if listens else -1]
            reserved[buffer] = max(size, reserved.get(buffer, 0))
        else:
            sums[_PARTS[kind]] += size
    sums["compute"] = sum(size for reserved in contexts for size in reserved.values())
    if not sums["weights"] or not sums["compute"]:
        return None
    return ObservedMemory(*sums.values())


@dataclass(frozen=True)
class Residual:
    """Estimated (`ours`) and real bytes of the last time this engine loaded these files."""

    ours: int
    real: int

    @property
    def share(self) -> float:
        return (self.real - self.ours) / self.ours if self.ours else 0.0


def save_residual(files: Sequence[Path], engine: Path, ours: int, real: int) -> None:
    """Saves the residual. If that fails, the next estimate has one line less."""
    try:
        write_stored(_file(files, engine), {"ours": ours, "real": real})
    except OSError:
        pass  # a file was removed meanwhile


def saved_residual(files: Sequence[Path], engine: Path) -> Residual | None:
    """The saved residual of these files with this engine; None if they were never loaded here."""
    try:
        data = read_stored(_file(files, engine))
    except OSError:
        return None
    return Residual(data["ours"], data["real"]) if data is not None else None


def _file(files: Sequence[Path], engine: Path) -> Path:
    """Keyed by path, size and time of each file and of the engine."""
    key = [(str(p.absolute()), p.stat().st_size, p.stat().st_mtime_ns) for p in (*files, engine)]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return cache_dir() / "memory" / f"real-{digest}.json"
