"""Files that may draft for a target, by where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specllama.gguf import GgufError, ModelInfo, inspect, is_later_shard


@dataclass(frozen=True)
class PassedOver:
    """A file that cannot be a draft whatever the rules say, and why."""

    path: Path
    rule: str
    reason: str


@dataclass(frozen=True)
class Neighbours:
    """The GGUF models in a target's folder, smallest first, and what was passed over."""

    models: tuple[ModelInfo, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()


def beside(target: ModelInfo) -> Neighbours:
    """The other models in the target's folder. The header of a file as large as the
    target is not even read. Later shards of split models are left out."""
    found: list[ModelInfo] = []
    passed: list[PassedOver] = []
    for path in sorted(target.path.parent.glob("*.gguf")):
        if is_later_shard(path) or not path.is_file() or path.samefile(target.path):
            continue
        if path.stat().st_size >= target.file_bytes:
            passed.append(PassedOver(path, "size", "it is as large as the target or larger"))
            continue
        try:
            found.append(inspect(path))
        except GgufError as e:
            passed.append(PassedOver(path, "unreadable", e.message))
    models = sorted(found, key=lambda m: (m.file_bytes, m.path.name))
    return Neighbours(tuple(models), tuple(passed))
