"""From what was measured to an answer: whether a gain is real, which arm wins, what to say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.engine.settings import Speculation
from specllama.tuning.arms import (
    CRASHED,
    DECIDED,
    FORCED,
    NO_TIME,
    OPEN,
    Arm,
    Dropped,
    NgramMap,
    Plain,
    Prediction,
    Trial,
    Tuned,
    way,
)
from specllama.tuning.confidence import Ratios
from specllama.tuning.dead_draft import what_to_do
from specllama.tuning.measure import Measurement

LEAST_GAIN = 1.03  # under it speculation is off
_LEAST_TEXTS = 5  # fewer say nothing about others
# Chances: of being slower than plain decoding, for "on" and for ending a measurement early as
# one; of being worth it after all, for ending one as "off"; of a prediction to be worth a launch.
# It is looked at after every prompt, so each look must be surer than the whole:
# tests/test_confidence.py counts how often equal ways come out as a gain (one in twenty).
MOST_SLOWER, _SURELY_FASTER, _SURELY_NOT, _WORTH_A_LAUNCH = 0.06, 0.015, 0.05, 0.05


def sure_enough(pooled: Ratios, own: Ratios) -> bool:
    """Whether speculation goes on: the estimate reaches LEAST_GAIN, the chance that it is
    slower is small, and its own prompts do not speak against it."""
    enough = len(pooled) >= _LEAST_TEXTS and pooled.value >= LEAST_GAIN and own.value >= 1.0
    return enough and pooled.chance_below(1.0) < MOST_SLOWER


def clear(pooled: Ratios, own: Ratios) -> bool:
    """Whether more prompts would hardly change the answer."""
    if len(pooled) < _LEAST_TEXTS:
        return False
    if sure_enough(pooled, own) and pooled.chance_below(1.0) < _SURELY_FASTER:
        return True
    return 1 - pooled.chance_below(LEAST_GAIN) < _SURELY_NOT


def promising(pooled: Ratios, own: Ratios) -> bool:
    """Whether more prompts may well turn an "off" into an "on": the estimate reaches
    LEAST_GAIN and is only not sure yet. (One that stays under it would be asked for ever.)"""
    unsure = not clear(pooled, own) and not sure_enough(pooled, own)
    return unsure and pooled.value >= LEAST_GAIN


def worth_a_launch(p: Prediction) -> bool:
    """Whether a prediction may come out as a gain. One from a single text says little: its
    value decides; nothing is known where there is none."""
    if not len(p.known):
        return True
    if len(p.known) < 3:
        return p.known.value >= LEAST_GAIN
    return 1 - p.known.chance_below(LEAST_GAIN) > _WORTH_A_LAUNCH


def wins(arm: Arm) -> bool:
    return sure_enough(arm.pooled, arm.own) and fit(arm)


def fit(arm: Arm) -> bool:
    """Whether an arm can be served at all: it drafted, and nothing is wrong with it."""
    return bool(arm.measurement.drafted) and not arm.measurement.findings


def fastest(arms: Sequence[Arm]) -> Arm | None:
    """The one with the highest speed-up, surely faster ones first; broken ones never."""
    good = [a for a in arms if fit(a)]
    sure = [a for a in good if wins(a)] or good
    return max(sure, key=lambda a: a.speedup.value, default=None)


@dataclass(frozen=True)
class Evidence:
    """All that a search measured. `seconds` it took; `cut`: why it ended early, "" when it did
    not; `force`: the fastest way is served however slow."""

    workload: str
    plain: Plain | None
    trials: tuple[Trial, ...]
    maps: tuple[NgramMap, ...]
    predictions: tuple[Prediction, ...]
    arms: tuple[Arm, ...]
    dropped: tuple[Dropped, ...]
    loads: int
    seconds: float
    cut: str = ""
    force: bool = False


def decide(e: Evidence) -> Tuned:
    """The decision, with its reason."""
    best = fastest(e.arms)
    won = best is not None and wins(best)
    forced = e.force and best is not None and not won
    reason = _reason(best, e.arms, e.dropped, e.cut)
    return Tuned(
        workload=e.workload,
        plain=e.plain,
        trials=e.trials,
        maps=e.maps,
        predictions=e.predictions,
        arms=e.arms,
        best=best if won or forced else None,
        reason=f"{reason}; taken by --force" if forced else reason,
        dropped=e.dropped,
        loads=e.loads,
        seconds=e.seconds,
        state=DECIDED if won else FORCED if forced else _state(e.arms, e.dropped, e.cut),
    )


def _state(arms: Sequence[Arm], dropped: Sequence[Dropped], cut: str) -> str:
    """Of an answer that is "off"."""
    best = fastest(arms)
    late = any(d.why.startswith(NO_TIME) for d in dropped)
    if cut or late or (best is not None and best.cut):
        return OPEN
    return CRASHED if _crashed(arms, dropped) else DECIDED


def _crashed(arms: Sequence[Arm], dropped: Sequence[Dropped]) -> bool:
    """Whether a way ended in a crash: one that dies at its longest draft is tried again."""
    ended = {d.what.split(" K=")[0]: d.crashed for d in dropped}
    return any(c for what, c in ended.items() if what not in {way(a.speculation) for a in arms})


def what_is_wrong(spec: Speculation, m: Measurement) -> str:
    """The findings about a setting, and what helps where its drafts are never right."""
    return "; ".join([*m.findings, *([what_to_do(spec)] if m.accepts_nothing else [])])


def _not_sure(arm: Arm) -> str:
    """Which condition of sure_enough an arm that reaches LEAST_GAIN misses."""
    if arm.slower < MOST_SLOWER and len(arm.pooled) < _LEAST_TEXTS:
        return f"but from {len(arm.pooled)} prompts only: {_LEAST_TEXTS} are needed"
    if arm.slower < MOST_SLOWER and arm.own.value < 1.0:
        return f"but {arm.own.value:.2f}x on the prompts that were to confirm it"
    return f"{arm.slower:.0%} chance that it is slower"


def _reason(best: Arm | None, arms: Sequence[Arm], dropped: Sequence[Dropped], cut: str) -> str:
    why = [f"{d.what}: {d.why}" for d in dropped]
    if len(why) > 1 and all("x predicted" in d.why for d in dropped):  # the best comes first
        why = [f"{why[0]}; {len(why) - 1} more are predicted slower"]
    if best is None:
        nothing = "nothing was drafted" if arms else "nothing was there to be measured"
        said = why[:3] or ([] if cut else [nothing])
        wrong = [(a.label, what_is_wrong(a.speculation, a.measurement)) for a in arms]
        broken = [f"{label}: {why}" for label, why in wrong if why]
        return "; ".join(dict.fromkeys([*([cut] if cut else []), *broken[:2], *said]))
    s = best.speedup
    # near the threshold two digits would say that it is reached
    value = f"{s.value:.3f}" if abs(s.value - LEAST_GAIN) < 0.005 else f"{s.value:.2f}"
    measured = f"{best.label} is {value}x plain decoding ({s.low:.2f} to {s.high:.2f})"
    if wins(best):
        return measured
    more = f"; {cut}" if cut else "; measuring goes on at the next start" if best.cut else ""
    if s.value >= LEAST_GAIN:
        return f"{measured}, {_not_sure(best)}{more}"
    alpha = best.measurement.alpha
    although = f", although {alpha:.0%} of its drafts are accepted" if alpha and alpha > 0.6 else ""
    return f"{measured}{although}: under {LEAST_GAIN:g}x it does not pay{more}"
