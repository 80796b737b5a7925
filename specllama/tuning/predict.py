"""Predicted speed of every setting, from one plain launch and from one launch of a draft. Pure.

Every setting gets a speed-up for each text. The best is chosen by their mean, smoothed over its
neighbours; what is said of it comes from texts that had no say in the choice (each is judged by
the setting that the others would have chosen), so that the best of a hundred settings does not
flatter itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from specllama.engine.settings import NgramSizes
from specllama.tuning import ngrams
from specllama.tuning.arms import Trial
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Answer
from specllama.tuning.ngrams import Known, Replayed
from specllama.tuning.speedup import StepLog, agreement, replayed_tau, trend

S = TypeVar("S", bound=Hashable)
_OWN_WEIGHT = 0.5  # of a setting's score; the rest is its neighbours'
_CAUTION = 1.25  # standard errors that a setting's mean is lowered by (of 0 to 1.5 it kept most)
_MANY_CAUTION = 2.0  # the same for what a combination adds to its draft
_LEAST_TOKENS = 8  # of an answer that is replayed


def known_texts(answers: Sequence[Answer], limit: int = 0) -> tuple[Known, ...]:
    """The answers whose tokens are known. `limit`: tokens that each could have had."""
    return tuple(
        Known(a.asked, a.ids, limit) for a in answers if a.asked and len(a.ids) >= _LEAST_TOKENS
    )


def ngram_rows(
    method: str,
    grid: Sequence[NgramSizes],
    texts: Sequence[Known],
    costs: VerifyCosts,
    context: int = 0,
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by text. Sizes whose longest draft has no cost are left out."""
    out = {}
    for sizes in grid:
        if sizes.m + 1 <= costs.longest:
            out[sizes] = copied_ratios(ngrams.replay(method, sizes, texts, context), costs)
    return out


def copied_ratios(found: Sequence[Replayed], costs: VerifyCosts) -> Ratios:
    """Speed-up by text where drafting costs nothing; texts with a draft too long to have a cost
    are left out."""
    return ratios_of(found, lambda d, _: costs.of(d + 1), costs.step)


def draft_rows(trial: Trial) -> dict[int, Ratios]:
    """K → speed-up by answer, for the lengths whose cost was measured."""
    if trial.rows:
        return dict(trial.rows)
    logs = [StepLog(a.steps) for a in trial.measurement.answers if len(a.steps) > 1]
    declines = trend(trial.steps)
    out = {}
    for k, cost in trial.steps.curve().items():
        if k < 1 or cost.ms <= 0 or k > trial.speculation.n_max:
            continue
        taus = [replayed_tau(log, k, declines) for log in logs]
        out[k] = Ratios(
            tuple(math.log(tau * trial.plain.ms / cost.ms) for tau in taus),
            tuple(float(log.tokens) for log in logs),
            math.hypot(cost.error / cost.ms, trial.plain.error / trial.plain.ms),
        )
    return out


