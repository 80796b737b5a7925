"""A line now and then for as long as something takes, where no spinner can turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(say: Callable[[float], None], every_s: float) -> Iterator[None]:
    """Calls `say` with the seconds that have passed, every so often while the block runs."""
    done = threading.Event()

    def repeat() -> None:
        passed = every_s
        while not done.wait(every_s):
            say(passed)
            passed += every_s

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
