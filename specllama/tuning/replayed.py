"""The gain that every setting would have had on known texts. Pure.

A known response shows which drafts would have been accepted in it, whoever wrote it and however it
was sampled: a draft is accepted where it equals the text. Together with the verification cost
(tuning/costs.py), that gives a speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import ngrams
from specllama.tuning.confidence import Interval, Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.judge import MAX_CHANCE_SLOWER, MIN_PROMPTS, MIN_SPEEDUP
from specllama.tuning.ngram_rules import ModRule
from specllama.tuning.ngrams import KnownText, TextReplay
from specllama.tuning.predict import (
    DraftedTexts,
    best_setting,
    free_draft_ratios,
    joined_rows,
    near_lengths,
    near_sizes,
    ngram_rows,
    ratios_of,
)
from specllama.tuning.records import NgramSpeedups, setting_label
from specllama.tuning.run import TrialCandidate

# llama.cpp's --spec-default (common/arg.cpp, b11434): ngram-mod with these, and at least 48 drafted
SPEC_DEFAULT = NgramSizes(24, 64)
_SPEC_DEFAULT_LEAST = 48


@dataclass(frozen=True)
class KnownTexts:
    """Requests in their original order. `groups`: the conversation number of each; intervals are
    over conversations. `context`: tokens of a slot, 0 = unknown."""

    texts: tuple[KnownText, ...]
    groups: tuple[int, ...]
    context: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(t.response) for t in self.texts)

    def first(self, count: int) -> KnownTexts:
        return replace(self, texts=self.texts[:count], groups=self.groups[:count])

    def fresh(self) -> tuple[KnownText, ...]:
        """Copies without cached indexes, which would fill the memory over all sizes."""
        return tuple(replace(t) for t in self.texts)

    def by_group(self, r: Ratios) -> Ratios:
        """Speed-ups by conversation from those by request: times are summed."""
        if len(r) != len(self.groups):
            return r
        tokens: dict[int, float] = {}
        times: dict[int, float] = {}
        for group, log, weight in zip(self.groups, r.logs, r.weights, strict=True):
            tokens[group] = tokens.get(group, 0.0) + weight
            times[group] = times.get(group, 0.0) + weight / math.exp(log)
        logs = tuple(math.log(tokens[g] / times[g]) for g in tokens)
        return Ratios(logs, tuple(tokens.values()))


@dataclass(frozen=True)
class ReplayedSetting:
    """One setting over all texts. `ratios`: its cross-validated speed-up by conversation;
    `source`: how it was chosen; `may_win`: False = only for comparison. `curve`: K → speed-up,
    for a draft."""

    name: str
    speculation: Speculation
    drafted: int
    accepted: int
    steps: int
    tokens: int
    ratios: Ratios
    source: str
    may_win: bool = True
    curve: Mapping[int, Interval] = field(default_factory=dict)

    @property
    def alpha(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tau(self) -> float:
        """Tokens per step, plain ones included."""
        return self.tokens / self.steps if self.steps else 1.0

    @property
    def speedup(self) -> Interval:
        return self.ratios.interval()

    @property
    def few_texts(self) -> bool:
        """Whether there are too few conversations or responses for an interval."""
        return len(self.ratios) < MIN_PROMPTS


@dataclass(frozen=True)
class DraftGuesses:
    """A draft over the same texts. `agrees`: one bit for each token except the first of a
    response, whether the draft predicts it. `passes`: entry b-1 is ms of its pass over b tokens;
    `timed`: whether that was measured rather than estimated from bytes."""

    candidate: TrialCandidate
    agrees: tuple[tuple[bool, ...], ...]
    passes: tuple[float, ...]
    timed: bool

    def step(self, costs: VerifyCosts) -> Callable[[int, bool], float | None]:
        """ms of a step, as in DraftedTexts.cost. The draft runs once for each drafted token and
        once more over the verified tokens, even if they were copied by an n-gram method."""

        def cost(d: int, copied: bool) -> float | None:
            verify = costs.of(d + 1)
            if verify is None:
                return None
            drafting = (
                0.0 if copied else self.passes[0] * min(d, 1 if self.candidate.one_pass else d)
            )
            return verify + drafting + self._over(d + 1)

        return cost

    def _over(self, b: int) -> float:
        known = min(b, len(self.passes))
        return self.passes[known - 1] * b / known


def best_ngram(
    spec: Speculation, texts: KnownTexts, costs: VerifyCosts, may_win: bool = True
) -> tuple[ReplayedSetting | None, NgramSpeedups]:
    """The best sizes of one n-gram method, and the speeds of all sizes."""
    (method,) = spec.methods
    grid = ngrams.grid(method)
    rows: dict[NgramSizes, Ratios] = {}
    for _, sizes in groupby(grid, key=lambda s: s.n):
        rows |= ngram_rows(method, tuple(sizes), texts.fresh(), costs, texts.context)
    rows = {s: texts.by_group(r) for s, r in rows.items()}
    found = best_setting(rows, near_sizes(grid))
    speeds = NgramSpeedups(method, {s: r.value for s, r in rows.items()})
    if found is None:
        return None, speeds
    best, known = found
    source = f"best of {len(rows)} sizes" if len(rows) > 1 else "no sizes to choose"
    replays = ngrams.replay(method, best, texts.fresh(), texts.context)
    spec = replace(spec, ngram=best if len(rows) > 1 else None)
    return _setting(spec, replays, known, source, may_win), speeds


def fixed_ngram(
    spec: Speculation, texts: KnownTexts, costs: VerifyCosts, source: str
) -> ReplayedSetting | None:
    """One n-gram method with given sizes; None if their cost is unknown."""
    (method,) = spec.methods
    if spec.ngram is None or spec.ngram.m + 1 > costs.longest:
        return None
    replays = ngrams.replay(method, spec.ngram, texts.fresh(), texts.context)
    known = texts.by_group(free_draft_ratios(replays, costs))
    return _setting(spec, replays, known, source, may_win=False)


def spec_default(texts: KnownTexts, costs: VerifyCosts) -> ReplayedSetting | None:
    """The replay of llama.cpp's --spec-default."""
    sizes = SPEC_DEFAULT
    if sizes.m + 1 > costs.longest:
        return None
    rule = ModRule(sizes.n, _SPEC_DEFAULT_LEAST, sizes.m)
    replays = ngrams.replay_rule(rule, texts.fresh(), texts.context)
    spec = Speculation(("ngram-mod",), ngram=sizes)
    known = texts.by_group(free_draft_ratios(replays, costs))
    found = _setting(spec, replays, known, "llama.cpp's default", may_win=False)
    return replace(found, name="--spec-default (ngram-mod 24/48/64)")


