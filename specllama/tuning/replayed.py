"""What every setting would have gained on texts that are known: the rows of a table. Pure.

An answer that was given tells which drafts would have been accepted in it, whoever wrote it and
however it was sampled: a draft is accepted where it is the text. With what verifying costs
(tuning/costs.py) that is a speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import ngrams
from specllama.tuning.arms import NgramMap, label
from specllama.tuning.confidence import Interval, Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.judge import LEAST_GAIN, MOST_SLOWER
from specllama.tuning.ngram_rules import ModRule
from specllama.tuning.ngrams import Known, Replayed
from specllama.tuning.predict import (
    Drafted,
    best_setting,
    copied_ratios,
    joined_rows,
    near_lengths,
    near_sizes,
    ngram_rows,
    ratios_of,
)
from specllama.tuning.run import TrialCandidate

# llama.cpp's --spec-default (common/arg.cpp, b11434): ngram-mod with these, and at least 48 drafted
SPEC_DEFAULT = NgramSizes(24, 64)
_SPEC_DEFAULT_LEAST = 48


@dataclass(frozen=True)
class Texts:
    """Requests in the order they came. `groups`: for each the number of its conversation, which
    is what a speed-up's interval is over; `context`: tokens of a slot, 0 = not known."""

    known: tuple[Known, ...]
    groups: tuple[int, ...]
    context: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(t.answer) for t in self.known)

    def first(self, count: int) -> Texts:
        return replace(self, known=self.known[:count], groups=self.groups[:count])

    def fresh(self) -> tuple[Known, ...]:
        """The same without the indexes made so far: those of all sizes fill the memory."""
        return tuple(replace(t) for t in self.known)

    def by_group(self, r: Ratios) -> Ratios:
        """Speed-ups of requests as those of conversations: their times are added."""
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
class Setting:
    """One setting over all texts. `known`: its speed-up by conversation, where that had no say
    in choosing it; `source`: how it comes to be here; `may_win`: not only there to compare.
    `curve`: K → speed-up, of a draft."""

    name: str
    speculation: Speculation
    drafted: int
    accepted: int
    steps: int
    tokens: int
    known: Ratios
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
        return self.known.interval()


@dataclass(frozen=True)
class Guessed:
    """What a draft says of the same texts: `agrees`, a bit for each token but the first of an
    answer. `passes`: entry b-1 is ms of its pass over b tokens; `timed`: measured, not guessed
    from bytes."""

    candidate: TrialCandidate
    agrees: tuple[tuple[bool, ...], ...]
    passes: tuple[float, ...]
    timed: bool

    def step(self, costs: VerifyCosts) -> Callable[[int, bool], float | None]:
        """ms of a step, as Drafted.cost has it. The draft runs once for each token it drafts
        and once more over what was verified, also where the draft was a copy."""

        def cost(d: int, copied: bool) -> float | None:
            verify = costs.of(d + 1)
            if verify is None:
                return None
            drafting = 0.0 if copied else self.passes[0] * min(d, 1 if self.candidate.once else d)
            return verify + drafting + self._over(d + 1)

        return cost

    def _over(self, b: int) -> float:
        known = min(b, len(self.passes))
        return self.passes[known - 1] * b / known


def best_copies(
    spec: Speculation, texts: Texts, costs: VerifyCosts, may_win: bool = True
) -> tuple[Setting | None, NgramMap]:
    """The best sizes of one n-gram type, and all of them."""
    (method,) = spec.methods
    grid = ngrams.grid(method)
    rows: dict[NgramSizes, Ratios] = {}
    for _, sizes in groupby(grid, key=lambda s: s.n):
        rows |= ngram_rows(method, tuple(sizes), texts.fresh(), costs, texts.context)
    rows = {s: texts.by_group(r) for s, r in rows.items()}
    found = best_setting(rows, near_sizes(grid))
    speeds = NgramMap(method, {s: r.value for s, r in rows.items()})
    if found is None:
        return None, speeds
    best, known = found
    source = f"best of {len(rows)} sizes" if len(rows) > 1 else "it has no sizes"
    replays = ngrams.replay(method, best, texts.fresh(), texts.context)
    spec = replace(spec, ngram=best if len(rows) > 1 else None)
    return _setting(spec, replays, known, source, may_win), speeds


def given_copies(
    spec: Speculation, texts: Texts, costs: VerifyCosts, source: str
) -> Setting | None:
    """One n-gram type with its sizes as they stand; None where their cost is not known."""
    (method,) = spec.methods
    if spec.ngram is None or spec.ngram.m + 1 > costs.longest:
        return None
    replays = ngrams.replay(method, spec.ngram, texts.fresh(), texts.context)
    known = texts.by_group(copied_ratios(replays, costs))
    return _setting(spec, replays, known, source, may_win=False)


