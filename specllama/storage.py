"""Where specllama keeps files, and how it writes them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError
from specllama.stop import signals_deferred

_STORED = '{{"digest": "{}", "data": {}}}'
_DIGEST_AT = len('{"digest": "')
_BODY_AT = _DIGEST_AT + 32


def cache_dir() -> Path:
    """Everything below it can be deleted at any time."""
    from platformdirs import user_cache_path

    return user_cache_path("specllama", appauthor=False)


def strict_json(data: Any, indent: int | None = None) -> str:
    """`data` as JSON that every parser accepts: null for Infinity and NaN, which Python would write
    as such."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _key(key: Any) -> Any:
    """A key must be a string or a finite number."""
    return str(key) if isinstance(key, float) and not math.isfinite(key) else key


def write_stored(path: Path, data: Any) -> bool:
    """Writes `data` as JSON with its digest, for `read_stored`. False if that failed: a read-only
    home or a full disk only costs time at the next start."""
    body = strict_json(data)
    try:
        write_atomically(path, _STORED.format(_digest(body), body))
    except OSError:
        return False
    return True


def read_stored(path: Path) -> Any:
    """What `write_stored` wrote to `path`; None if it is missing, damaged or edited (the digest does
    not match)."""
    try:
        text = path.read_text(encoding="utf-8")
        start = _STORED.format(text[_DIGEST_AT:_BODY_AT], "")[:-1]
        body = text[len(start) : -1]
        if not text.startswith(start) or text[_DIGEST_AT:_BODY_AT] != _digest(body):
            return None
        return json.loads(body)
    except (OSError, ValueError, RecursionError):
        return None


def drop(path: Path) -> None:
    """Removes a file, if it exists. One that cannot be removed now (on Windows, while it is open)
    stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass


def delete(path: Path) -> None:
    """Removes a file, if it exists, because the user asked for it. Raises SpecllamaError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        raise SpecllamaError(f"{path}: cannot be deleted ({e.strerror or e})") from None


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def expand_user(text: str) -> Path:
    """The user's path with ~ expanded; ~nouser is left unchanged."""
    return Path(os.path.expanduser(text))


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` to `path` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with signals_deferred():
        try:
            fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        except OSError as e:
            e.filename = str(path)  # a message with the temporary file's name helps nobody
            raise
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
