"""The arithmetic of speculation: acceptance, tokens per step, the cost curve, speed for every
draft length. Pure: numbers in, numbers out.

a_i = share of verify steps in which the first i drafted tokens were all accepted;
τ(K) = 1 + Σ_{i≤K} a_i tokens per step (Leviathan et al. 2023); speed(K) = τ(K) / t(K), where
t(K) is the time of a step that drafts and verifies K tokens. Nothing is ever extrapolated:
a draft length whose cost was not measured has no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specllama.drafts.replay import replay

Z95 = 1.96  # half-width of a 95 % interval in standard errors


@dataclass(frozen=True)
class Step:
    """One pass of the target: `drafted` tokens were verified, `accepted` of them kept, in
    `ms` (drafting included). It brought accepted + 1 tokens."""

    drafted: int
    accepted: int
    ms: float


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, by: float) -> Interval:
        return Interval(self.value * by, self.low * by, self.high * by)


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one step with a given number of drafted tokens: mean and its standard
    error, over `n` steps."""

    ms: float
    error: float
    n: int


def tau(acceptance: Iterable[float]) -> float:
    """τ = 1 + Σ a_i."""
    return 1.0 + sum(acceptance)


def tau_constant(p: float, k: int) -> float:
    """τ(k) when each position is accepted with probability p given the ones before:
    (1 − p^(k+1)) / (1 − p)."""
    return float(k + 1) if p >= 1 else (1 - p ** (k + 1)) / (1 - p)


def constant_acceptance(mean_length: float, k: int) -> float:
    """The p whose τ(k) is `mean_length`: the inverse of tau_constant, within [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tau_constant(middle, k) < mean_length else (low, middle)
    return (low + high) / 2


def conditional(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Acceptance of each position given that all before it were accepted: a_i / a_{i−1}."""
    out, before = [], 1.0
    for a in acceptance:
        out.append(a / before if before > 0 else 0.0)
        before = a
    return tuple(out)


def effective_acceptance(alpha: float, k: int) -> float:
    """α·K: under 1.0 speculation cannot pay. A sketch; nothing is decided by it alone."""
    return alpha * k


