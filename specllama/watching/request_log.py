"""Number of requests that a llama-server has completed. It has no such counter, but every build
logs one line per request at its default level. Nothing else is read from the log.
"""

from __future__ import annotations

from pathlib import Path

_ANSWERED = b"| stop processing: n_"  # server_slot::release (server-context.cpp)
_AT_ONCE = 2**20


class RequestLog:
    """Counts requests in a growing log, from byte `begin` on. A log truncated since (logs.py) is
    read from its start; a line lost then is not counted."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path, self._at, self._rest = path, begin, b""
        self._count = 0

    def count(self, end: int | None = None) -> int:
        """So far, or up to byte `end`, where another server's lines begin. Never raises."""
        try:
            with self._path.open("rb") as f:
                if f.seek(0, 2) < self._at:
                    self._at, self._rest = 0, b""
                f.seek(self._at)
                while block := f.read(self._to_read(end)):
                    self._at += len(block)
                    self._scan(self._rest + block)
        except OSError:
            pass
        return self._count

    def _to_read(self, end: int | None) -> int:
        return _AT_ONCE if end is None else max(0, min(_AT_ONCE, end - self._at))

    def _scan(self, data: bytes) -> None:
        self._count += data.count(_ANSWERED)
        self._rest = data[
            1 - len(_ANSWERED) :
        ]  # may be the start of one; cannot be one that was counted


def log_size(path: Path) -> int:
    """The size of a log, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
