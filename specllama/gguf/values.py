"""Values of a GGUF header: scalars, and arrays that are read on demand."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from specllama.gguf.errors import GgufError
from specllama.gguf.source import Source

Scalar = int | float | bool | str

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
STRUCTS = {kind: struct.Struct("<" + code) for kind, code in _SCALARS.items()}
STRING, ARRAY = 8, 9
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class LazyArray:
    """An array of the header, read on demand. `count` is known without reading it."""

    kind: int
    count: int
    start: int
    end: int
    source: Source = field(repr=False, compare=False)

    def raw(self) -> bytes:
        """The elements as stored in the file (strings with their lengths)."""
        return self.source.read(self.start, self.end - self.start)

    def strings(self) -> list[bytes]:
        """The elements of a string array, as raw bytes. Raises GgufError for other arrays."""
        if self.kind != STRING:
            raise GgufError("expected a string array in the GGUF header")
        data, at, out = self.raw(), 0, []
        unpack = U64.unpack_from
        for _ in range(self.count):
            end = at + 8 + unpack(data, at)[0]
            out.append(data[at + 8 : end])
            at = end
        return out

    def numbers(self) -> list[int | float | bool]:
        """The elements of a number array. Raises GgufError for other arrays."""
        if self.kind not in _SCALARS:
            raise GgufError("expected a number array in the GGUF header")
        return list(struct.unpack(f"<{self.count}{_SCALARS[self.kind]}", self.raw()))
