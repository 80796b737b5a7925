"""A periodic progress line, for output without a spinner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(say: Callable[[float], None], every_s: float) -> Iterator[None]:
    """Calls `say` with the elapsed seconds every `every_s` while the block runs."""
    done = threading.Event()

    def repeat() -> None:
        elapsed = every_s
        while not done.wait(every_s):
            say(elapsed)
            elapsed += every_s

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
