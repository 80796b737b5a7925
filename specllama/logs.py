"""Server logs: where they are, and their size limits.

A server writes to its file itself, through a descriptor that only appends. So there is no pipe that
could fill up or close before the server exits, and a file can be truncated while it is written to:
its content moves to a second file, `NAME.1`, replacing the previous one. A line printed at that
moment can be lost.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

MAX_BYTES = 50 * 10**6  # of one server, both files together
ALL_BYTES = 500 * 10**6  # of all logs in the folder
_KEPT_LOGS = 20


def log_dir() -> Path:
    """The folder of our servers' logs."""
    from platformdirs import user_log_path

    return user_log_path("specllama", appauthor=False)


def new_log(port: int) -> Path:
    """A path for a new server log, named by time and port; the oldest logs are removed."""
    remove_old(log_dir(), _KEPT_LOGS - 1, ALL_BYTES - MAX_BYTES)
    return log_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-{port}.log"


def remove_old(folder: Path, count: int, size: int) -> None:
    """Keeps at most so many logs and bytes, the newest by name; a log that a server still writes to
    always stays. Never raises."""
    left = size
    for i, log in enumerate(sorted(folder.glob("*.log"), key=lambda p: p.name, reverse=True)):
        left -= sum(_size(p) for p in (log, _rotated(log)))
        if (i < count and left >= 0) or in_use(log):
            continue
        for p in (log, _rotated(log)):
            try:
                p.unlink(missing_ok=True)
            except OSError:  # Windows: in use
                pass


@dataclass
class ServerLog:
    """One server's log, from `open` on. With --log, others may also write to it or truncate it:
    `_first`, this server's first line, marks where its text begins; that was at `_begin` in the
    file."""

    path: Path
    _begin: int = field(default=0, init=False)
    _first: bytes = field(default=b"", init=False)

    def open(self, first: str) -> FileIO:
        """The file for the server to append to, readable by this user only, with `first` as its
        first line. Locked while the server lives, if the system supports that.
        Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._is_file() and _size(self.path) > MAX_BYTES // 2 and not in_use(self.path):
            os.replace(self.path, _rotated(self.path))
        out = FileIO(self.path, "a", opener=_for_appending)
        try:
            self._begin = out.tell() if self._is_file() else 0
            self._first = f"{first}\n".encode(errors="replace")
            out.write(self._first)
            _lock(out)
        except OSError:
            out.close()
            raise
        return out

    @property
    def begin(self) -> int:
        """Where this server's text began in the file."""
        return self._begin

    def text(self, last_bytes: int) -> str:
        """The end of this server's output; "" if it cannot be read."""
        if _read_at(self.path, self._begin, len(self._first)) == self._first:
            return _end(self.path, last_bytes, self._begin).decode("utf-8", "replace")
        found = _end(self.path, last_bytes)  # it was truncated
        found = _end(_rotated(self.path), last_bytes - len(found)) + found
        return found[max(0, found.rfind(self._first)) :].decode("utf-8", "replace")

    def trim(self) -> None:
        """Truncates the file at half of its limit. Call regularly while the server runs. Never
        raises."""
        half = MAX_BYTES // 2
        if not self._is_file() or _size(self.path) <= half:
            return
        try:
            if not _copy_end(self.path, _rotated(self.path), half):
                return  # another process was faster
            os.truncate(self.path, 0)
        except OSError:
            return
        if self.path.parent == log_dir():
            remove_old(self.path.parent, _KEPT_LOGS, ALL_BYTES)

    def _is_file(self) -> bool:
        """False for a terminal, a pipe and /dev/null."""
        try:
            return stat.S_ISREG(self.path.stat().st_mode)
        except OSError:
            return False


def _rotated(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_at(path: Path, at: int, count: int) -> bytes:
    try:
        with path.open("rb") as f:
            f.seek(at)
            return f.read(count)
    except OSError:
        return b""


def _end(path: Path, last_bytes: int, begin: int = 0) -> bytes:
    try:
        with path.open("rb") as f:
            size = f.seek(0, os.SEEK_END)
            f.seek(max(begin, size - last_bytes))
            return f.read(last_bytes)
    except OSError:
        return b""


def _copy_end(path: Path, to: Path, last_bytes: int) -> bool:
    """Copies the end of `path`, if it is longer than that; False if not. Raises OSError if it cannot
    be read. If it cannot be copied, as on a full disk, it is lost."""
    with path.open("rb") as source:
        size = source.seek(0, os.SEEK_END)
        if size <= last_bytes:
            return False
        source.seek(size - last_bytes)
        try:
            with open(to, "wb", opener=_open_private) as out:
                shutil.copyfileobj(source, out)
        except OSError:
            to.unlink(missing_ok=True)
    return True


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


if sys.platform == "win32":  # pragma: no cover

    def _for_appending(path: str, flags: int) -> int:
        """A handle that only appends, even when inherited: the C library's seeks to the end before
        each write, which the server does not do."""
        import ctypes
        import msvcrt
        from ctypes import wintypes

        create = ctypes.WinDLL("kernel32", use_last_error=True).CreateFileW
        create.restype = wintypes.HANDLE
        create.argtypes = [
            wintypes.LPCWSTR,
            wintypes.DWORD,
            wintypes.DWORD,
            ctypes.c_void_p,
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.HANDLE,
        ]
        access = 0x4 | 0x80 | 0x100000  # FILE_APPEND_DATA, FILE_READ_ATTRIBUTES, SYNCHRONIZE
        share = 0x1 | 0x2  # FILE_SHARE_READ, FILE_SHARE_WRITE: it cannot be deleted
        handle = create(path, access, share, None, 4, 0x80, None)  # OPEN_ALWAYS
        if handle in (None, ctypes.c_void_p(-1).value):
            raise ctypes.WinError(ctypes.get_last_error())
        return msvcrt.open_osfhandle(handle, os.O_APPEND)

    def _lock(out: FileIO) -> None:
        """Not needed: see `in_use`."""

    def in_use(path: Path) -> bool:
        """Unknown, and not needed: an open file cannot be deleted here."""
        return False

else:
    _for_appending = _open_private

    def _lock(out: FileIO) -> None:
        """The server inherits the lock with the descriptor and releases it on exit."""
        import fcntl

        try:
            fcntl.flock(out, fcntl.LOCK_SH)  # with --log, several servers may write there
        except OSError:  # a file system without locks
            pass

    def in_use(path: Path) -> bool:
        """Whether a server writes to it."""
        import fcntl

        try:
            with path.open("r+b") as f:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
