"""ngram-map-k and ngram-map-k4v as llama.cpp has them (common/ngram-map.cpp, build b11434). Pure.

Both look the last n tokens up in a hash table of positions and draft the m tokens behind
the position found, at most as many as were accepted of the key's last draft: a key of
which nothing was accepted never drafts again. k4v also counts what followed (4 different
m-grams at most) and drafts only when one of them is at least twice as frequent as all
others together; the draft itself is what stands at the match, be it another one.

Keys and positions outlive a request: they then point into the next request's history, where
other tokens stand. That is replayed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specllama.tuning.ngram_text import Grams, Text

_FACTOR = 2654435761  # LCG_FACTOR
_TABLE = 262144  # COMMON_NGRAM_HASH_MAP_SIZE
_VALUES = 4  # COMMON_NGRAM_MAX_VALUES
_COUNT = 16380  # COMMON_NGRAM_MAX_VALUE_COUNT


@dataclass
class _Value:
    """An m-gram that followed a key: where, how often, tokens accepted of its last draft."""

    at: int
    count: int
    accepted: int


@dataclass
class _Key:
    """`at`: position of the key n-gram; `counted`: up to where its followers are counted.
    Without k4v, `values` is one entry that only holds `accepted`."""

    at: int
    hits: int = 0
    counted: int = 0
    values: list[_Value] = field(default_factory=list)


class MapRule:
    """`four`: the k4v type. `min_hits` of a key before it drafts: read by k4v only."""

    def __init__(self, n: int, m: int, four: bool, min_hits: int = 1) -> None:
        self._n, self._m, self._four, self._min_hits = n, m, four, min_hits
        self._keys: list[_Key] = []
        self._by_gram: dict[int, _Key] = {}
        self._table: dict[int, int] = {}  # key_map
        self._indexed = 0  # key_map_last_idx
        self._begun = 0  # size_last_begin
        self._checked = 0  # idx_last_check
        self._last: _Value | None = None  # whose draft the next accept is about
        self._text = Text(())
        self._grams = Grams((), ())
        self._hashes: list[int] = []

    def begin(self, text: Text, length: int) -> None:
        n, m = self._n, self._m
        if length < self._checked:
            valid = self._begun
            if valid > length:
                valid = length - n - m if length > n + m else 0
            self._table = {h: at for h, at in self._table.items() if at < valid}
            self._indexed = max(0, valid - 1)
            self._keys = [key for key in self._keys if self._survives(key, valid)]
        self._checked = self._begun = length
        self._text, self._grams = text, text.grams(n)
        self._hashes = text.hashes(n, _FACTOR, _TABLE)
        self._by_gram = {}
        for key in self._keys:  # of two with equal tokens, the older one is found
            if key.at < len(self._grams.first):
                self._by_gram.setdefault(self._grams.first[key.at], key)

    def _survives(self, key: _Key, valid: int) -> bool:
        if key.at >= valid:
            return False
        if self._four:
            key.values = [v for v in key.values if v.at < valid]
        return bool(key.values)

    def draft(self, length: int) -> Sequence[int]:
        self._last = None
        n, m = self._n, self._m
        if length < 2 * n + m:
            return ()
        self._checked = length
        start = length - n + 1
        at = self._find(start, length)
        self._index(length)
        if at == 0:
            return ()
        gram = self._grams.first[start]
        key = self._by_gram.get(gram)
        if key is None:
            key = self._by_gram[gram] = _Key(at, values=[] if self._four else [_Value(0, 0, m)])
            self._keys.append(key)
        key.hits = min(key.hits + 1, _COUNT)
        value = self._frequent(key, at) if self._four else key.values[0]
        if value is None:
            return ()
        self._last = value
        return self._text.tokens[at + n : at + n + min(m, value.accepted)]

    def _ranges(self, length: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Ranges (start, exclusive end, descending) that are searched and then indexed, in order:
        the prompt, then the response. What lies just before the prompt's end never is."""
        reach = self._n + self._m + 1
        prompt = self._begun - reach, self._indexed
        return prompt, (length - reach, max(self._begun, self._indexed))

    def _find(self, start: int, length: int) -> int:
        """Where the n-gram at `start` occurred before; 0 = nowhere."""
        first, before = self._grams.first, self._grams.before
        at = self._table.get(self._hashes[start], 0)
        if 0 < at < length - self._n - self._m - 1 and first[at] == first[start]:
            return at
        for top, bottom in self._ranges(length):
            if top <= bottom:
                continue
            at = before[start]
            while at > top:
                at = before[at]
            if at > bottom:
                return at
        return 0

    def _index(self, length: int) -> None:
        for top, bottom in self._ranges(length):
            for at in range(top, bottom, -1):
                self._table.setdefault(self._hashes[at], at)
        self._indexed = max(self._indexed, length - self._n - self._m - 1)

    def _frequent(self, key: _Key, at: int) -> _Value | None:
        """The follower to draft, after counting those up to `at`; None = too few or too mixed."""
        if key.hits < self._min_hits:
            return None
        # The position counted last is counted again, as in llama.cpp.
        for position in self._standing(at, key.counted):
            if value := self._value(key, position + self._n):
                value.count = min(value.count + 1, _COUNT)
        key.counted = at
        if not key.values:
            return None
        best = max(key.values, key=lambda v: v.count)
        others = sum(v.count for v in key.values) - best.count
        return None if others > 0 and best.count < 2 * others else best

    def _standing(self, at: int, low: int) -> list[int]:
        """Where the n-gram at `at` stands, from `low` to `at`, in order."""
        if at < low:
            return []
        found = []
        position = at
        while position >= max(low, 1):
            found.append(position)
            position = self._grams.before[position]
        if low == 0 and self._grams.first[at] == 0:
            found.append(0)
        return found[::-1]

    def _value(self, key: _Key, at: int) -> _Value | None:
        tokens, m = self._text.tokens, self._m
        follower = tokens[at : at + m]
        for value in key.values:
            if tokens[value.at : value.at + m] == follower:
                return value
        if len(key.values) == _VALUES:
            return None
        key.values.append(_Value(at, 0, m))
        return key.values[-1]

    def accept(self, accepted: int) -> None:
        if self._last is not None:
            self._last.accepted = accepted
