"""A bounded reader of GGUF headers (versions 2 and 3, little-endian).

Reads key-values and the tensor table, never tensor data. Arrays are skipped by
arithmetic and read only when asked for. Every length is checked against what is
left of the file before anything is allocated, so a hostile count is an error,
not an allocation. Layout: llama.cpp, `ggml/src/gguf.cpp` and `docs/gguf.md`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specllama.errors import SpecllamaError

Scalar = int | float | bool | str


class GgufError(SpecllamaError):
    """A file that is not a readable GGUF model. The message names the file and the reason."""

    exit_code = 2


# Value types: gguf.h, enum gguf_type. 8 = string, 9 = array.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRUCTS = {kind: struct.Struct("<" + code) for kind, code in _SCALARS.items()}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# (elements per block, bytes per block) of each tensor type: ggml.c, type_traits.
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

_MAX_DIMS = 8  # llama.cpp allows 4 (GGML_MAX_DIMS); more means a corrupt table
_MAX_NESTING = 4
_MAX_STRING = 64 * 2**20  # far above any chat template; keeps a damaged length from being allocated


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table. `nbytes` is None for a type this reader does not know."""

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
class LazyArray:
    """An array of the header, read when asked for. `count` is known without reading it."""

    kind: int
    count: int
    _data: bytes | mmap.mmap
    _start: int
    _end: int

    def strings(self) -> list[bytes]:
        """The elements of a string array, as raw bytes. Raises GgufError for other arrays."""
        if self.kind != _STRING:
            raise GgufError("a string array was expected in the GGUF header")
        data, at, out = self._data, self._start, []
        unpack = _U64.unpack_from
        for _ in range(self.count):
            (size,) = unpack(data, at)
            at += 8
            out.append(bytes(data[at : at + size]))
            at += size
        return out

    def numbers(self) -> list[int | float | bool]:
        """The elements of a number array. Raises GgufError for other arrays."""
        if self.kind not in _SCALARS:
            raise GgufError("a number array was expected in the GGUF header")
        raw = bytes(self._data[self._start : self._end])
        return list(struct.unpack(f"<{self.count}{_SCALARS[self.kind]}", raw))


@dataclass(frozen=True)
class Header:
    """Everything a GGUF file says before its tensor data. Sizes in bytes."""

    path: Path
    version: int
    fields: Mapping[str, Scalar | LazyArray]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int

    @property
    def missing_bytes(self) -> int:
        """How much of the last tensor's data lies past the end of the file; 0 when complete."""
        end = max((t.offset + (t.nbytes or 0) for t in self.tensors), default=0)
        return max(0, self.data_offset + end - self.file_size) if self.tensors else 0


class _Cursor:
    """Reads forward through `data`; every step is checked against its end."""

    def __init__(self, data: bytes | mmap.mmap, path: Path) -> None:
        self.data, self.size, self.at, self.path = data, len(data), 0, path

    def need(self, n: int, what: str) -> int:
        """Moves past `n` bytes and returns where they start."""
        if n > self.size - self.at:
            raise GgufError(
                f"{self.path}: the file ends inside its header ({what} needs {n} bytes, "
                f"{self.size - self.at} are left)",
                "The download is incomplete or the file is damaged; download it again.",
            )
        start = self.at
        self.at += n
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.need(8, what))[0])

    def string(self, what: str) -> str:
        size = self.u64(what)
        if size > _MAX_STRING:
            raise GgufError(
                f"{self.path}: {what} claims to be {size} bytes long; the file is damaged"
            )
        start = self.need(size, what)
        return bytes(self.data[start : start + size]).decode("utf-8", "replace")

    def value(self, kind: int, what: str) -> Scalar | LazyArray:
        if kind in _STRUCTS:
            s = _STRUCTS[kind]
            (out,) = s.unpack_from(self.data, self.need(s.size, what))
            return out  # type: ignore[no-any-return]
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        raise GgufError(
            f"{self.path}: {what} has value type {kind}, which GGUF 3 does not define",
            "The file is damaged or newer than this version of specllama.",
        )

    def array(self, what: str, depth: int = 0) -> LazyArray:
        kind, count = self.u32(what), self.u64(what)
        start = self.at
        if kind in _STRUCTS:
            self.need(count * _STRUCTS[kind].size, what)
        elif kind in (_STRING, _ARRAY):
            least = 8 if kind == _STRING else 12
            if count * least > self.size - self.at:
                self.need(count * least, what)
            self.skip(kind, count, what, depth)
        else:
            self.value(kind, what)  # raises: unknown type
        return LazyArray(kind, count, self.data, start, self.at)

    def skip(self, kind: int, count: int, what: str, depth: int) -> None:
        if kind == _ARRAY:
            if depth >= _MAX_NESTING:
                raise GgufError(f"{self.path}: {what} nests arrays too deeply")
            for _ in range(count):
                self.array(what, depth + 1)
            return
        data, at, size, unpack = self.data, self.at, self.size, _U64.unpack_from
        for _ in range(count):
            if at + 8 > size:
                self.at = at
                self.need(8, what)
            at += 8 + unpack(data, at)[0]
        if at > size:
            self.need(at - self.at, what)
        self.at = at


