"""The folders that specllama writes to, and those it searches for models."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from specllama import config
from specllama.doctor.findings import FolderReport, ModelFolder
from specllama.drafts import ollama
from specllama.drafts.discover import cache_folders, in_tree
from specllama.errors import UsageError
from specllama.logs import log_dir
from specllama.storage import cache_dir, expand_user
from specllama.tuning.results import all_results
from specllama.workloads import user_profiles_dir


def own_folders() -> Iterator[FolderReport]:
    """Config, cache and logs."""
    configured, cache, logs = config.path().parent, cache_dir(), log_dir()
    yield _folder("config", configured, {"profiles": len(list(user_profiles_dir().glob("*.toml")))})
    holds = {
        "results": len(all_results()),
        "engines": len(list((cache / "capabilities").glob("*.json"))),
        "models": _inspected(cache / "models.json"),
        "memory figures": len(list((cache / "memory").glob("*.json"))),
    }
    yield _folder("cache", cache, holds, (p for p in cache.rglob("*") if p.is_file()))
    found = [p for p in logs.glob("*.log*") if p.is_file()]
    yield _folder("logs", logs, {"logs": len(found)}, found, private=True)


def _folder(
    what: str,
    path: Path,
    holds: dict[str, int],
    files: Iterable[Path] = (),
    private: bool = False,
) -> FolderReport:
    stats = [s for s in (_stat(p) for p in files) if s is not None]
    readable = private and sys.platform != "win32"
    return FolderReport(
        what=what,
        path=str(path),
        exists=path.is_dir(),
        unwritable=unwritable(path),
        holds=holds,
        bytes=sum(s.st_size for s in stats),
        free=_free(path),
        exposed=sum(bool(s.st_mode & 0o077) for s in stats) if readable else 0,
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def unwritable(folder: Path) -> str:
    """Why `folder`, which need not exist yet, cannot be written; "" if it can. Leaves nothing
    behind."""
    existing = _nearest(folder)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".specllama-"):
            return ""
    except OSError as e:
        reason = e.strerror or str(e)
        return reason if existing == folder else f"{existing}: {reason}"


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    for path in (folder, *folder.parents):
        try:
            path.lstat()
        except OSError:
            continue
        return path
    return folder


def _free(folder: Path) -> int | None:
    try:
        disk = shutil.disk_usage(_nearest(folder))
    except OSError:
        return None
    return disk.free if disk.total else None  # /proc and its like have no size


def _inspected(file: Path) -> int:
    """Number of models in the header cache."""
    try:
        return len(json.loads(file.read_text(encoding="utf-8"))["models"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def model_folders() -> Iterator[ModelFolder]:
    """The config's model folders and those of other programs."""
    try:
        named = [expand_user(d) for d in config.load().model_dirs]
    except UsageError:  # reported for the config
        named = []
    for path in named:
        yield ModelFolder(str(path), path.is_dir(), _count(path), named=True)
    for path in cache_folders():
        yield ModelFolder(str(path), path.is_dir(), _count(path))
    found = sum(1 for _ in ollama.models())
    there = next((r for r in ollama.roots() if r.is_dir()), None)
    yield ModelFolder(str(there or next(iter(ollama.roots()))), there is not None, found)


def _count(folder: Path) -> int:
    return sum(1 for _ in in_tree(folder))
