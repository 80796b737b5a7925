"""Predicted speed of every setting, from one plain launch and from one launch of a draft. Pure.

Every setting gets a speed-up for each text. The best one is chosen by the mean, smoothed over
neighbouring settings. Its reported speed-up is cross-validated (each text counts with the setting
that the other texts would have chosen), so that the best of a hundred settings is not overrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from specllama.engine.settings import NgramSizes
from specllama.tuning import ngrams
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Response
from specllama.tuning.ngrams import KnownText, TextReplay
from specllama.tuning.records import Trial
from specllama.tuning.speedup import StepLog, agreement, replayed_tau, trend

S = TypeVar("S", bound=Hashable)
_OWN_WEIGHT = 0.5  # of a setting in its score; the rest is its neighbours'
_CAUTION = 1.25  # standard errors subtracted from a setting's mean (best of 0 to 1.5)
_MANY_CAUTION = 2.0  # the same for the gain of a combination over its draft
_MIN_TOKENS = 8  # of a response, to be replayed


def known_texts(responses: Sequence[Response], limit: int = 0) -> tuple[KnownText, ...]:
    """The responses with known tokens. `limit`: the token limit of each."""
    return tuple(
        KnownText(a.prompt_ids, a.ids, limit)
        for a in responses
        if a.prompt_ids and len(a.ids) >= _MIN_TOKENS
    )


def ngram_rows(
    method: str,
    grid: Sequence[NgramSizes],
    texts: Sequence[KnownText],
    costs: VerifyCosts,
    context: int = 0,
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by text. Sizes whose longest draft has no known cost are omitted."""
    out = {}
    for sizes in grid:
        if sizes.m + 1 <= costs.longest:
            out[sizes] = free_draft_ratios(ngrams.replay(method, sizes, texts, context), costs)
    return out


def free_draft_ratios(found: Sequence[TextReplay], costs: VerifyCosts) -> Ratios:
    """Speed-up by text if drafting is free; texts with a draft too long to have a known cost are
    omitted."""
    return ratios_of(found, lambda d, _: costs.of(d + 1), costs.step)


def draft_rows(trial: Trial) -> dict[int, Ratios]:
    """K → speed-up by response, for each K with a measured cost."""
    if trial.rows:
        return dict(trial.rows)
    logs = [StepLog(a.steps) for a in trial.measurement.responses if len(a.steps) > 1]
    declines = trend(trial.steps)
    out = {}
    for k, cost in trial.steps.curve().items():
        if k < 1 or cost.ms <= 0 or k > trial.speculation.n_max:
            continue
        taus = [replayed_tau(log, k, declines) for log in logs]
        out[k] = Ratios(
            tuple(math.log(tau * trial.plain_step.ms / cost.ms) for tau in taus),
            tuple(float(log.tokens) for log in logs),
            math.hypot(cost.error / cost.ms, trial.plain_step.error / trial.plain_step.ms),
        )
    return out


