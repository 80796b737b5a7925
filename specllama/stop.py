"""Termination signals as exceptions in the main thread.

`Stopped` starts an orderly shutdown, which later signals do not interrupt: it is bounded (a server
gets SIGTERM, then SIGKILL), and another Ctrl-C shortens its waits. Where something can be skipped,
the first signal is a KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPT: Collection[str] = ("SIGINT",)
ALL: Collection[str] = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")

_REPEATED_S = 0.3  # some wrappers (npm, make) deliver one Ctrl-C twice, within milliseconds


class Stopped(BaseException):
    """Terminated by the signal `signum`. Not an error."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def is_interrupt(self) -> bool:
        """Whether it was Ctrl-C."""
        return self.signum == signal.SIGINT

    @property
    def exit_code(self) -> int:
        """The shell convention."""
        return 128 + self.signum


class _State:
    """`skips`: for each open context, the signals that skip its work. `ending_since`: when the
    shutdown began. `hurry`: what another Ctrl-C does during it. `waiting`: signals that arrived while
    they were deferred."""

    def __init__(self) -> None:
        self.skips: list[set[int]] = []
        self.ending = False
        self.ending_since = 0.0
        self.hurry: Callable[[], None] | None = None
        self.deferrals = 0
        self.waiting: list[int] = []


_state = _State()


@contextmanager
def stop_on_signals(skip: Collection[str] = ()) -> Iterator[None]:
    """Inside, the first termination signal raises Stopped, or KeyboardInterrupt if it is in `skip`. A
    signal that our parent ignores stays ignored (nohup). For the main thread."""
    outermost = not _state.skips
    before = _take_over() if outermost else {}
    _state.skips.append(_numbers(skip))
    try:
        yield
    finally:
        if outermost:
            _state.ending = True
            for s, handler in before.items():
                if signal.getsignal(s) is _on_signal:
                    signal.signal(s, handler if handler is not None else signal.SIG_DFL)
            _state.ending = False
        _state.skips.pop()


@contextmanager
def hurried_by_ctrl_c(action: Callable[[], None]) -> Iterator[None]:
    """Inside, if a shutdown is under way, another Ctrl-C calls `action`, which ends a wait."""
    _state.hurry = action
    try:
        yield
    finally:
        _state.hurry = None


def ignore_from_now() -> None:
    """For the last moments: everything is done, and no signal may change the outcome."""
    for s in _numbers(ALL):
        signal.signal(s, signal.SIG_IGN)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Inside, signals are deferred: for the few steps that must not be interrupted."""
    _state.deferrals += 1
    try:
        yield
    finally:
        _state.deferrals -= 1
        if not _state.deferrals and _state.waiting:
            first, *_state.waiting = _state.waiting
            _react(first)


def _numbers(names: Collection[str]) -> set[int]:
    return {getattr(signal, n) for n in names if hasattr(signal, n)}


def _take_over() -> dict[int, Any]:
    """Installs our handlers; returns the previous ones."""
    before = {s: signal.getsignal(s) for s in _numbers(ALL)}
    before = {s: handler for s, handler in before.items() if handler is not signal.SIG_IGN}
    for s in before:
        signal.signal(s, _on_signal)
    return before


def _on_signal(signum: int, _frame: FrameType | None) -> None:
    if _state.deferrals:
        _state.waiting.append(signum)
    else:
        _react(signum)


def _react(signum: int) -> None:
    if _state.ending or not _state.skips:
        again = signum == signal.SIGINT and time.monotonic() - _state.ending_since > _REPEATED_S
        if _state.hurry is not None and _state.skips and again:
            _state.hurry()
        return
    skip = _state.skips[-1]
    if signum in skip:
        skip.clear()  # the next one terminates
        raise KeyboardInterrupt
    _state.ending, _state.ending_since = True, time.monotonic()
    raise Stopped(signum)
