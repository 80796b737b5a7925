"""Sources of header bytes: a file, memory, or (drafts/hub.py) a remote file.

Files are read in pieces, not memory-mapped: a file that is truncated while being read must be
an error, and a mapped one would crash the process (SIGBUS).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from specllama.gguf.errors import GgufError


class Source(Protocol):
    """`size` in bytes; `name` for messages."""

    size: int
    name: str

    def read(self, at: int, n: int) -> bytes:
        """Up to `n` bytes from position `at`. Raises GgufError if they cannot be read."""


class FileSource:
    """A file on disk. A change of its size or modification time between reads is an error."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        stat = path.stat()
        self.size, self._mtime = stat.st_size, stat.st_mtime_ns

    def read(self, at: int, n: int) -> bytes:
        try:
            stat = self.path.stat()
            if (stat.st_size, stat.st_mtime_ns) != (self.size, self._mtime):
                raise GgufError(
                    f"{self.path}: the file changed while being read",
                    "If it is still being downloaded, wait for the download to finish.",
                )
            with self.path.open("rb") as f:
                f.seek(at)
                return f.read(n)
        except OSError as e:
            raise GgufError(f"{self.path}: cannot be read ({e.strerror or e})") from None


class BytesSource:
    """Bytes in memory."""

    def __init__(self, data: bytes, name: str = "data") -> None:
        self._data, self.name, self.size = data, name, len(data)

    def read(self, at: int, n: int) -> bytes:
        return self._data[at : at + n]
