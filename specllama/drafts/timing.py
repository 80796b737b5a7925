"""Timed passes over b = 1, 2, … tokens, in-process, all after one cached prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

from specllama.drafts.inprocess import Continuation

_BUDGET = 10.0  # seconds of timed rounds, once there are _MIN_ROUNDS
_MIN_ROUNDS = 2
_MAX_ROUNDS = 15
_LONGEST_PREFIX = 256  # tokens


class TimedModel(Protocol):
    """The interface of `inprocess.Model` that is needed here."""

    def evaluate(self, ids: Sequence[int], at: int, outputs: int) -> float: ...
    def roll_back(self, at: int) -> bool: ...
    def clear(self) -> None: ...


def model_batch_times(
    model: TimedModel,
    responses: Sequence[Continuation],
    longest: int,
    all_rows: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float, ...] | None:
    """Median ms of passes over 1 … `longest` tokens, with logits for all rows or for the last
    one. None if the model cannot roll back single tokens: then a rejected draft costs more than
    a pass, by an unknown amount.

    Each round covers all sizes, every other round in reverse, so that a change in machine speed
    affects all sizes alike. Each round uses other tokens of the text, since the experts that are
    read depend on them."""
    prefix, following = _text(responses, longest)
    at = len(prefix)
    times: list[list[float]] = [[] for _ in range(longest)]

    def once(b: int, turn: int) -> float | None:
        ids = [following[(turn + i) % len(following)] for i in range(b)]
        ms = model.evaluate(ids, at, b if all_rows else 1)
        return ms if model.roll_back(at) else None

    model.clear()
    try:
        model.evaluate(prefix, 0, 1)
        for b in (longest, 1):  # not counted: the first pass touches pages and buffers
            if once(b, 0) is None:
                return None
        sizes = (*range(1, longest + 1), 1)  # the plain step twice: everything is divided by it
        start = clock()
        for turn in range(_MAX_ROUNDS):
            for b in sizes if turn % 2 == 0 else reversed(sizes):
                ms = once(b, turn)
                if ms is None:
                    return None
                times[b - 1].append(ms)
            done = turn + 1
            # assuming that the next round takes as long as the mean
            if done >= _MIN_ROUNDS and (clock() - start) * (done + 1) / done > _BUDGET:
                break
    finally:
        model.clear()
    return tuple(median(t) for t in times)


def _text(responses: Sequence[Continuation], longest: int) -> tuple[list[int], list[int]]:
    """A prefix up to the middle of the longest response, and the tokens after it."""
    response = max(responses, key=lambda a: len(a.tokens))
    ids = [*response.prompt, *response.tokens]
    at = min(len(response.prompt) + len(response.tokens) // 2, len(ids) - 1, _LONGEST_PREFIX)
    at = max(1, at)
    following = ids[at : at + longest + _MAX_ROUNDS]
    return ids[:at], following or ids  # nothing follows a single token
