"""Ctrl-C and SIGTERM as one exception in the main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """The user asked to end. Not an error: the command exits 0."""


def _signals(but: tuple[str, ...]) -> list[int]:
    """What ends us here. One that our parent set to be ignored stays ignored (nohup)."""
    names = [n for n in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if n not in but]
    here = [getattr(signal, n) for n in names if hasattr(signal, n)]
    return [s for s in here if signal.getsignal(s) is not signal.SIG_IGN]


@contextmanager
def stop_on_signals(but: tuple[str, ...] = ()) -> Iterator[None]:
    """Inside, the first signal (other than those named in `but`) raises Stopped; later ones are ignored, so that the
    orderly end it starts is not broken off (it is bounded: SIGTERM, then SIGKILL)."""

    def first(signum: int, _frame: FrameType | None) -> None:
        for s in before:
            signal.signal(s, signal.SIG_IGN)
        raise Stopped

    before: dict[int, Any] = {s: signal.getsignal(s) for s in _signals(but)}
    for s in before:
        signal.signal(s, first)
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler if handler is not None else signal.SIG_DFL)
