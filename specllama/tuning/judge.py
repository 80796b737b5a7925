"""The decision: whether a gain is real, which setting wins, and the reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.engine.settings import Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.dead_draft import advice_for
from specllama.tuning.measure import Measurement
from specllama.tuning.records import (
    CRASHED,
    DECIDED,
    FORCED,
    NO_TIME,
    OPEN,
    Confirmation,
    DroppedSetting,
    Prediction,
    method_label,
)

MIN_SPEEDUP = 1.03  # below it, speculation is off
MIN_PROMPTS = 5  # with fewer, nothing follows for other texts
_LONG_RESPONSES, _FAR_SLOWER = 3, 0.7  # after long prompts: with fewer, only a large loss counts
# Probabilities: of being slower than plain decoding, to turn speculation on and to stop measuring
# early with "on"; of reaching MIN_SPEEDUP after all, to stop early with "off", and for a prediction
# to be launched. The result is checked after every prompt, so each check is stricter than the
# total: tests/test_confidence.py counts how often equal speeds come out as a gain (one in twenty).
MAX_CHANCE_SLOWER, _SURELY_FASTER, _SURELY_NOT, _WORTH_A_LAUNCH = 0.06, 0.015, 0.05, 0.05


def is_sure_gain(pooled: Ratios, own: Ratios) -> bool:
    """Whether to turn speculation on: the estimate reaches MIN_SPEEDUP, the chance of being slower
    is small, and the confirmation prompts alone show no slowdown."""
    enough = len(pooled) >= MIN_PROMPTS and pooled.value >= MIN_SPEEDUP and own.value >= 1.0
    return enough and pooled.chance_below(1.0) < MAX_CHANCE_SLOWER


def is_clear(pooled: Ratios, own: Ratios) -> bool:
    """Whether more prompts would hardly change the decision."""
    if len(pooled) < MIN_PROMPTS:
        return False
    if is_sure_gain(pooled, own) and pooled.chance_below(1.0) < _SURELY_FASTER:
        return True
    return 1 - pooled.chance_below(MIN_SPEEDUP) < _SURELY_NOT


def may_turn_on(pooled: Ratios, own: Ratios) -> bool:
    """Whether more prompts may turn an "off" into an "on": the estimate reaches MIN_SPEEDUP but is
    not certain yet, or may reach it and rests on too few prompts. (One that stays below would be
    measured forever.)"""
    if is_clear(pooled, own) or is_sure_gain(pooled, own):
        return False
    few = len(pooled) < MIN_PROMPTS
    may_reach_it = few and 1 - pooled.chance_below(MIN_SPEEDUP) > _SURELY_NOT
    return may_reach_it or pooled.value >= MIN_SPEEDUP


def may_gain(p: Prediction) -> bool:
    """Whether a prediction may turn out to be a gain. For one or two texts, the value alone
    decides; without any text, nothing is known and the answer is yes."""
    if not len(p.ratios):
        return True
    if len(p.ratios) < 3:
        return p.ratios.value >= MIN_SPEEDUP
    return 1 - p.ratios.chance_below(MIN_SPEEDUP) > _WORTH_A_LAUNCH


def wins(confirmation: Confirmation) -> bool:
    return is_sure_gain(confirmation.pooled_ratios, confirmation.ratios) and is_usable(confirmation)


def is_usable(confirmation: Confirmation) -> bool:
    """Whether a setting can be served at all: it drafted, and nothing is wrong with its output."""
    return bool(confirmation.measurement.drafted) and not confirmation.measurement.findings


def fastest(confirmations: Sequence[Confirmation]) -> Confirmation | None:
    """The one with the highest speed-up, certain gains first; never an unusable one."""
    good = [a for a in confirmations if is_usable(a)]
    sure = [a for a in good if wins(a)] or good
    return max(sure, key=lambda a: a.speedup.value, default=None)


@dataclass(frozen=True)
class TuningDecision:
    """`best`: the setting to serve, None = speculation off; `reason` and `state` as in TuningResult."""

    best: Confirmation | None
    reason: str
    state: str


def decide(
    confirmations: Sequence[Confirmation],
    dropped: Sequence[DroppedSetting],
    stop_reason: str = "",
    force: bool = False,
) -> TuningDecision:
    """Which setting to serve, if any. `stop_reason`: why the search ended early, "" if it did not.
    `force`: serve the fastest one even if it is slower than plain decoding."""
    best = fastest(confirmations)
    reason = _reason(best, confirmations, dropped, stop_reason)
    if best is not None and wins(best):
        return TuningDecision(best, reason, DECIDED)
    if best is not None and force:
        return TuningDecision(best, f"{reason}; used anyway because of --force", FORCED)
    return TuningDecision(None, reason, _state(confirmations, dropped, stop_reason))


def _state(
    confirmations: Sequence[Confirmation], dropped: Sequence[DroppedSetting], stop_reason: str
) -> str:
    """The state of a decision that is "off"."""
    best = fastest(confirmations)
    late = any(d.reason.startswith(NO_TIME) for d in dropped)
    if stop_reason or late or (best is not None and best.out_of_time):
        return OPEN
    return CRASHED if _crashed(confirmations, dropped) else DECIDED


def _crashed(confirmations: Sequence[Confirmation], dropped: Sequence[DroppedSetting]) -> bool:
    """Whether a method ended in a crash. One that dies at its longest draft is tried again."""
    ended = {d.setting.split(" K=")[0]: d.crashed for d in dropped}
    return any(
        c
        for what, c in ended.items()
        if what not in {method_label(a.speculation) for a in confirmations}
    )


def slower_after_long_prompts(best: Confirmation) -> str:
    """What to know about a gain that long prompts turn into a loss; "" if they do not."""
    d = best.deep
    # one response is mostly noise: from 0.70x to 1.12x for one setting
    if d is None or d.speedup > (
        1 / MIN_SPEEDUP if d.responses >= _LONG_RESPONSES else _FAR_SLOWER
    ):
        return ""
    return (
        f"; after a prompt of {d.tokens:,} tokens it was {d.speedup:.2f}x, slower than plain "
        "decoding: use --method none for such prompts"
    )


def problems_of(spec: Speculation, m: Measurement) -> str:
    """The findings about a setting, and advice if its drafts are never accepted."""
    return "; ".join([*m.findings, *([advice_for(spec)] if m.accepts_nothing else [])])


def _not_sure(confirmation: Confirmation) -> str:
    """The condition of is_sure_gain that a setting at or above MIN_SPEEDUP does not meet."""
    if confirmation.slower < MAX_CHANCE_SLOWER and len(confirmation.pooled_ratios) < MIN_PROMPTS:
        return f"but on only {len(confirmation.pooled_ratios)} prompts ({MIN_PROMPTS} required)"
    if confirmation.slower < MAX_CHANCE_SLOWER and confirmation.ratios.value < 1.0:
        return f"but {confirmation.ratios.value:.2f}x on the confirmation prompts"
    return f"with a {confirmation.slower:.0%} chance of being slower"


def _reason(
    best: Confirmation | None,
    confirmations: Sequence[Confirmation],
    dropped: Sequence[DroppedSetting],
    stop_reason: str,
) -> str:
    reason = [f"{d.setting}: {d.reason}" for d in dropped]
    predicted = [(d.predicted, d) for d in dropped if d.predicted is not None]
    if len(dropped) == len(predicted) > 1:
        d = max(predicted, key=lambda x: x[0])[1]
        reason = [f"{d.setting}: {d.reason}, the best of {len(predicted)} predictions"]
    if best is None:
        nothing = "nothing was drafted" if confirmations else "there was nothing to measure"
        reasons = reason[:3] or ([] if stop_reason else [nothing])
        problems = [(a.label, problems_of(a.speculation, a.measurement)) for a in confirmations]
        broken = [f"{label}: {reason}" for label, reason in problems if reason]
        return "; ".join(dict.fromkeys(filter(None, [stop_reason, *broken[:2], *reasons])))
    s = best.speedup
    # near the threshold, two digits would look as if it were reached
    value = f"{s.value:.3f}" if abs(s.value - MIN_SPEEDUP) < 0.005 else f"{s.value:.2f}"
    measured = f"{best.label} is {value}x plain decoding ({s.low:.2f} to {s.high:.2f})"
    if wins(best):
        return measured + slower_after_long_prompts(best)
    more = f"; {stop_reason}" if stop_reason else ""
    if best.out_of_time and not stop_reason:
        more = "; measurement continues at the next start"
    if s.value >= MIN_SPEEDUP:
        return f"{measured}, {_not_sure(best)}{more}"
    alpha = best.measurement.alpha
    although = (
        f", although {alpha:.0%} of drafted tokens are accepted" if alpha and alpha > 0.6 else ""
    )
    return f"{measured}, below the required {MIN_SPEEDUP:g}x{although}{more}"
