"""One server's counts while it is watched: the total, and the last minutes.

Differences are summed, so that a restart or an outage loses nothing. As differences of printed
values, their rounding errors do not add up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from specllama.watching.counters import NOTHING, Counts, Snapshot, between

KEPT_S = 900.0  # the last 15 minutes


@dataclass
class History:
    """`total`: since the first snapshot. `restarts`: observed restarts of the server."""

    total: Counts = NOTHING
    last: Snapshot | None = None
    began: float | None = None
    restarts: int = 0
    _recent: deque[tuple[float, Counts]] = field(default_factory=deque)

    def add(self, now: Snapshot, own: Counts = NOTHING) -> Counts:
        """Counts since the previous snapshot, without our `own` requests; NOTHING for the first
        one."""
        before, self.last = self.last, now
        if before is None:
            self.began = now.when
            return NOTHING
        new = between(before, now).without(own)
        self.restarts += now.started != before.started
        self.total += new
        self._recent.append((now.when, new))
        while self._recent and self._recent[0][0] < now.when - KEPT_S:
            self._recent.popleft()
        return new

    def over(self, seconds: float) -> Counts:
        """Counts of the last `seconds`."""
        return sum(self.recent(seconds), NOTHING)

    def recent(self, seconds: float) -> Iterator[Counts]:
        """Counts of each snapshot in the last `seconds`, oldest first."""
        since = self.last.when - seconds if self.last is not None else 0.0
        return (c for when, c in self._recent if when > since)

    def parts(self, seconds: float, width: float) -> Iterator[Counts]:
        """The last `seconds` in parts of `width` seconds, oldest first."""
        end = self.last.when if self.last is not None else 0.0
        count = max(1, round(seconds / width))
        out = [NOTHING] * count
        for when, counts in self._recent:
            at = count - 1 - int((end - when) / width)
            if 0 <= at < count:
                out[at] += counts
        return iter(out)
