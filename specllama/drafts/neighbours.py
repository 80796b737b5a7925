"""Bounded search below the target's folder, its parent and grandparent (LM Studio uses
models/OWNER/REPO/FILE.gguf): a few levels, folders and files, the nearest first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specllama.storage import expand_user

_DEPTHS = (3, 2, 2)  # levels below the target's folder, its parent, and the one above that
_MAX_FOLDERS, _MAX_FILES = 300, 300


@dataclass
class Neighbours:
    """`skipped`: folder → why it was not searched completely; complete once `files` is exhausted."""

    here: Path
    skipped: dict[Path, str] = field(default_factory=dict)
    _entered: set[tuple[int, int] | str] = field(default_factory=set)
    _files: int = 0

    def files(self, levels_up: int) -> Iterator[Path]:
        """GGUF files in the subfolders of the folder `levels_up` above the target's, without its own
        files. Links are followed; no folder is entered twice, hidden ones never."""
        root = self.here if levels_up == 0 else self.here.parents[levels_up - 1]
        if not _is_for_models(root):
            return
        level = [root]
        for depth in range(_DEPTHS[levels_up] + 1):
            deeper: list[Path] = []
            for folder in level:
                if not self._enters(folder, is_root=depth == 0):
                    continue
                if self._is_full(root):
                    return
                found, below = _content(folder)
                deeper += below
                for path in found if depth else ():
                    self._files += 1
                    yield path
            level = deeper
        if level:
            deepest = _DEPTHS[levels_up]
            reason = f"folders more than {deepest} levels deep are not searched ({len(level)})"
            self.skipped[root] = reason

    def _enters(self, folder: Path, is_root: bool) -> bool:
        try:
            stat = folder.stat()
        except OSError:
            return False
        key = (stat.st_dev, stat.st_ino) if stat.st_ino else str(folder.resolve())
        if key in self._entered and not is_root:
            return False
        self._entered.add(key)
        return True

    def _is_full(self, root: Path) -> bool:
        if len(self._entered) <= _MAX_FOLDERS and self._files < _MAX_FILES:
            return False
        self.skipped[root] = (
            f"only the first {_MAX_FOLDERS} folders and {_MAX_FILES} files are searched"
        )
        return True


def _is_for_models(folder: Path) -> bool:
    """Whether to search the folder: not a whole disk or home, nor hidden or temporary folders.
    Caches of other programs are searched by name instead."""
    home, temporary = expand_user("~"), Path(tempfile.gettempdir())
    if folder == folder.parent or folder == home or home.is_relative_to(folder):
        return False
    if any(part.startswith(".") for part in folder.parts):
        return False
    return not any(folder.is_relative_to(t) for t in (temporary, temporary.resolve()))


def _content(folder: Path) -> tuple[list[Path], list[Path]]:
    """Its GGUF files and its folders."""
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                if is_gguf(path):
                    files.append(path)
                elif not entry.name.startswith(".") and entry.is_dir():
                    folders.append(path)
    except OSError:
        pass
    return sorted(files), sorted(folders)


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and os.path.isfile(path)
