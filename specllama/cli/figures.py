"""probe's figures: what each shows, with one sentence about it. The report, --plot and the
terminal draw them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specllama.cli.charts import (
    DASHES,
    DOT,
    INK,
    SERIES,
    SOFT,
    Axis,
    Chart,
    HeatMap,
    IntervalChart,
    IntervalRow,
    LineChart,
    Note,
    Series,
    ShareChart,
    decades,
    doublings,
    ticks,
    whole,
)
from specllama.cli.measured_settings import (
    best_sizes,
    few_sizes,
    map_name,
    measured_lengths,
    measured_sizes,
    speedup_grid,
)
from specllama.cli.tuning_lines import interval_text

if TYPE_CHECKING:
    from specllama.engine.settings import NgramSizes
    from specllama.tuning.confidence import Interval
    from specllama.tuning.records import Confirmation, NgramSpeedups, Trial, TuningResult

_MAX_SERIES = len(SERIES)
_MAX_ROWS = 10  # settings in one figure
_LABELLED = 12  # points of one line that get their number
_MIN_CELLS = 2  # of a heat map
_PLAIN = "plain decoding"


def tuning_charts(t: TuningResult, usual: NgramSizes | None = None) -> list[Chart]:
    """All that there is data for. `usual`: the workload's own n-gram sizes."""
    return [
        *_settings(t),
        *_lengths(t),
        *_verification(t),
        *_acceptance(t),
        *_ngrams(t, usual),
        *_split(t),
    ]


def _settings(t: TuningResult) -> Iterator[Chart]:
    """The speed-up of each setting: those measured, then what was only predicted."""
    from specllama.tuning.records import setting_label

    measured = sorted(t.confirmations, key=lambda a: -a.speedup.value)
    rows = [_row(a.label, a.speedup, True) for a in measured]
    labels = {r.label for r in rows}
    known = [
        p for p in t.predictions if len(p.ratios) and setting_label(p.speculation) not in labels
    ]
    best = sorted(known, key=lambda p: -p.ratios.value)
    rows += [_row(setting_label(p.speculation), p.speedup, False) for p in best]
    if not rows:
        return
    rows = rows[:_MAX_ROWS]
    low, high = _speed_range([(r.value, r.low, r.high) for r in rows])
    axis = Axis("speed-up over plain decoding", low, high, ticks(low, high), _times(low, high))
    yield IntervalChart("Speed-up by setting", _settings_caption(t, measured, rows), axis, rows)


def _row(label: str, i: Interval, measured: bool) -> IntervalRow:
    return IntervalRow(label, i.value, i.low, i.high, measured)


def _settings_caption(
    t: TuningResult, measured: Sequence[Confirmation], rows: Sequence[IntervalRow]
) -> str:
    if t.best is not None:
        return f"{t.best.label} is the fastest setting at {interval_text(t.best.speedup)}."
    if measured:
        return (
            f"No setting is reliably faster than plain decoding; the fastest one measured is "
            f"{measured[0].label} at {interval_text(measured[0].speedup)}."
        )
    top = max(rows, key=lambda r: r.value)
    if top.value <= 1:
        return "No setting is predicted to be faster than plain decoding."
    return f"{top.label} is predicted to be fastest at {top.value:.2f}x, which was not confirmed."


