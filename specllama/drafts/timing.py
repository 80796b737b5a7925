"""How long passes over b = 1, 2, … tokens take, in process, all from one kept prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

from specllama.drafts.inprocess import Continuation

_BUDGET = 10.0  # seconds of timed rounds, once there are _LEAST_ROUNDS
_LEAST_ROUNDS = 2
_MOST_ROUNDS = 15
_LONGEST_PREFIX = 256  # tokens


class Passes(Protocol):
    """What is needed of a model; `inprocess.Model` has it."""

    def evaluate(self, ids: Sequence[int], at: int, outputs: int) -> float: ...
    def take_back(self, at: int) -> bool: ...
    def forget(self) -> None: ...


def batch_times(
    model: Passes,
    answers: Sequence[Continuation],
    longest: int,
    all_rows: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float, ...] | None:
    """Medians in ms of passes over 1 … `longest` tokens, with logits for all rows or for the
    last one. None where the model cannot take back single tokens: there a rejected draft
    costs more than a pass, which is not known here.

    Rounds go over all sizes in turn, every other one backwards, so that a machine that gets
    slower or faster touches all of them alike. Each round has other tokens of the text:
    with experts, which ones are read depends on the tokens."""
    prefix, following = _text(answers, longest)
    at = len(prefix)
    times: list[list[float]] = [[] for _ in range(longest)]

    def once(b: int, turn: int) -> float | None:
        ids = [following[(turn + i) % len(following)] for i in range(b)]
        ms = model.evaluate(ids, at, b if all_rows else 1)
        return ms if model.take_back(at) else None

    model.forget()
    try:
        model.evaluate(prefix, 0, 1)
        for b in (longest, 1):  # not counted: pages and buffers are touched for the first time
            if once(b, 0) is None:
                return None
        sizes = (*range(1, longest + 1), 1)  # twice the plain step: everything is divided by it
        start = clock()
        for turn in range(_MOST_ROUNDS):
            for b in sizes if turn % 2 == 0 else reversed(sizes):
                ms = once(b, turn)
                if ms is None:
                    return None
                times[b - 1].append(ms)
            done = turn + 1
            # the next round is as long as the mean of those before
            if done >= _LEAST_ROUNDS and (clock() - start) * (done + 1) / done > _BUDGET:
                break
    finally:
        model.forget()
    return tuple(median(t) for t in times)


def _text(answers: Sequence[Continuation], longest: int) -> tuple[list[int], list[int]]:
    """A prefix as long as the middle of the longest answer, and what follows it."""
    answer = max(answers, key=lambda a: len(a.tokens))
    ids = [*answer.prompt, *answer.tokens]
    at = min(len(answer.prompt) + len(answer.tokens) // 2, len(ids) - 1, _LONGEST_PREFIX)
    at = max(1, at)
    following = ids[at : at + longest + _MOST_ROUNDS]
    return ids[:at], following or ids  # a single token has nothing behind it
