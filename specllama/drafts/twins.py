"""One model under two names: the same facts in the header, the same table of tensors and the
same bytes in every tensor. What a file calls itself and its chat template may differ.

Cheap first: facts, tables, the start of each tensor. Only what agrees in all of them is read
as a whole, once: a digest is kept on disk by size and time of the file.
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

_MOST = 8 * 2**30  # bytes of tensors; reading more takes longer than a second candidate costs
_START = 4096  # bytes of a tensor that tell two trainings apart
_PIECE = 2**20
_KEPT = 1000  # digests


@dataclass(frozen=True)
class _Tensor:
    """`label`: what the table says of it. Its data: `size` bytes of `path` from `at` on."""

    label: str
    path: Path
    at: int
    size: int


def twin(model: ModelInfo, others: Iterable[ModelInfo]) -> ModelInfo | None:
    """The first of `others` with the same tensors. Files that cannot be read, are on the Hub
    or larger than 8 GiB have none."""
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
    """What must agree: everything but where the file lies and what it is called."""
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
    """By name; a tensor of an unknown type has no known size and counts as damage."""
    out = {}
    for path, header in zip(m.shards, read_headers(m.path), strict=True):
        for t in header.tensors:
            if t.nbytes is None:
                raise GgufError(f"{path}: {t.name} is of a type that is not known")
            label = f"{t.kind} {t.shape}"
            out[t.name] = _Tensor(label, path, header.data_offset + t.offset, t.nbytes)
    return out


def _start(t: _Tensor) -> bytes:
    with t.path.open("rb") as f:
        f.seek(t.at)
        return f.read(min(t.size, _START))


def _digest(m: ModelInfo, table: Mapping[str, _Tensor]) -> str:
    """Over all tensors' data, in the order of their names."""
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
