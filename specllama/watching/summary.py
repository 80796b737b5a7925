"""What real requests say of speculation: α, τ, how much faster than plain decoding it is for
them, how sure that is, and which draft length would be best for them. Pure.

The speed-up is not taken from tok/s: contexts are deeper and machines busier than when plain
decoding was measured. Steps are compared instead, as they were measured beside each other:
N tokens of plain decoding take N·t_1; the same tokens took a step t(d) for each draft of d, and
t(0) for each token that came without one. Where t(d) is not known, tok/s is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specllama.tuning.confidence import Ratios
from specllama.tuning.step_times import StepTimes
from specllama.watching.counters import NOTHING, Counts

ENOUGH_DRAFTED = 300  # tokens: fewer say little of what comes next
SURELY = 0.9  # chance of being slower than plain that is said and acted on
BETTER = 1.05  # times faster that another draft length has to be, to be said and acted on
_WINDOW_TOKENS = 64  # of a sample: about an answer
_MOST_WINDOWS = 60
_LEAST_SAMPLES = 5


@dataclass(frozen=True)
class TrafficSummary:
    """Figures of real requests. `speedup` against plain decoding, None where t_1 is not known;
    `slower`: the chance that it is below 1, None where too little was seen; `by_length`: K →
    the speed-up expected for these requests, for K up to the one that runs ({} where the way
    has no K, or its costs are not known)."""

    counts: Counts = NOTHING
    speedup: float | None = None
    slower: float | None = None
    by_length: Mapping[int, float] = field(default_factory=dict)
    samples: int = 0

    @property
    def enough(self) -> bool:
        """Whether so much was drafted that it says something of what comes next."""
        return (self.counts.drafted or 0) >= ENOUGH_DRAFTED

    @property
    def surely_slower(self) -> bool:
        return self.enough and self.slower is not None and self.slower > SURELY

    @property
    def best(self) -> int | None:
        """The K with the highest expected speed-up."""
        return max(self.by_length, key=lambda k: self.by_length[k], default=None)

    @property
    def better(self) -> int | None:
        """A shorter K that is expected to be so much faster that it is worth a change, and
        faster than plain decoding."""
        best, running = self.best, max(self.by_length, default=None)
        if best is None or running is None or not self.enough:
            return None
        least = max(1.0, BETTER * self.by_length[running])
        return best if self.by_length[best] >= least else None


@dataclass
class Samples:
    """Speed-ups of parts of the traffic, each about an answer long: what the chance is taken
    from. The oldest go first."""

    times: StepTimes | None
    _open: Counts = NOTHING
    _logs: list[tuple[float, float]] = field(default_factory=list)

    def add(self, new: Counts) -> None:
        self._open += new
        if (self._open.tokens or 0) < _WINDOW_TOKENS:
            return
        found = speedup(self._open, self.times)
        if found is not None and found > 0:
            self._logs.append((math.log(found), self._open.tokens or 0.0))
            del self._logs[:-_MOST_WINDOWS]
        self._open = NOTHING

    @property
    def ratios(self) -> Ratios:
        return Ratios(tuple(x for x, _ in self._logs), tuple(w for _, w in self._logs))


def summarize(
    counts: Counts, seen: Ratios, times: StepTimes | None, longest: int | None = None
) -> TrafficSummary:
    """`seen`: speed-ups of parts of it; `longest`: the K that runs, None where the way has no
    K of its own (n-gram types) or its drafts end before it (p_min)."""
    sure = len(seen) >= _LEAST_SAMPLES
    return TrafficSummary(
        counts,
        speedup(counts, times),
        seen.chance_below(1.0) if sure else None,
        by_length(counts, times, longest) if longest else {},
        len(seen),
    )


def figures(p: TrafficSummary) -> str:
    """The figures of real requests, in a few words."""
    drafted = p.counts.drafted or 0
    alpha = f"α={p.counts.alpha:.2f} over {drafted:,.0f} drafted tokens" if p.counts.alpha else ""
    text = alpha or f"none of {drafted:,.0f} drafted tokens accepted"
    return f"{text}, about {p.speedup:.2f}x" if p.speedup is not None else text


def speedup(counts: Counts, times: StepTimes | None) -> float | None:
    """How many times faster than plain decoding these tokens came; None where it is not known,
    and where nothing was drafted."""
    if times is None or not counts.tokens or not counts.drafted or counts.doubt:
        return None
    if (found := _by_steps(counts, times)) is not None:
        return found
    speed = counts.tokens_per_second
    return speed * times.plain / 1000 if speed else None


def _by_steps(counts: Counts, times: StepTimes) -> float | None:
    if counts.drafted is None or counts.accepted is None or counts.steps is None:
        return None
    tokens, alone = _tokens(counts), _alone(counts)
    per_step = times.of(counts.drafted / counts.steps) if counts.steps else 0.0
    if per_step is None or tokens <= 0:
        return None
    own = counts.steps * per_step + alone * times.without_draft
    return tokens * times.plain / own if own > 0 else None


def by_length(counts: Counts, times: StepTimes | None, longest: int) -> dict[int, float]:
    """K → expected speed-up on the same tokens, for each K up to `longest`, the one that runs:
    τ(K) = 1 + Σ a_i of the first K. What comes without a draft stays as it is. {} where what
    runs was never timed: there is nothing to compare another K with."""
    if times is None or not counts.acceptance or times.of(longest) is None:
        return {}
    tokens, alone = _tokens(counts), _alone(counts)
    drafted = tokens - alone  # what came by steps with a draft
    out, tau = {}, 1.0
    for k in range(1, longest + 1):
        # a depth that nothing was ever accepted at has no a_k
        tau += counts.acceptance[k - 1] if k <= len(counts.acceptance) else 0.0
        if (ms := times.of(k)) is not None and drafted > 0:
            out[k] = tokens * times.plain / (drafted / tau * ms + alone * times.without_draft)
    return out


def _tokens(counts: Counts) -> float:
    """Those that took a step: the first of an answer comes from its prompt."""
    return max(0.0, (counts.tokens or 0.0) - (counts.requests or 0.0))


def _alone(counts: Counts) -> float:
    """Tokens of steps that had no draft."""
    return max(0.0, _tokens(counts) - (counts.accepted or 0.0) - (counts.steps or 0.0))
