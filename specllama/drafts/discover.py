"""Files that may draft for a target, by where they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specllama.gguf import GgufError, ModelInfo, inspect

_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True)
class Unreadable:
    """A file that was passed over, and why."""

    path: Path
    reason: str


def beside(target: Path) -> tuple[list[ModelInfo], list[Unreadable]]:
    """The other GGUF models in the target's folder, smallest first, and those that
    could not be read. Later shards of split models are left out."""
    found: list[ModelInfo] = []
    unreadable: list[Unreadable] = []
    for path in sorted(target.parent.glob("*.gguf")):
        if _LATER_SHARD.search(path.name) or path.samefile(target):
            continue
        try:
            found.append(inspect(path))
        except GgufError as e:
            unreadable.append(Unreadable(path, e.message))
    return sorted(found, key=lambda m: (m.file_bytes, m.path.name)), unreadable
