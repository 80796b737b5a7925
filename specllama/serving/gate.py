"""The gate between clients and a server that may be replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Gate:
    """Where requests go, and how many are in flight. Used by the relay's thread and by the one that
    replaces servers. `target` None: they wait. Quiet time is time without a request that computes;
    a GET, as monitors send, does not end it. `waited`: requests since it was closed."""

    clock: Callable[[], float] = time.monotonic
    target: tuple[str, int] | None = None
    in_flight: int = 0
    waited: int = 0
    _computing: int = 0
    _quiet_since: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, computes: bool) -> tuple[str, int] | None:
        """The server for one more request; None if there is none now."""
        with self._lock:
            if self.target is not None:
                self.in_flight += 1
                self._computing += computes
            return self.target

    def leave(self, computes: bool) -> None:
        """That request is finished or gone."""
        with self._lock:
            self.in_flight -= 1
            self._computing -= computes
            if computes:
                self._quiet_since = self.clock()

    def open(self, target: tuple[str, int]) -> None:
        with self._lock:
            self.target = target
            self._quiet_since = self._quiet_since or self.clock()

    def shut(self) -> None:
        """Makes requests wait from now on."""
        with self._lock:
            self.target, self.waited = None, 0

    def count_waiting(self) -> None:
        """Counts a request that waits."""
        with self._lock:
            self.waited += 1

    def shut_if_quiet(self, seconds: float) -> bool:
        """Closes if nothing was computed for that long and nothing is in flight."""
        with self._lock:
            if self.in_flight or self._quiet() < seconds:
                return False
            self.target, self.waited = None, 0
            return True

    @property
    def quiet_s(self) -> float:
        """Seconds without computation."""
        with self._lock:
            return self._quiet()

    def _quiet(self) -> float:
        if self._computing or self._quiet_since is None:
            return 0.0
        return self.clock() - self._quiet_since
