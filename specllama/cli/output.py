"""Files that a user asked for by name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specllama.errors import UsageError
from specllama.stop import signals_deferred
from specllama.storage import expand_user

_HEAD = 4096  # bytes in which a file says who made it


def check_replaceable(path: Path, mark: str) -> None:
    """Raises UsageError for a file that is there, is not empty, and does not say `mark` at its
    head: it is somebody else's."""
    path = expand_user(str(path))
    try:
        if not path.is_file():
            return
        with path.open("rb") as f:
            head = f.read(_HEAD)
    except OSError:
        head = b"?"  # what cannot be read is nobody's to replace
    if head and mark.encode() not in head:
        raise UsageError(
            f"-o {path}: there is another file, which `specllama plan` did not make",
            "Name a new file, or give --overwrite.",
        )


def check_writable(path: Path, option: str) -> None:
    """Before minutes of work. Raises UsageError when `path` cannot become a file."""
    path = expand_user(str(path))
    exists = os.path.lexists(path)
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: is a folder", "Give the name of a file in it.")
    if not os.path.isdir(path.absolute().parent):
        raise UsageError(f"{option} {path}: no such folder")
    try:
        path.open("ab").close()
        if not exists:
            path.unlink()
    except OSError as e:
        raise UsageError(f"{option} {path}: cannot be written ({e.strerror or e})") from None


def save(path: Path, data: bytes, option: str = "-o") -> None:
    """Writes `data` so that the file is the old one or the new, never half; what is no ordinary
    file (/dev/stdout, a pipe) is written to. Raises UsageError when it cannot be."""
    path = expand_user(str(path))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        _replace(path.resolve(), data)  # a link stays one
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
    """The file's own where it is there, else a new file's."""
    if path.exists():
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "it is write-protected")
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