def _speed_range(values: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The ends of an axis for (value, low, high). Wide intervals are cut off: the values are
    what is to be seen."""
    middles = [v for v, _, _ in values]
    ends = [e for v in values for e in v if math.isfinite(e)]
    low = max(0.0, min([*middles, 1.0]) - 0.4, min([*ends, 1.0]) - 0.05)
    high = min(max([*middles, 1.0]) + 0.6, max([*ends, 1.0]) + 0.1)
    return low, high


def _times(low: float, high: float) -> str:
    return "{:.2f}x" if high - low < 1 else "{:.1f}x"


def _verification(t: TuningResult) -> Iterator[Chart]:
    """V(b) against b, with b plain steps beside it."""
    if t.baseline is None or not t.baseline.costs.known:
        return
    costs = t.baseline.costs
    one, sizes = costs.plain_step.ms, sorted(costs.verify)
    points = [(float(b), costs.verify[b]) for b in sizes]
    low, high = min(ms for _, ms in points) / 1.3, max(ms for _, ms in points) * 1.7
    together = f", {costs.slots} requests together" if costs.slots > 1 else ""
    best = t.best.speculation if t.best else None
    drafted = max(2, best.n_max) if best is not None and best.uses_draft else 4
    b = next((x for x in (drafted + 1, 5, 2) if costs.of(x) is not None), 1)
    steps = (costs.of(b) or costs.step) / costs.step
    each = f" for each of {costs.slots} requests" if costs.slots > 1 else ""
    yield LineChart(
        "Cost of verification",
        f"Verifying {b} tokens{each} takes as long as {steps:.1f} plain decoding steps, so a draft "
        f"of {_tokens(b - 1)} pays off only with more than {max(0.0, steps - 1):.1f} accepted tokens on "
        "average, not counting the time to draft them.",
        Axis(
            f"tokens verified in one pass{together}",
            1,
            sizes[-1] * 1.1,
            doublings(1, sizes[-1]),
            log=True,
        ),
        Axis("time (ms)", low, high, decades(low, high), log=True),
        (
            Series("one pass that verifies them", SERIES[0], points),
            Series(
                "as many plain decoding steps",
                SOFT,
                [(1, one), (sizes[-1], one * sizes[-1])],
                DASHES,
            ),
        ),
    )


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n} tokens"


def _lengths(t: TuningResult) -> Iterator[Chart]:
    """Speed-up against K: predicted as a line with its interval, measured as points."""
    from specllama.tuning.records import method_label

    shown = [x for x in t.trials if x.curve][:_MAX_SERIES]
    if not shown:
        return
    points = {k: i for x in shown for k, i in measured_lengths(x, t.confirmations).items()}
    every = [i for x in shown for i in x.curve.values()] + list(points.values())
    low, high = _speed_range([(i.value, i.low, i.high) for i in every])
    most = max(k for x in shown for k in [*x.curve, *points])
    series = [
        Series(
            f"{method_label(x.speculation)}, predicted",
            colour,
            [(k, i.value) for k, i in sorted(x.curve.items())],
            band=_ends(x.curve),
        )
        for x, colour in zip(shown, SERIES, strict=False)
    ]
    if points:
        dots = [(k, i.value) for k, i in sorted(points.items())]
        series.append(Series("measured on other prompts", INK, dots, DOT, whiskers=_ends(points)))
    ends = (0.5, most + 0.5)
    series.append(Series("", SOFT, [(x, 1.0) for x in ends], DASHES))
    yield LineChart(
        "Speed-up by draft length",
        _lengths_caption(t, shown),
        Axis("draft length K (tokens)", *ends, whole(most)),
        Axis("speed-up over plain decoding", low, high, ticks(low, high), _times(low, high)),
        series,
        (Note(most + 0.45, 1.0, _PLAIN, end=True),),
    )


def _ends(found: Mapping[int, Interval]) -> list[tuple[float, float, float]]:
    return [(k, i.low, min(i.high, 1e3)) for k, i in sorted(found.items())]


def _lengths_caption(t: TuningResult, shown: Sequence[Trial]) -> str:
    from specllama.tuning.records import method_label

    x = max(shown, key=lambda x: max(i.value for i in x.curve.values()))
    k = max(x.curve, key=lambda k: x.curve[k].value)
    name, best = method_label(x.speculation), x.curve[k]
    if best.value <= 1:
        return (
            "No draft length is predicted to be faster than plain decoding; the closest is "
            f"K={k} of {name} at {interval_text(best)}."
        )
    text = f"{name} is predicted to be fastest with K={k} at {interval_text(best)}"
    measured = measured_lengths(x, t.confirmations)
    if not measured:
        return f"{text}, which was not measured on other prompts."
    at = k if k in measured else min(measured, key=lambda m: abs(m - k))
    where = "" if at == k else f" with K={at}"
    return f"{text} and measures {interval_text(measured[at])}{where} on other prompts."


def _acceptance(t: TuningResult) -> Iterator[Chart]:
    """a_i by position: of each draft's launch, and of n-grams that were measured."""
    from specllama.tuning.records import method_label

    found = [(method_label(x.speculation), x.measurement.log.acceptance) for x in t.trials]
    found += [
        (a.label, a.measurement.log.acceptance) for a in t.confirmations if a.speculation.uses_ngram
    ]
    shown = [(name, a) for name, a in found if a][:_MAX_SERIES]
    if not shown:
        return
    most = max(len(a) for _, a in shown)
    series = [
        Series(name, colour, [(i, 100 * v) for i, v in enumerate(a, 1)])
        for (name, a), colour in zip(shown, SERIES, strict=False)
    ]
    name, a = shown[0]
    notes = []
    if len(shown) == 1 and len(a) <= _LABELLED:
        notes = [Note(i, 100 * v, f"{v:.0%}") for i, v in enumerate(a, 1)]
    every = "both" if len(a) == 2 else f"all {len(a)}"
    all_of_it = f" and {every} in {a[-1]:.0%}" if len(a) > 1 else ""
    yield LineChart(
        "Acceptance rate by position",
        f"The first token drafted by {name} is accepted in {a[0]:.0%} of verify steps{all_of_it}.",
        Axis("position in the draft (tokens)", 0.5, most + 0.5, whole(most)),
        Axis("drafts accepted up to this position", 0, 112, (0, 25, 50, 75, 100), "{:g}%"),
        series,
        notes,
    )


def _ngrams(t: TuningResult, usual: NgramSizes | None) -> Iterator[Chart]:
    """A heat map of each n-gram type that would have drafted anything."""
    for m in t.ngrams:
        if len(m.speedups) < _MIN_CELLS or all(abs(v - 1) < 0.005 for v in m.speedups.values()):
            continue
        measured = measured_sizes(m, t.confirmations)
        ns, ms, cells = speedup_grid(m)
        best = best_sizes(m)
        outlined = (*measured, (best.n, best.m))
        yield HeatMap(
            f"Speed-up by n-gram size: {map_name(m)}",
            _ngrams_caption(m, measured, usual),
            "n: tokens looked up",
            "m: tokens drafted",
            few_sizes(ns, [n for n, _ in outlined]),
            few_sizes(ms, [m for _, m in outlined]),
            cells,
            (best.n, best.m),
            frozenset(measured),
        )


def _ngrams_caption(
    m: NgramSpeedups, measured: Mapping[tuple[int, int], Interval], usual: NgramSizes | None
) -> str:
    best = best_sizes(m)
    value = m.speedups[best]
    if value <= 1:
        return f"No size of {map_name(m)} is predicted to be faster than plain decoding."
    text = f"{map_name(m)} is predicted to be fastest with n={best.n} m={best.m} at {value:.2f}x"
    there = [v for s, v in m.speedups.items() if usual and (s.n, s.m) == (usual.n, usual.m)]
    if usual is not None and there and (usual.n, usual.m) != (best.n, best.m):
        text += f", against {max(there):.2f}x with the workload's default n={usual.n} m={usual.m}"
    if not measured:
        return f"{text}."
    (n, drafted), i = max(measured.items(), key=lambda x: x[1].value)
    where = "" if (n, drafted) == (best.n, best.m) else f" with n={n} m={drafted}"
    return f"{text}, and measures {interval_text(i)}{where} on other prompts."


def _split(t: TuningResult) -> Iterator[Chart]:
    """Of each arm's decoding time, the share spent drafting and the rest, verifying."""
    found = [(a, a.split.draft_share) for a in t.confirmations if a.split is not None]
    shown = [(a, share) for a, share in found if share is not None][:_MAX_ROWS]
    if not shown:
        return
    confirmation, share = max(shown, key=lambda x: x[0].speedup.value)
    yield ShareChart(
        "Where decoding time goes",
        f"{confirmation.label} spends {share:.0%} of its decoding time on drafting and {1 - share:.0%} on "
        "verification.",
        Axis("share of decoding time", 0, 100, (0, 25, 50, 75, 100), "{:g}%"),
        ("drafting", "verification"),
        [(a.label, share) for a, share in shown],
    )
