"""The figures of probe's report: each an SVG with one sentence that says what it shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specllama.cli import svg
from specllama.cli.probe_plots import best_sizes, grid, map_name, measured_lengths, measured_sizes
from specllama.cli.tuning_lines import interval

if TYPE_CHECKING:
    from specllama.engine.settings import NgramSizes
    from specllama.tuning.arms import NgramSpeedups, Trial, TuningResult
    from specllama.tuning.confidence import Interval

_MOST_SERIES = 6
_LABELLED = 16  # points of one line that get their number
_LEAST_CELLS = 2  # of a heat map
_LEAST_SPAN = 0.3  # away from 1 at which a cell has its full colour


@dataclass(frozen=True)
class Figure:
    title: str
    svg: str
    says: str


def figures(t: TuningResult, usual: NgramSizes | None = None) -> list[Figure]:
    """All that there is data for. `usual`: the workload's own n-gram sizes."""
    return [
        *_verifying(t),
        *_speed(t),
        *_acceptance(t),
        *_ngrams(t, usual),
        *_split(t),
    ]


def _verifying(t: TuningResult) -> Iterator[Figure]:
    """V(b) against b, with b plain steps beside it."""
    if t.plain is None or not t.plain.costs.known:
        return
    costs = t.plain.costs
    one, sizes = costs.plain.ms, sorted(costs.verify)
    found = [(float(b), costs.verify[b]) for b in sizes]
    low, high = min(ms for _, ms in found), max(ms for _, ms in found)
    together = f", {costs.slots} requests together" if costs.slots > 1 else ""
    plot = svg.Plot(
        (1, sizes[-1] * 1.1),
        (low / 1.3, high * 1.7),
        f"tokens verified in one pass{together}",
        "ms",
        log=True,
        legend=[
            ("one pass that verifies them", svg.COLOURS[0], svg.LINE),
            ("as many plain steps", svg.SOFT, svg.DASHES),
        ],
    )
    plot.axes(svg.doublings(1, sizes[-1]), _times(low / 1.3, high * 1.7), "")
    plot.path([(1, one), (sizes[-1], one * sizes[-1])], svg.SOFT, svg.DASHES)
    plot.path(found, svg.COLOURS[0])
    plot.dots(found, svg.COLOURS[0])
    best = t.best.speculation if t.best else None
    drafted = best.n_max if best is not None and best.uses_draft else 4
    b = next((x for x in (drafted + 1, 5, 2) if costs.of(x) is not None), 1)
    steps = (costs.of(b) or costs.step) / costs.step
    bounds = [(x * costs.step / ms, x) for x in range(2, costs.longest + 1) if (ms := costs.of(x))]
    most, at = max(bounds, default=(1.0, 1))
    each = f" of each of {costs.slots} requests" if costs.slots > 1 else ""
    gap = "by the gap to the dashed line " if costs.slots == 1 else ""
    yield Figure(
        "What verifying costs",
        plot.draw("time of a pass against the tokens it verifies"),
        f"Verifying {b} tokens{each} takes as long as {steps:.1f} plain steps, so that a draft of "
        f"{b - 1} pays only if more than {max(0.0, steps - 1):.1f} of its tokens are accepted on "
        f"average, its own time not counted; {gap}at most {most:.1f}x can be gained, by a draft of "
        f"{at - 1} that is always right and costs nothing.",
    )


