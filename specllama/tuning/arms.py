"""What was measured: one arm per launch, and the answer drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from specllama.engine.client import Client
from specllama.engine.settings import Speculation
from specllama.tuning.measure import Measurement
from specllama.tuning.speedup import Interval
from specllama.tuning.statistics import TimeSplit

NO_TIME = "no time was left"


@dataclass(frozen=True)
class Served:
    """A running server. `log`: what it printed so far."""

    client: Client
    log: Callable[[], str]


class Lab(Protocol):
    """Starts servers. `room_for_two`: whether two may be up at once (only one is ever asked)."""

    @property
    def room_for_two(self) -> bool: ...

    def serve(self, speculation: Speculation | None) -> AbstractContextManager[Served]:
        """A running server, stopped when the block ends. Raises EngineError when it does not
        start. None = no speculation flags at all."""


class Progress(Protocol):
    """Told what is being learnt."""

    def step(self, text: str, share: float) -> None:
        """`share` of the budget is used, 0 to 1."""


@dataclass(frozen=True)
class Arm:
    """One measured server. `against`: a baseline measured in turn with it, prompt by prompt;
    None = the one measured before and after. `speedup` over it, with its interval;
    `predicted`: what was expected before this launch; `same_text`: share of greedy answers equal to the
    baseline's (different batch shapes round differently: it need not be 1); `split`: where the
    server's log says time went; `slots`: α of each slot, where there are several; `trial`:
    measured alone while the others were measured in turn with the plain server, so that it can
    win only where nothing was confirmed."""

    speculation: Speculation | None
    measurement: Measurement
    against: Measurement | None = None
    speedup: Interval | None = None
    predicted: Interval | None = None
    same_text: float | None = None
    split: TimeSplit | None = None
    slots: tuple[float | None, ...] = ()
    trial: bool = False

    @property
    def label(self) -> str:
        return label(self.speculation)


def label(s: Speculation | None) -> str:
    """An arm's name in tables: its methods, file, K and p_min."""
    if s is None:
        return "no speculation"
    out = "+".join(s.methods)
    if s.draft is not None:
        out += f" {s.draft.name}"
    if s.uses_draft:
        out += f" K={s.n_max}"
        if s.p_min:
            out += f" p_min={s.p_min:g}"
    if s.uses_ngram and s.ngram is not None:
        out += f" n={s.ngram.n} m={s.ngram.m}"
    return out


@dataclass(frozen=True)
class Dropped:
    """A way that was not pursued, and why, by name."""

    what: str
    why: str


@dataclass(frozen=True)
class Tuned:
    """The answer for one workload. `best` None = speculation off; `reason` says why either
    way. `curves`: label of a probed way → K → predicted speed-up. `upper`: the gain of always
    having the best measured method for each prompt. `complete` False: stopped early."""

    workload: str
    baseline: Arm
    arms: tuple[Arm, ...]
    best: Arm | None
    reason: str
    dropped: tuple[Dropped, ...]
    curves: Mapping[str, Mapping[int, Interval]]
    upper: float
    launches: int
    seconds: float
    complete: bool = True

    @property
    def complete_enough(self) -> bool:
        """Whether the answer can be kept: nothing was left out for want of time."""
        return self.complete and not any(d.why.startswith(NO_TIME) for d in self.dropped)
