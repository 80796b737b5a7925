"""Following one server while it serves: looks every few seconds, keeps what real requests showed,
and says when the picture changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specllama.engine.settings import Speculation
from specllama.tuning.step_times import StepTimes
from specllama.watching.counters import Counts, Snapshot
from specllama.watching.errors import WatchingError
from specllama.watching.history import History
from specllama.watching.picture import Picture, Samples, picture
from specllama.watching.reader import Reader

LOOK_S = 3.0
RECENT_S = 300.0


@dataclass
class Follower:
    """One server that serves `speculation`. `times`: what its steps take, None where nothing
    was measured; `tick` is called often, and looks when it is time."""

    reader: Reader
    speculation: Speculation | None
    times: StepTimes | None
    clock: Callable[[], float] = time.monotonic
    history: History = field(default_factory=History)
    samples: Samples = field(init=False)
    _next: float = 0.0

    def __post_init__(self) -> None:
        self.samples = Samples(self.times)

    def tick(self) -> Counts | None:
        """What is new since the last look; None between looks, and where the server did not
        answer. Never raises."""
        if self.clock() < self._next:
            return None
        self._next = self.clock() + LOOK_S
        return self.look()

    def look(self) -> Counts | None:
        """Looks now."""
        try:
            new = self.history.add(self.reader.read())
        except WatchingError:
            return None
        self.samples.add(new)
        return new

    @property
    def snapshot(self) -> Snapshot | None:
        """The last look; `snapshot.idle`: nothing was being answered then."""
        return self.history.last

    @property
    def picture(self) -> Picture:
        """Of all requests since the server was followed."""
        return picture(self.history.total, self.samples.ratios, self.times, self.longest)

    @property
    def recent(self) -> Picture:
        """Of the last minutes: what is acted on."""
        return self.over(RECENT_S)

    def over(self, seconds: float) -> Picture:
        """Of the last `seconds`, 900 at most."""
        samples = Samples(self.times)
        for new in self.history.recent(seconds):
            samples.add(new)
        return picture(self.history.over(seconds), samples.ratios, self.times, self.longest)

    @property
    def longest(self) -> int | None:
        """The K that runs, where drafts are as long as K says: a draft alone, without p_min."""
        s = self.speculation
        alone = s is not None and s.uses_draft and not s.uses_ngram and not s.p_min
        return s.n_max if s is not None and alone else None

    def close(self) -> None:
        self.reader.close()
