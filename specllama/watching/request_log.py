"""How many requests a llama-server has answered: it has no counter of them, but its log has a line
for each at the default level, in every build. Nothing else of the log is looked at.
"""

from __future__ import annotations

from pathlib import Path

_ANSWERED = b"| stop processing: n_"  # server_slot::release (server-context.cpp)
_AT_ONCE = 2**20


class RequestLog:
    """Counts in a log that is written to, from byte `begin` on. A log that was cut back since
    (logs.py) is read from its start; a line lost then is not counted."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path, self._at, self._rest = path, begin, b""
        self._count = 0

    def count(self) -> int:
        """So far. Never raises."""
        try:
            with self._path.open("rb") as f:
                if f.seek(0, 2) < self._at:
                    self._at, self._rest = 0, b""
                f.seek(self._at)
                while block := f.read(_AT_ONCE):
                    self._at += len(block)
                    self._see(self._rest + block)
        except OSError:
            pass
        return self._count

    def _see(self, data: bytes) -> None:
        self._count += data.count(_ANSWERED)
        self._rest = data[1 - len(_ANSWERED) :]  # too short to hold one that was counted


def size(path: Path) -> int:
    """Where a log ends now; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
