"""A bounded reader of GGUF headers (versions 2 and 3, little-endian).

Reads key-values and the tensor table, never tensor data. Arrays are skipped by
arithmetic and read only when asked for. Every length is checked against what is
left of the file before anything is allocated, so a hostile count is an error,
not an allocation. Layout: llama.cpp, `ggml/src/gguf.cpp` and `docs/gguf.md`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specllama.gguf.cursor import Cursor
from specllama.gguf.errors import GgufError
from specllama.gguf.source import FileSource, Source
from specllama.gguf.types import TENSOR_TYPES, nbytes
from specllama.gguf.values import ARRAY, STRING, U32, LazyArray, Scalar

_MAX_DIMS = 8  # llama.cpp allows 4 (GGML_MAX_DIMS); more means a corrupt table
# The smallest entries: a key of one letter with a value of one byte; a tensor without name
# and dimensions. Files with more entries than any real one are rejected.
_KEY_BYTES, _TENSOR_BYTES = 8 + 1 + 4 + 1, 8 + 4 + 4 + 8
_MAX_ENTRIES = 65_536
_MAX_NUMBERS = 65_536  # of an array that is read completely: one per layer, at most 512


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table. `nbytes` is None for an unknown type."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int | None

    @property
    def elements(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True)
class Header:
    """Everything in a GGUF file before its tensor data. Sizes in bytes. `repeated`: keys that
    occur more than once; the first is used."""

    name: str
    version: int
    fields: Mapping[str, Scalar | LazyArray]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int
    repeated: tuple[str, ...] = ()

    def text(self, key: str) -> str:
        """A string field; "" if missing or of another type."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else ""

    def numbers(self, key: str) -> tuple[int, ...]:
        """A number array as integers; () if missing, of another type, not finite, or longer than
        an array of layers can be."""
        value = self.fields.get(key)
        if not isinstance(value, LazyArray) or value.kind in (STRING, ARRAY):
            return ()
        if value.count > _MAX_NUMBERS:
            return ()
        try:
            return tuple(int(n) for n in value.numbers())
        except (ValueError, OverflowError):
            return ()

    def number(self, key: str) -> int:
        """A count; the largest entry of a per-layer array; 0 if missing."""
        value = self.fields.get(key)
        if isinstance(value, LazyArray):
            return max(self.numbers(key), default=0)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    @property
    def missing_bytes(self) -> int:
        """Bytes of tensor data past the end of the file; 0 if complete."""
        if not self.tensors:
            return 0
        end = max(t.offset + (t.nbytes or 0) for t in self.tensors)
        return max(0, self.data_offset + end - self.file_size)


def read_header(path: Path) -> Header:
    """Reads the header of the GGUF file `path`.

    Raises GgufError if it cannot be read: file not found, a folder, 0 bytes, another
    format, a truncated or damaged header.
    """
    try:
        if os.path.isdir(path):
            raise GgufError(f"{path} is a folder, not a GGUF file", _files_hint(path))
        if not os.path.isfile(path) and os.path.exists(path):
            raise GgufError(f"{path} is not a regular file")
        source = FileSource(path)
    except FileNotFoundError:
        raise GgufError(f"{path}: no such file", _files_hint(path.parent)) from None
    except (OSError, ValueError) as e:  # symlink loops, unreadable folders, …
        reason = getattr(e, "strerror", None) or e
        raise GgufError(f"{path}: cannot be read ({reason})") from None
    return parse_header(source)


def parse_header(source: Source) -> Header:
    """Parses the header of `source`, without reading beyond it (in pieces of 1 MiB).
    Raises GgufError as `read_header` does."""
    _check_magic(source.name, source.read(0, 16), source.size)
    c = Cursor(source)
    c.take(4, "magic")
    version = c.u32("version")
    n_tensors, n_fields = c.u64("tensor count"), c.u64("key-value count")
    _check_count(c, n_tensors, _TENSOR_BYTES, "tensors")
    _check_count(c, n_fields, _KEY_BYTES, "keys")
    fields: dict[str, Scalar | LazyArray] = {}
    repeated = []
    for _ in range(n_fields):
        key = c.string("a key")
        if not key:
            raise c.damaged("it has an empty key")
        if key in fields:
            repeated.append(key)
        fields.setdefault(key, c.value(c.u32(key), key))
    tensors = tuple(_tensor(c) for _ in range(n_tensors))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise GgufError(f"{source.name}: general.alignment is {alignment!r}, not a power of two")
    offset = (c.at + alignment - 1) // alignment * alignment
    return Header(source.name, version, fields, tensors, offset, source.size, tuple(repeated))


def _check_count(c: Cursor, count: int, smallest: int, what: str) -> None:
    """Raises GgufError for more entries than fit the remaining bytes, or than any model has."""
    c.check(count * smallest, f"{count} {what}")
    if count > _MAX_ENTRIES:
        raise c.damaged(f"it claims {count} {what}")


def _tensor(c: Cursor) -> Tensor:
    name = c.string("a tensor name")
    what = f"tensor {name[:80]}"
    n_dims = c.u32(what)
    if n_dims > _MAX_DIMS:
        raise GgufError(f"{c.source.name}: {what} claims {n_dims} dimensions")
    shape = tuple(c.u64(what) for _ in range(n_dims))
    kind, offset = c.u32(what), c.u64(what)
    elements = 1
    for n in shape:
        elements *= n
    label = TENSOR_TYPES[kind][0] if kind in TENSOR_TYPES else f"type {kind}"
    return Tensor(name, shape, label, offset, nbytes(kind, elements))


def _check_magic(path: str, start: bytes, size: int) -> None:
    again = "Download it again, from the link that ends in .gguf."
    if size == 0:
        raise GgufError(f"{path}: the file is empty (0 bytes)", again)
    if start.lstrip()[:1] == b"<":
        raise GgufError(f"{path}: a web page saved as .gguf, not a model", again)
    if start.startswith(b"version https://"):
        raise GgufError(
            f"{path}: a Git LFS pointer, not the model",
            "Fetch the file with `git lfs pull`.",
        )
    if start[:4] != b"GGUF":
        first = start[:4].decode("latin-1")
        raise GgufError(f"{path}: not a GGUF file (it starts with {first!r})", again)
    if len(start) < 8:
        raise GgufError(f"{path}: the file ends within its header ({size} bytes)", again)
    (version,) = U32.unpack_from(start, 4)
    if version in (2 << 24, 3 << 24):
        raise GgufError(f"{path}: a big-endian GGUF file; llama.cpp cannot load it on this machine")
    if version not in (2, 3):
        raise GgufError(
            f"{path}: GGUF version {version} is not supported (only 2 and 3)",
            "Convert the model again with a current llama.cpp.",
        )


def _files_hint(folder: Path) -> str:
    """Lists the GGUF files of a folder, for a path that does not exist."""
    try:
        names = sorted(p.name for p in folder.glob("*.gguf"))
    except OSError:
        return ""
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"GGUF files in {folder}: {', '.join(names[:5])}{more}"
