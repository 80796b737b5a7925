"""Detects one model under two names: the same metadata, tensor table and tensor bytes. Names and
chat template may differ.

Cheap checks first: metadata, tables, the start of each tensor. Only files that agree in all of
them are read completely, once: a digest is saved by size and time of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.gguf import GgufError, ModelInfo
from specllama.gguf.files import read_headers
from specllama.gguf.model import ModelNames
from specllama.storage import cache_dir, read_stored, write_stored

_MOST = 8 * 2**30  # bytes of tensors; reading more costs more than a second candidate
_START = 4096  # bytes at the start of a tensor that distinguish two trainings
_PIECE = 2**20
_KEPT = 1000  # digests


@dataclass(frozen=True)
class _Tensor:
    """`label`: its type and shape. Data: `size` bytes of `path` from offset `at`."""

    label: str
    path: Path
    at: int
    size: int


def twin(model: ModelInfo, others: Iterable[ModelInfo]) -> ModelInfo | None:
    """The first of `others` with the same tensors. Unreadable files, files on the Hub and files
    over 8 GiB never match."""
    return next((other for other in others if _same(model, other)), None)


def _same(a: ModelInfo, b: ModelInfo) -> bool:
    if a.tensor_bytes > _MOST or _facts(a) != _facts(b):
        return False
    try:
        ours, theirs = _table(a), _table(b)
        if {n: t.label for n, t in ours.items()} != {n: t.label for n, t in theirs.items()}:
            return False
        if any(_start(t) != _start(theirs[name]) for name, t in ours.items()):
            return False
        return _digest(a, ours) == _digest(b, theirs)
    except (OSError, GgufError):
        return False


def _facts(m: ModelInfo) -> ModelInfo:
    """The metadata that must agree: everything except path and names."""
    nameless = ModelNames("", "", "", "", ())
    return replace(
        m,
        path=Path(),
        shards=(),
        file_bytes=0,
        names=nameless,
        file_type="",
        template_hash="",
        called="",
    )


def _table(m: ModelInfo) -> Mapping[str, _Tensor]:
    """Tensors by name. One of an unknown type has no known size: raises GgufError."""
    out = {}
    for path, header in zip(m.shards, read_headers(m.path), strict=True):
        for t in header.tensors:
            if t.nbytes is None:
                raise GgufError(f"{path}: {t.name} has an unknown tensor type")
            label = f"{t.kind} {t.shape}"
            out[t.name] = _Tensor(label, path, header.data_offset + t.offset, t.nbytes)
    return out


def _start(t: _Tensor) -> bytes:
    with t.path.open("rb") as f:
        f.seek(t.at)
        return f.read(min(t.size, _START))


def _digest(m: ModelInfo, table: Mapping[str, _Tensor]) -> str:
    """A digest of all tensors' data, sorted by name."""
    key = str(m.path.absolute())
    stamp = [[s.st_size, s.st_mtime_ns] for s in (p.stat() for p in m.shards)]
    known = _known()
    if (before := known.get(key)) is not None and before[0] == stamp:
        return before[1]
    total = hashlib.blake2b(digest_size=32)
    for name in sorted(table):
        t = table[name]
        with t.path.open("rb") as f:
            f.seek(t.at)
            left = t.size
            while left and (piece := f.read(min(left, _PIECE))):
                total.update(piece)
                left -= len(piece)
    known[key] = (stamp, total.hexdigest())
    write_stored(_file(), dict(list(known.items())[-_KEPT:]))
    return known[key][1]


def _file() -> Path:
    return cache_dir() / "tensors.json"


def _known() -> dict[str, tuple[list[list[int]], str]]:
    """Path → (sizes and times of its parts, digest)."""
    return {name: (stamp, digest) for name, (stamp, digest) in (read_stored(_file()) or {}).items()}
