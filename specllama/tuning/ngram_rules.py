"""ngram-simple, ngram-mod and ngram-cache as llama.cpp has them (build b11434). Pure.

`ngram_map.py` has ngram-map-k and -k4v.
"""

from __future__ import annotations

from collections.abc import Sequence

from specllama.tuning.ngram_text import Text

# common/ngram-mod.cpp and common/speculative.cpp (common_speculative_impl_ngram_mod)
_MOD_ENTRIES = 4 * 1024 * 1024
_MOD_FACTOR = 6364136223846793005
_MOD_FULL = 0.25  # share of the table in use at which it is cleared
_MOD_CHUNK = 32  # tokens of new history before it is added
_MOD_LOW, _MOD_LOW_ROUNDS = 0.25, 5

# common/ngram-cache.cpp: least samples and least percentage, by n-gram length from 1
_CACHE_SAMPLES = (2, 2, 1, 1)
_CACHE_PERCENT = (66, 50, 50, 50)
_CACHE_DRAFT = 8  # create_state_ngram_cache: no flag changes it


class SimpleRule:
    """common/ngram-map.cpp: common_ngram_simple_draft. Copies what followed the last time
    that the last n tokens were seen: up to m tokens, at least n. It keeps no state."""

    def __init__(self, n: int, m: int) -> None:
        self._n, self._m = n, m
        self._text = Text(())
        self._before: Sequence[int] = ()

    def begin(self, text: Text, length: int) -> None:
        self._text = text
        self._before = text.grams(self._n).before

    def draft(self, length: int) -> Sequence[int]:
        n, m = self._n, self._m
        if length <= n + m + 1:
            return ()
        at = self._before[length - n + 1]
        if at == length - n:  # the search starts one further back
            at = self._before[at]
        if at == 0:
            return ()
        size = min(m, length - at - n)
        if size < n:
            return ()
        return self._text.tokens[at + n : at + n + size]

    def accept(self, accepted: int) -> None:
        pass


class ModRule:
    """One table over all requests: hash of `match` tokens → the token after them. The
    drafted tokens are looked up in turn; fewer than `least` are discarded.

    `match` below 16 gives a warning in the log and nothing else (ngram_mod's constructor).
    With several slots the table is shared; this is one slot's.
    """

    def __init__(self, match: int, least: int, most: int) -> None:
        self._match, self._least, self._most = match, least, most
        self._leaving = pow(_MOD_FACTOR, match - 1, _MOD_ENTRIES)
        self._table: dict[int, int] = {}
        self._text = Text(())
        self._hashes: list[int] = []
        self._added = 0  # i_last
        self._drafted = 0  # n_draft_last: before the server cuts the draft
        self._low = 0  # n_low: not reset by a new request

    def begin(self, text: Text, length: int) -> None:
        self._text = text
        self._hashes = text.hashes(self._match, _MOD_FACTOR, _MOD_ENTRIES)
        self._added = self._drafted = 0
        if length < self._match:
            return
        self._add(0, length - self._match)
        if len(self._table) / _MOD_ENTRIES > _MOD_FULL:
            self._table.clear()

    def _add(self, start: int, end: int) -> None:
        following = self._text.tokens[start + self._match : end + self._match]
        self._table.update(zip(self._hashes[start:end], following, strict=True))
        self._added = end

    def draft(self, length: int) -> Sequence[int]:
        self._drafted = 0
        if length < self._match:
            return ()
        if self._added + _MOD_CHUNK < length:
            self._add(self._added, length - self._match)
        start = length - self._match + 1
        value = self._hashes[start]
        if value not in self._table:
            return ()
        window = list(self._text.tokens[start : length + 1])
        for i in range(self._most):
            token = self._table.get(value)
            if token is None:
                if i < self._least:
                    return ()
                break
            window.append(token)
            value = (value - window[i] * self._leaving) * _MOD_FACTOR + token
            value &= _MOD_ENTRIES - 1
        self._drafted = len(window) - self._match
        return window[self._match :]

    def accept(self, accepted: int) -> None:
        if self._drafted == 0:
            return
        if accepted / self._drafted >= _MOD_LOW:
            self._low = 0
            return
        self._low += 1
        if self._low >= _MOD_LOW_ROUNDS:
            self._table.clear()
            self._low = self._added = 0


class CacheRule:
    """common/ngram-cache.cpp without files: counts of what followed each 1- to 4-gram, kept
    over requests. The dynamic and static caches then stay empty: the server never writes
    the one and only reads the other.

    As in llama.cpp, each piece of new history is counted by itself, so that a plain step
    (one token) adds nothing, and how much was counted is not reset by a new request: until
    a request is longer than all before it, only its part beyond them is counted.

    Where two followers were seen equally often, llama.cpp takes the one its hash map lists
    first: with libstdc++ the newer of the two, as here. Builds against another C++ library
    (macOS, Windows) may take the other one.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._counted = 0  # cache_size: tokens
        self._tokens: tuple[int, ...] = ()

    def begin(self, text: Text, length: int) -> None:
        self._tokens = text.tokens

    def draft(self, length: int) -> Sequence[int]:
        if self._counted < length + 1:
            self._count(self._tokens[self._counted : length + 1])
            self._counted = length + 1
        if length < 1:
            return ()
        window = list(self._tokens[max(0, length - 3) : length + 1])
        start = len(window)
        while len(window) - start < _CACHE_DRAFT:
            token = self._next(window)
            if token is None:
                break
            window.append(token)
        return window[start:]

    def _count(self, piece: tuple[int, ...]) -> None:
        for size in range(1, 5):
            for at in range(size, len(piece)):
                after = self._counts.setdefault(piece[at - size : at], {})
                after[piece[at]] = after.get(piece[at], 0) + 1

    def _next(self, window: list[int]) -> int | None:
        for size in range(min(4, len(window)), 0, -1):
            after = self._counts.get(tuple(window[-size:]))
            if after is None:
                continue
            total = sum(after.values())
            most = max(after.values())
            if total < _CACHE_SAMPLES[size - 1] or 100 * most < _CACHE_PERCENT[size - 1] * total:
                continue
            return [token for token, count in after.items() if count == most][-1]
        return None

    def accept(self, accepted: int) -> None:
        pass