def best_draft(
    guesses: DraftGuesses,
    texts: KnownTexts,
    costs: VerifyCosts,
    lengths: Sequence[int],
    may_win: bool = True,
) -> ReplayedSetting | None:
    """The best K of a draft."""
    by_length = {
        k: ngrams.replay_draft(texts.texts, guesses.agrees, k, texts.context)
        for k in lengths
        if k + 1 <= costs.longest
    }
    step = guesses.step(costs)
    rows = {k: texts.by_group(ratios_of(found, step, costs.step)) for k, found in by_length.items()}
    found = best_setting(rows, near_lengths)
    if found is None:
        return None
    k, known = found
    source = f"best of {len(rows)} lengths" if len(rows) > 1 else "as requested"
    spec = replace(guesses.candidate.speculation, n_max=k, p_min=0.0)
    setting = _setting(spec, by_length[k], known, source, may_win)
    return replace(setting, curve={k: r.interval() for k, r in rows.items()})


def best_combined(
    ngram: Speculation,
    drafting: Speculation,
    guesses: DraftGuesses,
    texts: KnownTexts,
    costs: VerifyCosts,
) -> tuple[ReplayedSetting | None, NgramSpeedups]:
    """The best sizes of an n-gram method combined with a draft at a given K, and all of them."""
    (method,), k = ngram.methods, drafting.n_max
    grid = [s for s in ngrams.grid(method) if s.m + 1 <= costs.longest]
    step = guesses.step(costs)

    def drafted() -> DraftedTexts:
        return DraftedTexts(texts.fresh(), guesses.agrees, k, step, costs.step, texts.context)

    rows: dict[NgramSizes, Ratios] = {}
    for _, sizes in groupby(grid, key=lambda s: s.n):
        rows |= joined_rows(method, tuple(sizes), drafted())
    rows = {s: texts.by_group(r) for s, r in rows.items()}
    found = best_setting(rows, near_sizes(grid))
    speeds = NgramSpeedups(method, {s: r.value for s, r in rows.items()}, setting_label(drafting))
    if found is None:
        return None, speeds
    best, known = found
    spec = replace(drafting, methods=(method, *drafting.methods), ngram=best)
    d = drafted()
    replays = ngrams.replay_combined(method, best, d.texts, d.agrees, k, d.context)
    return _setting(spec, replays, known, f"best of {len(rows)} sizes"), speeds


def _setting(
    spec: Speculation,
    replays: Sequence[TextReplay],
    known: Ratios,
    source: str,
    may_win: bool = True,
) -> ReplayedSetting:
    return ReplayedSetting(
        setting_label(spec),
        spec,
        sum(r.drafted for r in replays),
        sum(r.accepted for r in replays),
        sum(len(r.steps) for r in replays),
        sum(r.tokens for r in replays),
        known,
        source,
        may_win,
    )


def choose_replayed(
    settings: Sequence[ReplayedSetting], costs: VerifyCosts
) -> tuple[ReplayedSetting | None, str]:
    """The setting to use, if any, and the reason. A gain on these texts that may be chance is
    reported, but not used."""
    eligible = [s for s in settings if s.may_win]
    best = max(eligible, key=lambda s: s.ratios.value, default=None)
    if best is None:
        return None, "there was nothing to replay"
    summary = f"{best.name} would have been {best.ratios.value:.2f}x plain decoding"
    if best.ratios.value < MIN_SPEEDUP:
        return None, f"nothing would have paid off: {_why_not(best, eligible, summary, costs)}"
    slower = best.ratios.chance_below(1.0)
    if len(best.ratios) == 1:
        return best, f"{summary}; a single conversation says little about others"
    if slower >= MAX_CHANCE_SLOWER:
        chance = f"with a {slower:.0%} chance of being slower on similar conversations"
        return None, f"{summary}, {chance}"
    if best.few_texts:
        return best, f"{summary}; {len(best.ratios)} responses say little about others"
    return best, summary


def _why_not(
    best: ReplayedSetting, eligible: Sequence[ReplayedSetting], summary: str, costs: VerifyCosts
) -> str:
    if not any(s.drafted for s in eligible):
        return "no token would have been drafted"
    if not any(s.accepted for s in eligible):
        return "no drafted token would have been accepted"
    per_step = best.drafted / max(1, best.steps)
    b = max(2, round(per_step) + 1)
    ms = costs.of(b)
    alpha = f", with {best.alpha:.0%} of drafted tokens accepted" if best.alpha is not None else ""
    cost = (
        f"; verifying {b} tokens takes as long as {ms / costs.step:.1f} plain steps" if ms else ""
    )
    return f"{summary}{alpha}{cost}"
