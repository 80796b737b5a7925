"""From arms to an answer: which is fastest, whether the gain is real, and what to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.arms import NO_TIME, Arm, Dropped, Tuned
from specllama.tuning.measure import Answer, Measurement
from specllama.tuning.speedup import Interval, oracle, paired_ratio

SLOWER = "at every length measured it is slower or no faster"
_CLEAR_GAIN = 1.10  # above it a second baseline cannot change the answer


def compared(arm: Arm, baselines: Sequence[Measurement]) -> Arm:
    """The arm with its speed-up: same prompts, paired, against the baseline measured in turn
    with it, else against all others."""
    return replace(
        arm,
        speedup=_speedup(baselines, arm),
        same_text=_same(baselines[0].greedy, arm.measurement.greedy),
    )


def _speedup(baselines: Sequence[Measurement], arm: Arm) -> Interval | None:
    """The ratio over prompts. Two baselines that differ show how much the machine itself
    changed meanwhile: the interval is widened by half of it to both sides."""
    pairs = _pairs(baselines, arm).values()
    if not pairs:
        return None
    ratio = paired_ratio([base for base, _ in pairs], [own for _, own in pairs])
    speeds = [b.tokens_per_second for b in _sources(baselines, arm)]
    drift = (max(speeds) - min(speeds)) / (max(speeds) + min(speeds)) if max(speeds) > 0 else 0
    return Interval(ratio.value, ratio.low * (1 - drift), ratio.high * (1 + drift))


def _sources(baselines: Sequence[Measurement], arm: Arm) -> Sequence[Measurement]:
    """What an arm is compared with."""
    return [arm.against] if arm.against is not None else baselines


def _pairs(baselines: Sequence[Measurement], arm: Arm) -> dict[int, tuple[float, float]]:
    """Prompt → ms per token of the baseline (the mean, where it ran more than once) and of the
    arm, for the prompts that all answered at some length."""
    measured = [*_sources(baselines, arm), arm.measurement]
    found = {}
    for i, answers in enumerate(zip(*(m.answers for m in measured), strict=False)):
        *base, own = (a.ms_per_token for a in answers)
        if own and all(base):
            found[i] = sum(base) / len(base), own
    return found


def _same(ours: Sequence[str], theirs: Sequence[str]) -> float | None:
    n = min(len(ours), len(theirs))
    return sum(a == b for a, b in zip(ours, theirs, strict=False)) / n if n else None


def close_call(baselines: Sequence[Measurement], arms: Sequence[Arm], least_gain: float) -> bool:
    """Whether a second baseline could change the answer: the best arm is near the threshold,
    or its interval holds it."""
    best = fastest(arms)
    if best is None or best.speedup is None or best.against is not None or len(baselines) > 1:
        return False
    near = 2 - _CLEAR_GAIN <= best.speedup.value <= _CLEAR_GAIN
    return near or best.speedup.low < least_gain <= best.speedup.high


def fastest(arms: Sequence[Arm]) -> Arm | None:
    """The arm with the highest speed-up among those that drafted and have nothing wrong."""
    fit = [a for a in arms if a.speedup and a.measurement.drafted and not a.measurement.findings]
    fit = [a for a in fit if not a.trial] or fit
    return max(fit, key=lambda a: a.speedup.value if a.speedup else 0.0, default=None)


def answer(
    workload: str,
    baselines: Sequence[Measurement],
    arms: Sequence[Arm],
    dropped: tuple[Dropped, ...],
    curves: Mapping[str, Mapping[int, Interval]],
    launches: int,
    seconds: float,
    complete: bool,
    least_gain: float,
    force: bool,
) -> Tuned:
    """The decision, with every arm compared to all baselines."""
    again = tuple(compared(a, baselines) for a in arms)
    sure = [a for a in again if _wins(a, least_gain) and not a.trial]
    best = fastest(sure) or fastest(again)  # one that surely wins before one that may
    reason = _reason(best, again, dropped, least_gain)
    wins = best is not None and _wins(best, least_gain)
    return Tuned(
        workload=workload,
        baseline=Arm(None, _merged(baselines)),
        arms=again,
        best=best if wins or (force and best is not None) else None,
        reason=f"{reason}, taken by --force" if force and best is not None and not wins else reason,
        dropped=dropped,
        curves=dict(curves),
        upper=_upper(baselines, again),
        launches=launches,
        seconds=seconds,
        complete=complete,
    )


def _upper(baselines: Sequence[Measurement], arms: Sequence[Arm]) -> float:
    """The gain of always having the best arm, over the prompts of the fastest one. Each arm
    counts by its ratio to its own baseline: they were measured at different times."""
    best = fastest(arms)
    if best is None:
        return 1.0
    base = {i: plain for i, (plain, _) in _pairs(baselines, best).items()}
    rows = [list(base.values())]
    for arm in arms:
        if not arm.measurement.findings:
            ratio = {i: own / plain for i, (plain, own) in _pairs(baselines, arm).items()}
            rows.append([ms * ratio.get(i, 1.0) for i, ms in base.items()])
    return oracle(rows)


def _merged(baselines: Sequence[Measurement]) -> Measurement:
    """Both baselines as one: answers of the second count too."""
    answers: tuple[Answer, ...] = tuple(a for b in baselines for a in b.answers)
    return replace(baselines[0], answers=answers)


def _wins(arm: Arm, least_gain: float) -> bool:
    return arm.speedup is not None and arm.speedup.value >= least_gain and arm.speedup.low >= 1.0


def _reason(
    best: Arm | None, arms: Sequence[Arm], dropped: Sequence[Dropped], least_gain: float
) -> str:
    if best is None or best.speedup is None:
        if dropped:
            return "; ".join(f"{d.what}: {d.why}" for d in dropped[:3])
        return _nothing(arms)
    s = best.speedup
    late = [f"{d.what}: {d.why}" for d in dropped if d.why.startswith(NO_TIME)]
    if late and best.trial and s.value < least_gain:
        return "; ".join(late[:3])
    slower = [f"{d.what}: {d.why}" for d in dropped if d.why.startswith(SLOWER)]
    if slower and s.value < least_gain:
        return "; ".join(slower[:3])
    # near the threshold two digits would say that it is reached
    value = f"{s.value:.3f}" if abs(s.value - least_gain) < 0.005 else f"{s.value:.2f}"
    measured = f"{best.label} is {value}x plain decoding ({s.low:.2f} to {s.high:.2f})"
    if _wins(best, least_gain):
        return measured
    if s.value >= least_gain:
        return f"{measured}: inside the noise"
    alpha = best.measurement.alpha
    said = f", although {alpha:.0%} of its drafts are accepted" if alpha and alpha > 0.6 else ""
    return f"{measured}{said}: under {least_gain:g}x it does not pay"


def _nothing(arms: Sequence[Arm]) -> str:
    if not arms:
        return "nothing was there to be measured"
    if any(a.measurement.drafted for a in arms):
        return "the answers are too short to show a speed"
    return "nothing was drafted"


def shorter_ngram(spec: Speculation) -> Speculation | None:
    """Half the n-gram lengths, which find more to copy; None when they are short already."""
    sizes = spec.ngram
    if sizes is None or sizes.n <= 3:
        return None
    half = NgramSizes(max(3, sizes.n // 2), max(4, sizes.m // 4), sizes.min_hits)
    return replace(spec, ngram=half)


def longer_ngram(spec: Speculation) -> Speculation | None:
    """Twice as long a copy; None when it is long already."""
    sizes = spec.ngram
    if sizes is None or sizes.m >= 128:
        return None
    return replace(spec, ngram=replace(sizes, m=2 * sizes.m))