def read_header(path: Path) -> Header:
    """Reads the header of the GGUF file `path`.

    Raises GgufError for everything that keeps it from being read: no such file,
    a folder, 0 bytes, another format, a truncated or damaged header.
    """
    try:
        if path.is_dir():
            raise GgufError(f"{path} is a folder, not a GGUF file", _files_hint(path))
        size = path.stat().st_size
        with path.open("rb") as f:
            _check_magic(path, f.read(16), size)
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GgufError(f"{path}: no such file", _files_hint(path.parent)) from None
    except OSError as e:
        raise GgufError(f"{path}: cannot be read ({e.strerror})") from None
    return parse_header(path, data)


def parse_header(path: Path, data: bytes | mmap.mmap) -> Header:
    """Parses the header in `data` (a whole file's bytes). `path` is for messages."""
    _check_magic(path, bytes(data[:16]), len(data))
    c = _Cursor(data, path)
    c.need(4, "magic")
    version = c.u32("version")
    n_tensors, n_fields = c.u64("tensor count"), c.u64("key-value count")
    fields: dict[str, Scalar | LazyArray] = {}
    for _ in range(n_fields):
        key = c.string("a key")
        value = c.value(c.u32(key), key)
        fields.setdefault(key, value)  # of a repeated key, llama.cpp finds the first
    tensors = tuple(_tensor(c) for _ in range(n_tensors))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise GgufError(f"{path}: general.alignment is {alignment!r}, not a power of two")
    offset = (c.at + alignment - 1) // alignment * alignment
    return Header(path, version, fields, tensors, offset, c.size)


def _tensor(c: _Cursor) -> Tensor:
    name = c.string("a tensor name")
    n_dims = c.u32(f"tensor {name}")
    if n_dims > _MAX_DIMS:
        raise GgufError(f"{c.path}: tensor {name[:80]!r} claims {n_dims} dimensions")
    shape = tuple(c.u64(f"tensor {name}") for _ in range(n_dims))
    kind, offset = c.u32(f"tensor {name}"), c.u64(f"tensor {name}")
    known = TENSOR_TYPES.get(kind)
    if known is None:
        return Tensor(name, shape, f"type {kind}", offset, None)
    label, block, size = known
    elements = 1
    for n in shape:
        elements *= n
    return Tensor(name, shape, label, offset, -(-elements // block) * size)


def _check_magic(path: Path, start: bytes, size: int) -> None:
    again = "Download it again, with the link that ends in .gguf."
    if size == 0:
        raise GgufError(f"{path}: the file is empty (0 bytes)", again)
    if start.lstrip()[:1] == b"<":
        raise GgufError(f"{path}: this is a web page saved as .gguf, not a model", again)
    if start.startswith(b"version https://"):
        raise GgufError(
            f"{path}: this is a Git LFS pointer, not the model",
            "Fetch the file with `git lfs pull`.",
        )
    if start[:4] != b"GGUF":
        raise GgufError(f"{path}: not a GGUF file (it starts with {start[:4]!r})", again)
    if len(start) < 8:
        raise GgufError(f"{path}: the file ends inside its header ({size} bytes)", again)
    (version,) = _U32.unpack_from(start, 4)
    if version in (2 << 24, 3 << 24):
        raise GgufError(f"{path}: a big-endian GGUF file; llama.cpp cannot load it on this machine")
    if version not in (2, 3):
        raise GgufError(
            f"{path}: GGUF version {version}; versions 2 and 3 are supported",
            "Convert the model again with a current llama.cpp.",
        )


def _files_hint(folder: Path) -> str:
    """Names the GGUF files of a folder, for a path that missed one."""
    try:
        names = sorted(p.name for p in folder.glob("*.gguf"))
    except OSError:
        return ""
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"GGUF files in {folder}: {', '.join(names[:5])}{more}"
