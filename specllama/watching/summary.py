"""Speculation on real requests: α, τ, the speed-up over plain decoding, its certainty, and the
best draft length. Pure.

The speed-up does not come from tok/s: contexts are longer and machines busier than when plain
decoding was measured. Steps are compared instead, as measured together: N tokens of plain decoding
take N·t_1; with speculation they took a step t(d) for each draft of d tokens, and t(0) for each
token without one. Only if t(d) is unknown, tok/s is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specllama.tuning.confidence import Ratios
from specllama.tuning.step_times import StepTimes
from specllama.watching.counters import NOTHING, Counts

ENOUGH_DRAFTED = 300  # tokens; fewer predict little
SURELY = 0.9  # probability of being slower than plain decoding that is reported and acted on
BETTER = 1.05  # speed-up of another draft length that is reported and acted on
_WINDOW_TOKENS = 64  # per sample: about one completion
_MAX_WINDOWS = 60
MIN_SAMPLES = 5


@dataclass(frozen=True)
class TrafficSummary:
    """Figures of real requests. `speedup` over plain decoding, None if t_1 is unknown; `slower`:
    the probability that it is below 1, None with too few samples; `by_length`: K → expected
    speed-up for these requests, for K up to the current one ({} if the setting has no K, or its
    costs are unknown)."""

    counts: Counts = NOTHING
    speedup: float | None = None
    slower: float | None = None
    by_length: Mapping[int, float] = field(default_factory=dict)
    samples: int = 0

    @property
    def enough(self) -> bool:
        """Whether enough was drafted to predict future requests."""
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
        """A shorter K that is expected to be enough faster to be worth a change, and faster than
        plain decoding."""
        best, running = self.best, max(self.by_length, default=None)
        if best is None or running is None or not self.enough:
            return None
        least = max(1.0, BETTER * self.by_length[running])
        return best if self.by_length[best] >= least else None


@dataclass
class Samples:
    """Speed-ups of parts of the traffic, each about one completion: basis of the probability. The
    oldest are dropped."""

    times: StepTimes | None
    _open: Counts = NOTHING
    _logs: list[tuple[float, float]] = field(default_factory=list)

    def add(self, new: Counts) -> None:
        self._open += new
        if (self._open.tokens or 0) < _WINDOW_TOKENS:
            return
        found = traffic_speedup(self._open, self.times)
        if found is not None and found > 0:
            self._logs.append((math.log(found), self._open.tokens or 0.0))
            del self._logs[:-_MAX_WINDOWS]
        self._open = NOTHING

    @property
    def ratios(self) -> Ratios:
        return Ratios(tuple(x for x, _ in self._logs), tuple(w for _, w in self._logs))


def summarize(
    counts: Counts, samples: Ratios, times: StepTimes | None, longest: int | None = None
) -> TrafficSummary:
    """`samples`: speed-ups of parts of it; `longest`: the current K, None if the setting has no K
    (n-gram types) or its drafts can be shorter (p_min)."""
    enough = len(samples) >= MIN_SAMPLES
    return TrafficSummary(
        counts,
        traffic_speedup(counts, times),
        samples.chance_below(1.0) if enough else None,
        by_length(counts, times, longest) if longest else {},
        len(samples),
    )


def traffic_figures(p: TrafficSummary) -> str:
    """The figures of real requests, in a few words."""
    drafted = p.counts.drafted or 0
    alpha = f"α={p.counts.alpha:.2f} over {drafted:,.0f} drafted tokens" if p.counts.alpha else ""
    text = alpha or f"none of {drafted:,.0f} drafted tokens accepted"
    return f"{text}, about {p.speedup:.2f}x" if p.speedup is not None else text


def traffic_speedup(counts: Counts, times: StepTimes | None) -> float | None:
    """The speed-up of these tokens over plain decoding; None if unknown or nothing was drafted."""
    if times is None or not counts.tokens or not counts.drafted or counts.doubt:
        return None
    if (found := _by_steps(counts, times)) is not None:
        return found
    speed = counts.tokens_per_second
    return speed * times.plain_ms / 1000 if speed else None


def _by_steps(counts: Counts, times: StepTimes) -> float | None:
    if counts.drafted is None or counts.accepted is None or counts.steps is None:
        return None
    tokens, alone = _tokens(counts), _alone(counts)
    per_step = times.of(counts.drafted / counts.steps) if counts.steps else 0.0
    if per_step is None or tokens <= 0:
        return None
    own = counts.steps * per_step + alone * times.without_draft
    return tokens * times.plain_ms / own if own > 0 else None


def by_length(counts: Counts, times: StepTimes | None, longest: int) -> dict[int, float]:
    """K → expected speed-up on the same tokens, for each K up to `longest`, the current one:
    τ(K) = 1 + Σ a_i of the first K. Tokens without a draft are unchanged. {} if the current K was
    never timed, so that there is nothing to compare with."""
    if times is None or not counts.acceptance or times.of(longest) is None:
        return {}
    tokens, alone = _tokens(counts), _alone(counts)
    drafted = tokens - alone  # from steps with a draft
    out, tau = {}, 1.0
    for k in range(1, longest + 1):
        # there is no a_k for a depth at which nothing was ever accepted
        tau += counts.acceptance[k - 1] if k <= len(counts.acceptance) else 0.0
        if (ms := times.of(k)) is not None and drafted > 0:
            out[k] = tokens * times.plain_ms / (drafted / tau * ms + alone * times.without_draft)
    return out


def _tokens(counts: Counts) -> float:
    """Tokens that took a step: the first of each completion comes from prompt processing."""
    return max(0.0, (counts.tokens or 0.0) - (counts.requests or 0.0))


def _alone(counts: Counts) -> float:
    """Tokens from steps without a draft."""
    return max(0.0, _tokens(counts) - (counts.accepted or 0.0) - (counts.steps or 0.0))