def spec_default(texts: Texts, costs: VerifyCosts) -> Setting | None:
    """What llama.cpp's own --spec-default would have done."""
    sizes = SPEC_DEFAULT
    if sizes.m + 1 > costs.longest:
        return None
    rule = ModRule(sizes.n, _SPEC_DEFAULT_LEAST, sizes.m)
    replays = ngrams.replay_rule(rule, texts.fresh(), texts.context)
    spec = Speculation(("ngram-mod",), ngram=sizes)
    known = texts.by_group(copied_ratios(replays, costs))
    found = _setting(spec, replays, known, "llama.cpp's own", may_win=False)
    return replace(found, name="--spec-default (ngram-mod 24/48/64)")


def best_draft(
    guessed: Guessed, texts: Texts, costs: VerifyCosts, lengths: Sequence[int], may_win: bool = True
) -> Setting | None:
    """The best length of a draft."""
    by_length = {
        k: ngrams.replay_draft(texts.known, guessed.agrees, k, texts.context)
        for k in lengths
        if k + 1 <= costs.longest
    }
    step = guessed.step(costs)
    rows = {k: texts.by_group(ratios_of(found, step, costs.step)) for k, found in by_length.items()}
    found = best_setting(rows, near_lengths)
    if found is None:
        return None
    k, known = found
    source = f"best of {len(rows)} lengths" if len(rows) > 1 else "asked for"
    spec = replace(guessed.candidate.speculation, n_max=k, p_min=0.0)
    setting = _setting(spec, by_length[k], known, source, may_win)
    return replace(setting, curve={k: r.interval() for k, r in rows.items()})


def best_joined(
    copies: Speculation, drafting: Speculation, guessed: Guessed, texts: Texts, costs: VerifyCosts
) -> tuple[Setting | None, NgramMap]:
    """The best sizes of an n-gram type before a draft of a given length, and all of them."""
    (method,), k = copies.methods, drafting.n_max
    grid = [s for s in ngrams.grid(method) if s.m + 1 <= costs.longest]
    step = guessed.step(costs)

    def drafted() -> Drafted:
        return Drafted(texts.fresh(), guessed.agrees, k, step, costs.step, texts.context)

    rows: dict[NgramSizes, Ratios] = {}
    for _, sizes in groupby(grid, key=lambda s: s.n):
        rows |= joined_rows(method, tuple(sizes), drafted())
    rows = {s: texts.by_group(r) for s, r in rows.items()}
    found = best_setting(rows, near_sizes(grid))
    speeds = NgramMap(method, {s: r.value for s, r in rows.items()}, label(drafting))
    if found is None:
        return None, speeds
    best, known = found
    spec = replace(drafting, methods=(method, *drafting.methods), ngram=best)
    d = drafted()
    replays = ngrams.replay_combined(method, best, d.texts, d.agrees, k, d.context)
    return _setting(spec, replays, known, f"best of {len(rows)} sizes"), speeds


def _setting(
    spec: Speculation,
    replays: Sequence[Replayed],
    known: Ratios,
    source: str,
    may_win: bool = True,
) -> Setting:
    return Setting(
        label(spec),
        spec,
        sum(r.drafted for r in replays),
        sum(r.accepted for r in replays),
        sum(len(r.steps) for r in replays),
        sum(r.tokens for r in replays),
        known,
        source,
        may_win,
    )


def verdict(settings: Sequence[Setting], costs: VerifyCosts) -> tuple[Setting | None, str]:
    """The setting to take, if any, and why. A gain on these texts that may well be chance on
    others like them is said, and not taken."""
    able = [s for s in settings if s.may_win]
    best = max(able, key=lambda s: s.known.value, default=None)
    if best is None:
        return None, "nothing was there to be replayed"
    said = f"{best.name} would have been {best.known.value:.2f}x plain decoding"
    if best.known.value < LEAST_GAIN:
        return None, f"nothing would have paid: {_why_not(best, able, said, costs)}"
    slower = best.known.chance_below(1.0)
    if len(best.known) == 1:
        return best, f"{said}; a single text says nothing of others"
    if slower >= MOST_SLOWER:
        return None, f"{said}, with a {slower:.0%} chance of being slower on others like these"
    return best, said


def _why_not(best: Setting, able: Sequence[Setting], said: str, costs: VerifyCosts) -> str:
    if not any(s.accepted for s in able):
        return "not one drafted token would have been accepted"
    per_step = best.drafted / max(1, best.steps)
    b = max(2, round(per_step) + 1)
    ms = costs.of(b)
    alpha = f", with {best.alpha:.0%} of its drafts accepted" if best.alpha is not None else ""
    cost = (
        f"; verifying {b} tokens takes as long as {ms / costs.step:.1f} plain steps" if ms else ""
    )
    return f"{said}{alpha}{cost}"
