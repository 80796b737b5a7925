"""A known text indexed for the n-gram rules, and their interface. Pure.

A rule only reads prefixes of a known text: `length` tokens of history, then the token sampled
last. So each index is built once for the whole text and shared by all sizes and steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Grams:
    """For every position: where the n-gram that starts there first occurs, and where it
    last occurred before. `before` is 0 for none: llama.cpp's searches leave out position 0."""

    first: Sequence[int]
    before: Sequence[int]


class Text:
    """Token ids of one request, prompt and response, with the indexes built so far."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self._grams: dict[int, Grams] = {}
        self._hashes: dict[tuple[int, int, int], list[int]] = {}

    def grams(self, n: int) -> Grams:
        found = self._grams.get(n)
        if found is None:
            found = self._grams[n] = _grams(self.tokens, n)
        return found

    def hashes(self, n: int, factor: int, size: int) -> list[int]:
        """Σ token_i · factor^(n-1-i) mod `size` (a power of two) of the n tokens from every
        position: the hash of both ngram-map and ngram-mod."""
        key = (n, factor, size)
        found = self._hashes.get(key)
        if found is None:
            found = self._hashes[key] = _hashes(self.tokens, n, factor, size)
        return found


class Rule(Protocol):
    """One server's n-gram speculator for one slot: its state over requests, in order.

    The history is `text.tokens[:length]`, the token sampled last `text.tokens[length]`.
    llama.cpp also tells a rule when another method's draft was verified (`is_other`): no
    n-gram rule does anything then (common/speculative.cpp, b11434), so it is left out.
    """

    def begin(self, text: Text, length: int) -> None:
        """The prompt, `length` tokens, has been read; the next drafts are over `text`."""

    def draft(self, length: int) -> Sequence[int]:
        """The tokens drafted, before the server cuts them to what is left to generate."""

    def accept(self, accepted: int) -> None:
        """So many of the last draft's tokens were accepted. Only after a draft."""


def _grams(tokens: tuple[int, ...], n: int) -> Grams:
    first: dict[tuple[int, ...], int] = {}
    last: dict[tuple[int, ...], int] = {}
    firsts, before = [], []
    for at in range(len(tokens) - n + 1):
        gram = tokens[at : at + n]
        firsts.append(first.setdefault(gram, at))
        before.append(last.get(gram, 0))
        last[gram] = at
    return Grams(firsts, before)


def _hashes(tokens: tuple[int, ...], n: int, factor: int, size: int) -> list[int]:
    mask = size - 1
    if len(tokens) < n:
        return []
    value = 0
    for token in tokens[:n]:
        value = (value * factor + token) & mask
    found = [value]
    leaving = pow(factor, n - 1, size)
    for old, new in zip(tokens, tokens[n:], strict=False):
        value = ((value - old * leaving) * factor + new) & mask
        found.append(value)
    return found
