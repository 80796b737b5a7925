"""Reads forward through a GGUF header, a window at a time, never past its end."""

from __future__ import annotations

from collections import OrderedDict

from specllama.gguf.errors import GgufError
from specllama.gguf.source import Source
from specllama.gguf.values import ARRAY, STRING, STRUCTS, U32, U64, LazyArray, Scalar

_WINDOW = 2**20  # bytes read at a time
# Far above any real file (a vocabulary of 262,144 tokens takes 16 MiB), and low enough that
# a hostile one of any size is read in seconds and within 200 MB: bytes of the whole header,
# bytes of all its texts (keys, names, chat templates), strings in all its arrays.
_MAX_HEADER = 96 * 2**20
_MAX_TEXT = 16 * 2**20
_MAX_STRINGS = 2_000_000


class Cursor:
    """Reads forward through a source, one window at a time; every step is checked
    against the source's end."""

    def __init__(self, source: Source) -> None:
        self.source, self.size, self.at = source, source.size, 0
        self.window, self.window_at = b"", 0
        self.text_left, self.strings_left = _MAX_TEXT, _MAX_STRINGS

    def check(self, n: int, what: str) -> None:
        """Raises GgufError unless `n` more bytes exist within the header's limit."""
        if n > self.size - self.at:
            raise GgufError(
                f"{self.source.name}: the file ends within its header ({what[:80]} needs "
                f"{n} bytes, {self.size - self.at} are left)",
                "The download is incomplete or the file is damaged: download it again.",
            )
        if self.at + n > _MAX_HEADER:
            limit = f"{_MAX_HEADER >> 20} MiB"
            raise self.damaged(f"{what[:80]} would make its header larger than {limit}")

    def take(self, n: int, what: str) -> bytes:
        """The next `n` bytes."""
        self.check(n, what)
        start = self.at - self.window_at
        if start + n > len(self.window):
            self.refill(max(n, _WINDOW))
            start = 0
            if len(self.window) < n:
                raise GgufError(f"{self.source.name}: the file was truncated while being read")
        self.at += n
        return self.window[start : start + n]

    def refill(self, n: int = 0) -> None:
        """Makes the window begin at the cursor."""
        self.window, self.window_at = self.source.read(self.at, n or _WINDOW), self.at

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def string(self, what: str) -> str:
        size = self.u64(what)
        if size > self.text_left:
            raise self.damaged(f"{what[:80]} claims to be {size} bytes long")
        self.text_left -= size
        return self.take(size, what).decode("utf-8", "replace")

    def damaged(self, why: str) -> GgufError:
        """The error for a header that no program writes."""
        return GgufError(f"{self.source.name}: {why}; the file is damaged", "Download it again.")

    def value(self, kind: int, what: str) -> Scalar | LazyArray:
        if kind in STRUCTS:
            s = STRUCTS[kind]
            (out,) = s.unpack(self.take(s.size, what))
            return out  # type: ignore[no-any-return]
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        raise GgufError(
            f"{self.source.name}: {what[:80]} has the unknown value type {kind}",
            "The file is damaged or newer than this version of specllama.",
        )

    def array(self, what: str) -> LazyArray:
        kind, count = self.u32(what), self.u64(what)
        start = self.at
        if kind in STRUCTS:
            size = count * STRUCTS[kind].size
            self.check(size, what)
            self.at += size
        elif kind == STRING:
            self.check(count * 8, what)
            if count > self.strings_left:
                raise self.damaged(f"{what[:80]} claims {count} strings")
            self.strings_left -= count
            _skip_strings(self, count, what)
        elif kind == ARRAY:  # llama.cpp rejects these too (gguf.cpp)
            raise GgufError(f"{self.source.name}: {what[:80]} is an array of arrays")
        else:
            self.value(kind, what)  # raises: unknown type
        return LazyArray(kind, count, start, self.at, self.source)


# Models of one family share their token and merge tables, millions of strings in
# total. The last few tables are cached, so that finding the end of a known one is a
# comparison of bytes instead of a walk through its strings.
_known_tables: OrderedDict[tuple[int, bytes], bytes] = OrderedDict()
_KNOWN_TOTAL = 96 * 2**20  # bytes
_KNOWN_FROM = 10_000  # strings; the walk is as fast for fewer
_KNOWN_UP_TO = 16 * 2**20  # bytes


def _skip_strings(c: Cursor, count: int, what: str) -> None:
    """Moves the cursor past `count` strings."""
    start = c.at
    if count < _KNOWN_FROM:
        _walk(c, count, what)
        return
    c.refill()
    key = (count, c.window[:512])
    table = _known_tables.get(key)
    if table is not None:
        _known_tables.move_to_end(key)
    if table is not None and c.source.read(start, len(table)) == table:
        c.at = start + len(table)
        c.refill()
        return
    _walk(c, count, what)
    if c.at - start <= _KNOWN_UP_TO:
        _known_tables[key] = c.source.read(start, c.at - start)
        while sum(map(len, _known_tables.values())) > _KNOWN_TOTAL:
            _known_tables.popitem(last=False)


def _walk(c: Cursor, count: int, what: str) -> None:
    """Adds up the lengths of `count` strings, window by window."""
    unpack = U64.unpack_from
    left = count
    while left:
        window, at = c.window, c.at - c.window_at
        last = len(window) - 8
        while left and at <= last:
            at += 8 + unpack(window, at)[0]
            left -= 1
        c.check(c.window_at + at - c.at, what)
        c.at = c.window_at + at
        if left:
            c.check(8, what)
            c.refill()
            if len(c.window) < 8:
                raise GgufError(f"{c.source.name}: the file was truncated while being read")