def combined_rows(
    method: str, grid: Sequence[NgramSizes], trial: Trial, k: int, costs: VerifyCosts
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by answer of an n-gram type that copies where it can, before the trial's
    draft with length k elsewhere. {} where the answers' tokens or the cost of k are not known."""
    drafted = trial.steps.cost(k)
    answers = [a for a in trial.measurement.answers if a.asked and a.ids and a.steps]
    if drafted is None or not answers or not costs.known:
        return {}
    texts, bits = known_texts(answers), [agreement(StepLog(a.steps)) for a in answers]
    if len(texts) != len(bits):
        return {}
    slower = trial.plain.ms / costs.plain.ms  # the machine meanwhile

    def cost(d: int, copied: bool) -> float | None:
        if d and not copied:
            return drafted.ms
        verify = costs.of(d + 1)
        return None if verify is None else verify * slower + trial.own_ms

    fitting = [sizes for sizes in grid if sizes.m + 1 <= costs.longest]
    return joined_rows(method, fitting, Drafted(texts, bits, k, cost, trial.plain.ms))


@dataclass(frozen=True)
class Drafted:
    """What a draft guessed over known texts: a bit for each token but the first of an answer.
    `k`: its length; `cost`: (tokens drafted, whether they are a copy) → ms of the step, None =
    not known; `plain_ms`: a plain step meanwhile. `context`: as for ngrams.replay."""

    texts: Sequence[Known]
    agrees: Sequence[Sequence[bool]]
    k: int
    cost: Callable[[int, bool], float | None]
    plain_ms: float
    context: int = 0


def joined_rows(
    method: str, grid: Sequence[NgramSizes], drafted: Drafted
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by text of an n-gram type before that draft."""
    d, out = drafted, {}
    for sizes in grid:
        found = ngrams.replay_combined(method, sizes, d.texts, d.agrees, d.k, d.context)
        out[sizes] = ratios_of(found, d.cost, d.plain_ms)
    return out


def ratios_of(
    found: Sequence[Replayed], cost: Callable[[int, bool], float | None], plain: float
) -> Ratios:
    """Speed-up by text, from ms of each step (`cost`, as Drafted has it) and of a plain one.
    Texts without a step, or with one that has no cost, are left out."""
    logs, weights = [], []
    for text in found:
        times = [cost(d, copied) for (d, _), copied in zip(text.steps, text.by_ngram, strict=True)]
        ms = sum(t for t in times if t is not None)
        if ms > 0 and None not in times:
            logs.append(math.log(text.tokens * plain / ms))
            weights.append(float(text.tokens))
    return Ratios(tuple(logs), tuple(weights))


def best_setting(
    rows: Mapping[S, Ratios], near: Callable[[S], Sequence[S]]
) -> tuple[S, Ratios] | None:
    """The best setting, and its speed-up by text as the other texts would have chosen. None
    when there is nothing to choose from. `near`: a setting's neighbours."""
    rows = {s: r for s, r in rows.items() if len(r)}
    if not rows:
        return None
    beside = {s: near(s) for s in rows}
    best = _best(rows, beside, None)
    texts = range(len(rows[best]))
    if len(texts) < 2:
        return best, rows[best]
    logs = tuple(rows[_best(rows, beside, i)].logs[i] for i in texts)
    return best, replace(rows[best], logs=logs)


def _best(rows: Mapping[S, Ratios], beside: Mapping[S, Sequence[S]], without: int | None) -> S:
    worth = {s: _worth(r, without) for s, r in rows.items()}

    def score(s: S) -> float:
        around = sum(worth[x] if x in worth else worth[s] for x in beside[s])
        return _OWN_WEIGHT * worth[s] + (1 - _OWN_WEIGHT) * around / max(1, len(beside[s]))

    return max(rows, key=score)


def _worth(r: Ratios, without: int | None) -> float:
    if without is not None:
        left = [i for i in range(len(r)) if i != without]
        r = Ratios(tuple(r.logs[i] for i in left), tuple(r.weights[i] for i in left), r.shared)
    return cautious(r)


def cautious(r: Ratios) -> float:
    """What a setting surely brings, as a logarithm: its mean less a part of its error, so that
    one that lives on a single text does not come before one that helps in all."""
    return r.mean - (_CAUTION * r.error if len(r) > 1 else 0.0)


def beyond(both: Ratios, alone: Ratios) -> float:
    """What a combination surely adds to the draft it contains, as a logarithm. Both answered
    the same texts, so that what differs between texts does not count; the best of some hundred
    sizes is compared, so the caution is larger."""
    if len(both) != len(alone):
        return cautious(both) - cautious(alone)
    gained = tuple(b - a for b, a in zip(both.logs, alone.logs, strict=True))
    more = Ratios(gained, both.weights)
    return more.mean - (_MANY_CAUTION * more.error if len(more) > 1 else 0.0)


def near_sizes(grid: Sequence[NgramSizes]) -> Callable[[NgramSizes], list[NgramSizes]]:
    """The sizes one step away in n or in m."""
    ns, ms = sorted({s.n for s in grid}), sorted({s.m for s in grid})
    by_size = {(s.n, s.m, s.min_hits): s for s in grid}

    def near(s: NgramSizes) -> list[NgramSizes]:
        i, j = ns.index(s.n), ms.index(s.m)
        around = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
        there = [(a, b) for a, b in around if 0 <= a < len(ns) and 0 <= b < len(ms)]
        places = [(ns[a], ms[b], s.min_hits) for a, b in there]
        return [by_size[p] for p in places if p in by_size]

    return near


def near_lengths(k: int) -> list[int]:
    """None: all lengths are replayed over the same texts, so that a neighbour tells nothing that
    a length's own row does not, and the bend of the curve would count against its top."""
    return []