def combined_rows(
    method: str, grid: Sequence[NgramSizes], trial: Trial, k: int, costs: VerifyCosts
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by response of an n-gram method combined with the trial's draft at length k,
    which drafts where nothing can be copied. {} if the tokens or the cost of k are unknown."""
    drafted = trial.steps.cost(k)
    responses = [a for a in trial.measurement.responses if a.prompt_ids and a.ids and a.steps]
    if drafted is None or not responses or not costs.known:
        return {}
    texts, bits = known_texts(responses), [agreement(StepLog(a.steps)) for a in responses]
    if len(texts) != len(bits):
        return {}
    slower = trial.plain_step.ms / costs.plain_step.ms  # speed of the machine during the trial

    def cost(d: int, copied: bool) -> float | None:
        if d and not copied:
            return drafted.ms
        verify = costs.of(d + 1)
        return None if verify is None else verify * slower + trial.own_ms

    fitting = [sizes for sizes in grid if sizes.m + 1 <= costs.longest]
    return joined_rows(method, fitting, DraftedTexts(texts, bits, k, cost, trial.plain_step.ms))


@dataclass(frozen=True)
class DraftedTexts:
    """A draft's matches over known texts: one bit for each token except the first of a response.
    `k`: draft length; `cost`: (drafted tokens, whether they are copied) → ms of the step, None =
    unknown; `plain_ms`: a plain step at that time. `context`: as for ngrams.replay."""

    texts: Sequence[KnownText]
    agrees: Sequence[Sequence[bool]]
    k: int
    cost: Callable[[int, bool], float | None]
    plain_ms: float
    context: int = 0


def joined_rows(
    method: str, grid: Sequence[NgramSizes], drafted: DraftedTexts
) -> dict[NgramSizes, Ratios]:
    """Sizes → speed-up by text of an n-gram method combined with that draft."""
    d, out = drafted, {}
    for sizes in grid:
        found = ngrams.replay_combined(method, sizes, d.texts, d.agrees, d.k, d.context)
        out[sizes] = ratios_of(found, d.cost, d.plain_ms)
    return out


def ratios_of(
    found: Sequence[TextReplay], cost: Callable[[int, bool], float | None], plain_ms: float
) -> Ratios:
    """Speed-up by text, from ms of each step (`cost`, as in DraftedTexts) and of a plain step.
    Texts without steps, or with a step of unknown cost, are omitted."""
    logs, weights = [], []
    for text in found:
        times = [cost(d, copied) for (d, _), copied in zip(text.steps, text.by_ngram, strict=True)]
        ms = sum(t for t in times if t is not None)
        if ms > 0 and None not in times:
            logs.append(math.log(text.tokens * plain_ms / ms))
            weights.append(float(text.tokens))
    return Ratios(tuple(logs), tuple(weights))


def best_setting(
    rows: Mapping[S, Ratios], near: Callable[[S], Sequence[S]]
) -> tuple[S, Ratios] | None:
    """The best setting, and its cross-validated speed-up by text. None if there is nothing to
    choose from. `near`: a setting's neighbours."""
    rows = {s: r for s, r in rows.items() if len(r)}
    if not rows:
        return None
    neighbours = {s: near(s) for s in rows}
    best = _best(rows, neighbours, None)
    texts = range(len(rows[best]))
    if len(texts) < 2:
        return best, rows[best]
    logs = tuple(rows[_best(rows, neighbours, i)].logs[i] for i in texts)
    return best, replace(rows[best], logs=logs)


def _best(rows: Mapping[S, Ratios], neighbours: Mapping[S, Sequence[S]], without: int | None) -> S:
    scores = {s: _cautious_without(r, without) for s, r in rows.items()}

    def score(s: S) -> float:
        around = sum(scores.get(x, scores[s]) for x in neighbours[s])
        mean = around / max(1, len(neighbours[s]))
        return _OWN_WEIGHT * scores[s] + (1 - _OWN_WEIGHT) * mean

    return max(rows, key=score)


def _cautious_without(r: Ratios, without: int | None) -> float:
    if without is not None:
        left = [i for i in range(len(r)) if i != without]
        r = Ratios(tuple(r.logs[i] for i in left), tuple(r.weights[i] for i in left), r.shared)
    return cautious(r)


def cautious(r: Ratios) -> float:
    """A cautious estimate of the gain, as a logarithm: the mean minus a multiple of its error, so
    that a setting that helps on all texts beats one that is much faster on a single text."""
    return r.mean - (_CAUTION * r.error if len(r) > 1 else 0.0)


def beyond(both: Ratios, alone: Ratios) -> float:
    """A cautious estimate of the gain of a combination over its draft alone, as a logarithm. Both
    have the same texts, so differences between texts cancel; the caution is larger because the
    combination is the best of some hundred sizes."""
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
    """None: all K are replayed over the same texts, so neighbours add no information, and
    smoothing would lower the peak of the curve."""
    return []
