"""Where specllama keeps files, and how it writes them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """Everything below it can be deleted at any time."""
    from platformdirs import user_cache_path

    return user_cache_path("specllama", appauthor=False)


def log_dir() -> Path:
    """The logs of the servers started here."""
    from platformdirs import user_log_path

    return user_log_path("specllama", appauthor=False)


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` to `path` so that a reader sees the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
