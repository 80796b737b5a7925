"""Cache of model files read before: key = path, size and modification time."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from specllama import __version__
from specllama.gguf.faults import Fault
from specllama.gguf.files import read_model, shards
from specllama.gguf.layout import Block, Layout
from specllama.gguf.model import ModelInfo, ModelNames, Sidecar
from specllama.gguf.source import FileSource
from specllama.gguf.values import LazyArray
from specllama.gguf.vocabulary import Vocabulary
from specllama.storage import cache_dir, read_stored, write_stored

_VERSION = f"{__version__}/9"  # change when ModelInfo does
_MAX_MODELS = 5000


class InspectCache:
    """`read_model` with a cache on disk. Errors are not cached."""

    def __init__(self) -> None:
        self._file = cache_dir() / "models.json"
        self._changed = False
        data = read_stored(self._file)
        same = isinstance(data, dict) and data.get("version") == _VERSION
        self._known: dict[str, dict[str, Any]] = data["models"] if same else {}

    def inspect(self, path: Path) -> ModelInfo:
        """As `files.inspect`; raises GgufError likewise."""
        parts = shards(path)
        key = str(parts[0].absolute())
        stamp = _stamp(parts)
        known = self._known.get(key)
        if isinstance(known, dict) and stamp is not None and known.get("stamp") == stamp:
            try:
                return _restore(known["info"], parts)
            except (KeyError, TypeError, ValueError, OSError):
                pass  # damaged: read again
        info = read_model(path)
        if stamp is not None:
            self._known[key] = {"stamp": stamp, "info": as_json(info)}
            self._changed = True
        return info

    def save(self) -> None:
        """Writes the cache. Failing to write it costs time, nothing else."""
        if not self._changed:
            return
        newest = dict(list(self._known.items())[-_MAX_MODELS:])
        write_stored(self._file, {"version": _VERSION, "models": newest})


def _stamp(parts: tuple[Path, ...]) -> list[list[int]] | None:
    try:
        return [[s.st_size, s.st_mtime_ns] for s in (p.stat() for p in parts)]
    except OSError:
        return None


def as_json(value: Any) -> Any:
    """A dataclass as JSON values; a lazy array as its position in the file."""
    if isinstance(value, LazyArray):
        return [value.kind, value.count, value.start, value.end]
    if isinstance(value, Block):  # many and small: by position
        return [getattr(value, f.name) for f in fields(value)]
    if is_dataclass(value):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [as_json(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _restore(data: dict[str, Any], parts: tuple[Path, ...]) -> ModelInfo:
    v = data["vocabulary"]
    table = None
    if v:
        kind, count, start, end = v["table"]
        table = LazyArray(kind, count, start, end, FileSource(parts[0]))
    return ModelInfo(
        **{
            **data,
            "path": parts[0],
            "shards": parts,
            "names": ModelNames(
                **{**data["names"], "base_models": tuple(data["names"]["base_models"])}
            ),
            "heads": tuple(data["heads"]),
            "kv_heads": tuple(data["kv_heads"]),
            "window_pattern": tuple(data["window_pattern"]),
            "sidecar": Sidecar(
                **{**data["sidecar"], "target_layers": tuple(data["sidecar"]["target_layers"])}
            ),
            "layout": Layout(
                **{**data["layout"], "blocks": tuple(Block(*b) for b in data["layout"]["blocks"])}
            ),
            "faults": tuple(Fault(**f) for f in data["faults"]),
            "vocabulary": Vocabulary(**{**v, "table": table}) if v else None,
        }
    )
