"""Output files named by the user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specllama.errors import UsageError
from specllama.stop import signals_deferred
from specllama.storage import expand_user

_HEAD = 4096  # bytes at its start in which a file names its maker


def check_replaceable(path: Path, mark: str) -> None:
    """Raises UsageError for an existing, non-empty file without `mark` at its head: another
    program's."""
    path = expand_user(str(path))
    try:
        if not path.is_file():
            return
        with path.open("rb") as f:
            head = f.read(_HEAD)
    except OSError:
        head = b"?"  # never replace a file we cannot read
    if head and mark.encode() not in head:
        raise UsageError(
            f"-o {path}: the file exists and was not written by `specllama plan`",
            "Name a new file, or add --overwrite.",
        )


def check_writable(path: Path, option: str) -> None:
    """Called before minutes of work. Raises UsageError if `path` cannot be written."""
    path = expand_user(str(path))
    check_folder(path, option)
    exists = os.path.lexists(path)
    try:
        path.open("ab").close()
        if not exists:
            path.unlink()
    except OSError as e:
        raise UsageError(f"{option} {path}: cannot be written ({e.strerror or e})") from None


def check_folder(path: Path, option: str) -> None:
    """Raises UsageError if `path` is a folder, or in one that does not exist."""
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: is a folder", "Name a file in it.")
    if not os.path.isdir(path.absolute().parent):
        raise UsageError(f"{option} {path}: no such folder")


def save(path: Path, data: bytes, option: str = "-o") -> None:
    """Writes `data`, atomically for regular files; others (/dev/stdout, a pipe) are written to.
    Raises UsageError if that fails."""
    path = expand_user(str(path))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        _replace(path.resolve(), data)  # a link stays a link
    except OSError as e:
        raise UsageError(f"{option} {path}: cannot be written ({e.strerror or e})") from None


def _replace(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    with signals_deferred():
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(data)
            os.chmod(name, _mode(path))
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _mode(path: Path) -> int:
    """The mode of the existing file, else of a new one."""
    if path.exists():
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "it is write-protected")
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