def _times(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … ms within a range; whole numbers only where they suffice."""
    found = [f * 10.0**e for e in range(-2, 6) for f in (1, 2, 5) if low <= f * 10.0**e <= high]
    return found or [low]


def _speed(t: TuningResult) -> Iterator[Figure]:
    """Speed-up against K: predicted as a line with its interval, measured as points."""
    shown = [x for x in t.trials if x.curve][:_MOST_SERIES]
    if not shown:
        return
    points = {k: i for x in shown for k, i in measured_lengths(x, t.arms).items()}
    every = [i for x in shown for i in x.curve.values()] + list(points.values())
    values = [i.value for i in every]
    # wide intervals are cut off: the curve is what is to be seen
    ends = [e for i in every for e in (i.low, i.high) if math.isfinite(e)]
    low = max(0.0, min([*values, 1.0]) - 0.4, min([*ends, *values, 1.0]) - 0.05)
    high = min(max([*values, 1.0]) + 0.6, max([*ends, *values, 1.0]) + 0.1)
    most = max(k for x in shown for k in [*x.curve, *points])
    plot = svg.Plot(
        (0.5, most + 0.5),
        (low, high),
        "draft length K",
        "speed-up",
        legend=[
            (f"{_way(x)}, predicted", c, svg.LINE) for x, c in zip(shown, svg.COLOURS, strict=False)
        ] + ([("measured on other prompts", svg.INK, svg.DOT)] if points else []),
    )  # fmt: skip
    plot.axes(_whole(most), svg.ticks(low, high), "x", digits=2 if high - low < 1 else 1)
    plot.path([(0.5, 1), (most + 0.5, 1)], svg.SOFT, svg.DASHES)
    for x, colour in zip(shown, svg.COLOURS, strict=False):
        ks = sorted(x.curve)
        plot.band([(k, x.curve[k].low, min(x.curve[k].high, 1e3)) for k in ks], colour)
        plot.path([(k, x.curve[k].value) for k in ks], colour)
        plot.dots([(k, x.curve[k].value) for k in ks], colour)
    for k, i in points.items():
        plot.whisker(k, i.low, min(i.high, 1e3))
        plot.dots([(k, i.value)], svg.INK, 5)
    plot.note(most + 0.4, 1.0, "plain", svg.SOFT, "end")
    yield Figure("Speed-up by draft length", plot.draw("speed-up against K"), _says(t, shown))


def _says(t: TuningResult, shown: list[Trial]) -> str:
    x = max(shown, key=lambda x: max(i.value for i in x.curve.values()))
    k = max(x.curve, key=lambda k: x.curve[k].value)
    answers, found = len(x.measurement.answers), x.curve[k]
    if found.value <= 1:
        return (
            f"No length is predicted to be faster than plain decoding: K={k} comes nearest with "
            f"{interval(found)}, from {answers} answers of {_way(x)}."
        )
    said = f"K={k} of {_way(x)} is predicted best with {interval(found)}, from {answers} answers"
    measured = measured_lengths(x, t.arms)
    if not measured:
        return f"{said}; no length was measured on other prompts."
    at = k if k in measured else min(measured, key=lambda m: abs(m - k))
    where = "there" if at == k else f"at K={at}"
    return f"{said}; measured {where} on other prompts it is {interval(measured[at])}."


def _acceptance(t: TuningResult) -> Iterator[Figure]:
    """a_i by position: of each draft's launch, and of n-grams that were measured."""
    found = [(_way(x), x.measurement.log.acceptance) for x in t.trials]
    found += [(a.label, a.measurement.log.acceptance) for a in t.arms if a.speculation.uses_ngram]
    shown = [(name, a) for name, a in found if a][:_MOST_SERIES]
    if not shown:
        return
    most = max(len(a) for _, a in shown)
    plot = svg.Plot(
        (0.5, most + 0.5),
        (0, 1.05),
        "position in the draft",
        "share of drafts accepted up to here",
        legend=[(name, c, svg.LINE) for (name, _), c in zip(shown, svg.COLOURS, strict=False)],
        height=270,
    )
    plot.axes(_whole(most), [0.0, 0.25, 0.5, 0.75, 1.0], "", digits=2)
    for (_, a), colour in zip(shown, svg.COLOURS, strict=False):
        points = [(i + 1.0, v) for i, v in enumerate(a)]
        plot.path(points, colour)
        plot.dots(points, colour)
        if len(shown) == 1 and len(points) <= _LABELLED:
            for x, v in points:
                plot.note(x, v, f"{v:.2f}")
    name, a = shown[0]
    all_of_it = f", all {len(a)} in {a[-1]:.0%}" if len(a) > 1 else ""
    others = "".join(f"; {n}: {v[0]:.0%} and {v[-1]:.0%}" for n, v in shown[1:])
    yield Figure(
        "Acceptance by position",
        plot.draw("acceptance against the position in the draft"),
        f"The first drafted token of {name} is accepted in {a[0]:.0%} of the steps{all_of_it}{others}.",
    )


def _whole(most: int) -> list[float]:
    """Positions to number: all, or about twelve of them."""
    step = max(1, math.ceil(most / 16))
    return [float(k) for k in range(1, most + 1) if step == 1 or k % step == 0 or k == 1]


def _ngrams(t: TuningResult, usual: NgramSizes | None) -> Iterator[Figure]:
    """A heat map of each n-gram type that would have drafted anything."""
    for m in t.maps:
        if len(m.speeds) >= _LEAST_CELLS and any(abs(v - 1) >= 0.005 for v in m.speeds.values()):
            measured = measured_sizes(m, t.arms)
            yield Figure(
                f"n-gram sizes: {map_name(m)}", _heat(m, measured), _heat_says(m, measured, usual)
            )


def _heat(m: NgramSpeedups, measured: Collection[tuple[int, int]]) -> str:
    """A cell for each n and m; the best in a frame, what was measured in a dashed one."""
    ns, ms, cells = grid(m)
    best, left, top, row = best_sizes(m), 40.0, 24.0, 24.0
    width = min(46.0, (svg.WIDTH - left - 8) / len(ms))
    out = [svg.text(left, 14, "m, tokens drafted →", svg.SOFT), svg.text(4, 38, "n ↓", svg.SOFT)]
    out += [
        svg.text(left + (i + 0.5) * width, top + 14, str(drafted), svg.SOFT, "middle")
        for i, drafted in enumerate(ms)
    ]
    span = max(_LEAST_SPAN, *(abs(v - 1) for v in cells.values()))
    marked: list[str] = []
    for j, n in enumerate(ns):
        y = top + 20 + j * row
        out.append(svg.text(left - 8, y + 16, str(n), svg.SOFT, "end"))
        for i, drafted in enumerate(ms):
            if (value := cells.get((n, drafted))) is None:
                continue
            x = left + i * width
            fill, ink = _colour(value, span)
            out.append(svg.rect(x + 1, y + 1, width - 2, row - 2, fill))
            chosen = (n, drafted) == (best.n, best.m)
            weight = "bold" if chosen else ""
            out.append(svg.text(x + width / 2, y + 16, f"{value:.2f}", ink, "middle", weight))
            if chosen or (n, drafted) in measured:
                dashes = "" if chosen else ' stroke-dasharray="4 2"'
                frame = f'stroke="{svg.INK}" stroke-width="2.5"{dashes}'
                marked.append(svg.rect(x, y, width, row, "none", frame))
    height = top + 26 + row * len(ns)
    return svg.svg([*out, *marked], height, f"speed-up by n and m, {map_name(m)}")


_ON_LIGHT = "#1f2937"  # a cell is light in a dark theme too


def _colour(value: float, span: float) -> tuple[str, str]:
    """(fill, ink): white at 1, greener above, redder below."""
    share = min(1.0, abs(value - 1) / span)
    full = (5, 122, 85) if value >= 1 else (200, 70, 60)
    r, g, b = (round(247 + (c - 247) * share) for c in full)
    return f"#{r:02x}{g:02x}{b:02x}", "#ffffff" if share > 0.8 else _ON_LIGHT


def _heat_says(
    m: NgramSpeedups, measured: Mapping[tuple[int, int], Interval], usual: NgramSizes | None
) -> str:
    best = best_sizes(m)
    value = m.speeds[best]
    if value <= 1:
        return f"No sizes of {map_name(m)} are predicted to be faster than plain decoding."
    said = (
        f"{map_name(m)} is predicted best where {best.n} tokens are looked up and {best.m} "
        f"drafted: {value:.2f}x plain decoding"
    )
    there = [v for s, v in m.speeds.items() if usual and (s.n, s.m) == (usual.n, usual.m)]
    if usual is not None and there and (usual.n, usual.m) != (best.n, best.m):
        said += f", against {max(there):.2f}x with the workload's usual {usual.n} and {usual.m}"
    for (n, drafted), i in measured.items():
        at = "there" if (n, drafted) == (best.n, best.m) else f"at n={n} m={drafted} (dashed)"
        said += f"; measured {at} on other prompts it is {interval(i)}"
    return f"{said}."


def _split(t: TuningResult) -> Iterator[Figure]:
    """Of each arm's decoding time, the share spent drafting and the rest, verifying."""
    found = [(a, a.split.draft_share) for a in t.arms if a.split is not None]
    shown = [(a, share) for a, share in found if share is not None]
    if not shown:
        return
    out, width, each = [], svg.WIDTH - 8.0, 46.0
    for i, (arm, share) in enumerate(shown):
        top = 4 + i * each
        out.append(svg.text(4, top + 12, svg.cut(arm.label, 400)))
        out.append(
            svg.text(
                svg.WIDTH - 4,
                top + 12,
                f"{share:.0%} drafting, {1 - share:.0%} verifying",
                svg.SOFT,
                "end",
            )
        )
        out.append(svg.rect(4, top + 18, width, 16, "#bfdbfe"))
        out.append(svg.rect(4, top + 18, share * width, 16, svg.COLOURS[1]))
    arm, share = max(shown, key=lambda x: x[0].speedup.value)
    yield Figure(
        "Where decoding time goes",
        svg.svg(out, 8 + each * len(shown), "share of decoding time spent drafting"),
        f"{arm.label} spends {share:.0%} of its decoding time on drafting (orange) and "
        f"{1 - share:.0%} on verifying (blue).",
    )


def _way(x: Trial) -> str:
    from specllama.tuning.arms import way

    return way(x.speculation)