@dataclass(frozen=True)
class StepLog:
    """The steps of some requests to one server, in order. All figures come from them."""

    steps: tuple[Step, ...]

    @property
    def drafting(self) -> tuple[Step, ...]:
        """Steps that verified a draft."""
        return tuple(s for s in self.steps if s.drafted)

    @property
    def tokens(self) -> int:
        return sum(s.accepted + 1 for s in self.steps)

    @property
    def ms(self) -> float:
        return sum(s.ms for s in self.steps)

    @property
    def drafted(self) -> int:
        return sum(s.drafted for s in self.steps)

    @property
    def accepted(self) -> int:
        return sum(s.accepted for s in self.steps)

    @property
    def alpha(self) -> float | None:
        """α = accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """τ over the steps that drafted; None when none did."""
        n = len(self.drafting)
        return 1 + self.accepted / n if n else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.ms * 1000 if self.ms > 0 else None

    @cached_property
    def acceptance(self) -> tuple[float, ...]:
        """a_1, a_2, …: of the steps that drafted at least i tokens, the share that accepted
        them all. Drafts cut short by the end of a request do not count against later ones."""
        longest = max((s.drafted for s in self.steps), default=0)
        out = []
        for i in range(1, longest + 1):
            seen = [s for s in self.steps if s.drafted >= i]
            out.append(sum(s.accepted >= i for s in seen) / len(seen))
        # what was drafted more rarely may come out higher by chance: a_i never grows with i
        for i in range(1, len(out)):
            out[i] = min(out[i], out[i - 1])
        return tuple(out)

    def cost(self, drafted: int) -> Cost | None:
        """The cost of a step with that many drafted tokens. None when fewer than two were
        seen. Single slow steps (another program woke up) are left out: beyond four times the
        median distance from the median."""
        return _cost([s.ms for s in self.steps if s.drafted == drafted])

    def curve(self) -> dict[int, Cost]:
        """t(0), t(1), …: whatever was measured."""
        lengths = sorted({s.drafted for s in self.steps})
        found = {k: self.cost(k) for k in lengths}
        return {k: c for k, c in found.items() if c is not None}


def _cost(times: Sequence[float]) -> Cost | None:
    if len(times) < 2:
        return None
    middle = _median(times)
    spread = _median([abs(t - middle) for t in times])
    kept = [t for t in times if abs(t - middle) <= max(4 * spread, 0.02 * middle)] or list(times)
    mean = sum(kept) / len(kept)
    variance = sum((t - mean) ** 2 for t in kept) / max(1, len(kept) - 1)
    # Timers and schedulers are never better than a hundredth, whatever a handful of steps says.
    error = max(math.sqrt(variance / len(kept)), 0.01 * mean / math.sqrt(len(kept)))
    return Cost(mean, error, len(kept))


def _median(values: Sequence[float]) -> float:
    ordered, n = sorted(values), len(values)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def predict(
    lengths: Mapping[int, tuple[float, float]], curve: Mapping[int, Cost], baseline: Cost
) -> dict[int, Interval]:
    """K → speed-up over plain decoding, for every K whose τ and cost were measured.

    `lengths`: K → τ and its standard error; `baseline`: ms per token of the server without
    speculation. The interval holds the errors of all three.
    """
    out = {}
    for k, cost in curve.items():
        if k < 1 or k not in lengths or cost.ms <= 0:
            continue
        mean, error = lengths[k]
        speedup = mean / cost.ms * baseline.ms
        share = math.sqrt(
            (error / mean) ** 2 + (cost.error / cost.ms) ** 2 + (baseline.error / baseline.ms) ** 2
        )
        out[k] = Interval(speedup, speedup * (1 - Z95 * share), speedup * (1 + Z95 * share))
    return out


def lengths_from_acceptance(
    acceptance: Sequence[float], steps: int
) -> dict[int, tuple[float, float]]:
    """K → τ(K) with its standard error, from a_i counted over so many steps. Right for the
    length it was measured at; for shorter ones see `replayed_lengths`."""
    return {k: _tau_with_error(acceptance[:k], steps) for k in range(1, len(acceptance) + 1)}


def replayed_lengths(answers: Sequence[StepLog]) -> dict[int, tuple[float, float]]:
    """K → τ(K) with its standard error, for every K up to the longest draft in the answers.

    Where steps begin depends on K: a_1 at K = 8 is not a_1 at K = 1. So τ is not read from a_i
    but from the verify loop replayed over the answers: which tokens the draft would have
    guessed is known from the steps. Answers differ more than the steps of one: the spread of τ
    between them (Student's t, few answers) counts where it is the larger.
    """
    guessed = [bits for log in answers if (bits := agreement(log))]
    longest = max((s.drafted for log in answers for s in log.steps), default=0)
    out = {}
    for k in range(1, longest + 1):
        each = [r.tokens / r.steps for bits in guessed if (r := replay([bits], k)).steps]
        whole = replay(guessed, k)
        if each and whole.steps:
            mean = whole.tokens / whole.steps
            _, error = _tau_with_error(whole.by_position, whole.steps)
            out[k] = mean, max(error, _spread(each))
    return out


def agreement(log: StepLog) -> list[bool]:
    """Of one answer, token by token (the first excepted): whether the draft guessed it. The
    token after a draft that was accepted whole was not guessed at: taken as the one before."""
    bits: list[bool] = []
    for s in log.steps:
        bits += [True] * s.accepted
        bits.append(s.drafted == s.accepted and bool(s.drafted) and s.accepted > 0)
    return bits


# 97.5 % points of Student's t for 1, 2, … degrees of freedom, as multiples of the normal's.
_STUDENT = (6.48, 2.20, 1.62, 1.42, 1.31, 1.25, 1.21, 1.18, 1.15, 1.14, 1.12)


def _spread(values: Sequence[float]) -> float:
    """Standard error of a mean, larger for few values as Student's t has it; 0 for one."""
    if len(values) < 2:
        return 0.0
    student = _STUDENT[min(len(values) - 2, len(_STUDENT) - 1)]
    mean = sum(values) / len(values)
    spread = sum((x - mean) ** 2 for x in values) / (len(values) - 1)
    return student * math.sqrt(spread / len(values))


def _tau_with_error(acceptance: Sequence[float], steps: int) -> tuple[float, float]:
    """τ and its standard error: the accepted length L has E[L] = Σ a_i and
    E[L²] = Σ (2i − 1) a_i."""
    first = sum(acceptance)
    second = sum((2 * i - 1) * a for i, a in enumerate(acceptance, 1))
    return 1 + first, math.sqrt(max(0.0, second - first**2) / max(1, steps))


def fit_cost(log: StepLog) -> tuple[float, float, float]:
    """A straight line through all steps, t = fixed + per_token × drafted, by least squares:
    (fixed ms, ms per drafted token, standard error of a step). Shows the trend; a cliff is
    seen in the curve only."""
    n = len(log.steps)
    if n < 2:
        return (log.ms / n if n else 0.0), 0.0, 0.0
    x_mean = log.drafted / n
    t_mean = log.ms / n
    spread = sum((s.drafted - x_mean) ** 2 for s in log.steps)
    slope = sum((s.drafted - x_mean) * (s.ms - t_mean) for s in log.steps) / spread if spread else 0
    fixed = t_mean - slope * x_mean
    rest = sum((s.ms - fixed - slope * s.drafted) ** 2 for s in log.steps)
    return fixed, slope, math.sqrt(rest / max(1, n - 2))


def break_even(curve: Mapping[int, Cost], baseline_ms: float) -> float | None:
    """The least constant acceptance at which some measured K is as fast as plain decoding;
    None when none is even at 1.0."""

    def gain(p: float) -> float:
        return max(
            (tau_constant(p, k) / c.ms * baseline_ms for k, c in curve.items() if k and c.ms > 0),
            default=0.0,
        )

    if gain(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= 1 else (middle, high)
    return high


def combined(share: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """Tokens per ms when a share of steps is drafted by one method and the rest by another;
    each as (tokens per step, ms per step)."""
    tokens = share * first[0] + (1 - share) * second[0]
    ms = share * first[1] + (1 - share) * second[1]
    return tokens / ms if ms > 0 else 0.0


def oracle(arms: Sequence[Sequence[float]]) -> float:
    """The gain of always taking the best method for each prompt: total time of the first arm
    (the baseline) over the sum of the least times. Rows are arms, columns prompts; ms."""
    if not arms or not arms[0]:
        return 1.0
    best = sum(min(column) for column in zip(*arms, strict=True))
    return sum(arms[0]) / best if best > 0 else 1.0


def paired_ratio(
    baseline: Sequence[float], other: Sequence[float], rounds: int = 1000, seed: int = 0
) -> Interval:
    """How many times faster `other` is, from times per token of the same prompts: the ratio
    of the sums with a 95 % bootstrap interval over prompts (percentile method). Pairs of which
    one shows no speed (0) are left out.

    One pair has no spread to resample: its interval is open (0 to infinity). Raises ValueError
    when there is none.
    """
    import random

    pairs = [p for p in zip(baseline, other, strict=True) if all(p)]
    if not pairs:
        raise ValueError("two rows of the same prompts are needed that both show a speed")
    baseline, other = zip(*pairs, strict=True)
    value = sum(baseline) / sum(other)
    if len(baseline) < 2:
        return Interval(value, 0.0, math.inf)
    rng, n, ratios = random.Random(seed), len(baseline), []
    for _ in range(rounds):
        chosen = [rng.randrange(n) for _ in range(n)]
        ratios.append(sum(baseline[i] for i in chosen) / sum(other[i] for i in chosen))
    ratios.sort()
    return Interval(
        value, ratios[int(0.025 * rounds)], ratios[min(rounds - 1, int(0.975 * rounds))]
    )
