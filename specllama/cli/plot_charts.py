"""Figures drawn into matplotlib's axes, with the report's words and colours. Only imported where
matplotlib is installed."""

from __future__ import annotations

import math
import textwrap
from functools import singledispatch
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis

from specllama.cli.charts import (
    DASHES,
    DOT,
    FASTER,
    GRID,
    INK,
    LIGHT,
    SERIES,
    SLOWER,
    SOFT,
    Axis,
    Chart,
    HeatMap,
    IntervalChart,
    LineChart,
    Series,
    ShareChart,
)
from specllama.cli.shown import shown

_LONGEST = 46  # characters in a line of a panel's title
_MIN_ROWS = 3  # one alone would be a thick bar


def draw(chart: Chart, axes: Axes) -> None:
    """One panel with its title."""
    title = textwrap.wrap(shown(chart.title), _LONGEST, max_lines=2, placeholder=" …")
    axes.set_title("\n".join(title), color=LIGHT[INK])
    axes.tick_params(colors=LIGHT[SOFT], length=0, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LIGHT[SOFT])
    _draw(chart, axes)


def shortened(words: str, most: int) -> str:
    """The words as they can be shown, shortened in the middle if too long."""
    words = shown(words)
    if len(words) <= most:
        return words
    half = (most - 1) // 2
    return f"{words[:half]}…{words[-half:]}"


@singledispatch
def _draw(chart: Chart, axes: Axes) -> None:
    raise TypeError(chart)


@_draw.register
def _(chart: LineChart, axes: Axes) -> None:
    _x(axes, chart.x)
    _y(axes, chart.y)
    axes.grid(axis="y", color=LIGHT[GRID], linewidth=0.8)
    axes.set_axisbelow(True)
    for s in chart.series:
        _series(axes, s)
    for n in chart.notes:
        axes.annotate(
            n.words,
            (n.x, n.y),
            (0, 5),
            textcoords="offset points",
            ha="right" if n.end else "center",
            color=LIGHT[SOFT],
            fontsize=9,
        )
    axes.legend(loc="best")


def _series(axes: Axes, s: Series) -> None:
    colour = LIGHT[s.colour]
    name = shortened(s.name, 40) if s.name else "_nolegend_"
    x, y = [x for x, _ in s.points], [y for _, y in s.points]
    if s.band:
        axes.fill_between(
            [x for x, _, _ in s.band],
            [low for _, low, _ in s.band],
            [high for _, _, high in s.band],
            color=colour,
            alpha=0.14,
            linewidth=0,
        )
    for at, low, high in s.whiskers:
        axes.plot([at, at], [low, high], color=colour, marker="_", linewidth=1.3)
    marks: dict[str, Any] = {"marker": "o", "markersize": 5, "markeredgecolor": "white"}
    if s.style == DASHES:
        axes.plot(x, y, color=colour, linestyle=(0, (4, 3)), linewidth=1.6, label=name)
    elif s.style == DOT:
        marks["markersize"] = 8
        axes.plot(x, y, color=colour, linestyle="none", label=name, zorder=3, **marks)
    else:
        axes.plot(x, y, color=colour, linewidth=1.8, label=name, **marks)


@_draw.register
def _(chart: IntervalChart, axes: Axes) -> None:
    _x(axes, chart.x)
    axes.grid(axis="x", color=LIGHT[GRID], linewidth=0.8)
    axes.set_axisbelow(True)
    at, ends = [chart.reference] * 2, [-0.8, max(len(chart.rows), _MIN_ROWS) - 0.4]
    axes.plot(at, ends, color=LIGHT[SOFT], linestyle=(0, (4, 3)), linewidth=1.6)
    colour = LIGHT[SERIES[0]]
    named: set[bool] = set()
    for i, r in enumerate(chart.rows):
        low = max(0.0, r.low) if math.isfinite(r.low) else 0.0
        high = min(r.high, 1e3)
        axes.plot([low, high], [i, i], color=colour, linewidth=1.8 if r.measured else 0.9)
        name = "measured, 95% interval" if r.measured else "only predicted"
        axes.plot(
            [r.value],
            [i],
            linestyle="none",
            marker="o",
            markersize=8,
            color=colour,
            markerfacecolor=colour if r.measured else "white",
            label="_nolegend_" if r.measured in named else name,
            zorder=3,
        )
        named.add(r.measured)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        words = shortened(r.label, 42)
        side = axes.get_yaxis_transform()
        axes.text(0.0, i - 0.25, words, transform=side, va="bottom", fontsize=9, bbox=box)
        axes.text(
            1.0, i - 0.25, f"{r.value:.2f}x", transform=side, va="bottom", ha="right", bbox=box
        )
    _rows(axes, len(chart.rows))


@_draw.register
def _(chart: HeatMap, axes: Axes) -> None:
    from matplotlib.patches import Patch, Rectangle

    axes.set_xlim(0, len(chart.columns))
    axes.set_ylim(len(chart.rows), -0.11 * len(chart.rows))  # the legend is above the cells
    axes.set_xticks([i + 0.5 for i in range(len(chart.columns))], [str(m) for m in chart.columns])
    axes.set_yticks([j + 0.5 for j in range(len(chart.rows))], [str(n) for n in chart.rows])
    axes.set_xlabel(chart.column_label, color=LIGHT[SOFT])
    axes.set_ylabel(chart.row_label, color=LIGHT[SOFT])
    axes.spines["bottom"].set_visible(False)
    outlines = []
    for j, n in enumerate(chart.rows):
        for i, m in enumerate(chart.columns):
            if (value := chart.cells.get((n, m))) is None:
                continue
            fill, ink = chart.fill(value)
            best = (n, m) == chart.best
            axes.add_patch(Rectangle((i, j), 1, 1, facecolor=fill, edgecolor="white"))
            words = axes.text(i + 0.5, j + 0.5, f"{value:.2f}", ha="center", va="center")
            words.set(color=ink, fontsize=8, fontweight="bold" if best else "normal")
            if best or (n, m) in chart.measured:
                style = "-" if best else "--"
                outlines.append(
                    Rectangle(
                        (i, j),
                        1,
                        1,
                        fill=False,
                        edgecolor=LIGHT[INK],
                        linestyle=style,
                        linewidth=1.8,
                    )
                )
    for o in outlines:
        axes.add_patch(o)
    red, green = ("#{:02x}{:02x}{:02x}".format(*rgb) for rgb in (SLOWER, FASTER))
    key = [
        Patch(color=red, label="slower"),
        Patch(color=green, label="faster"),
        Patch(fill=False, edgecolor=LIGHT[INK], label="best predicted"),
    ]
    if chart.measured:
        key.append(Patch(fill=False, edgecolor=LIGHT[INK], linestyle="--", label="measured"))
    spacing = {"columnspacing": 1, "handlelength": 1.2}
    axes.legend(handles=key, loc="upper left", bbox_to_anchor=(-0.03, 1.02), ncols=4, **spacing)


@_draw.register
def _(chart: ShareChart, axes: Axes) -> None:
    _x(axes, chart.x)
    axes.set_axisbelow(True)
    at = range(len(chart.rows))
    first = [100 * share for _, share in chart.rows]
    rest = [100 - share for share in first]
    axes.barh(at, first, 0.35, color=LIGHT[SERIES[1]], label=chart.parts[0])
    axes.barh(at, rest, 0.35, first, color=LIGHT[SERIES[0]], label=chart.parts[1])
    for i, (label, share) in enumerate(chart.rows):
        axes.text(0, i - 0.25, shortened(label, 40), va="bottom", fontsize=9)
        axes.text(100, i - 0.25, f"{share:.0%} / {1 - share:.0%}", va="bottom", ha="right")
    _rows(axes, len(chart.rows))


def _rows(axes: Axes, rows: int) -> None:
    """A position for each row, 0 at the top, with the legend above them."""
    rows = max(rows, _MIN_ROWS)
    axes.set_ylim(rows - 0.4, -0.8 - 0.13 * (rows + 0.4))
    axes.set_yticks([])
    axes.legend(loc="upper left", bbox_to_anchor=(-0.03, 1.02), ncols=2, columnspacing=1)


def _x(axes: Axes, a: Axis) -> None:
    if a.log:
        axes.set_xscale("log", base=2)
    axes.set_xlim(a.low, a.high)
    _ticks(axes.xaxis, a)


def _y(axes: Axes, a: Axis) -> None:
    if a.log:
        axes.set_yscale("log", base=2)
    axes.set_ylim(a.low, a.high)
    _ticks(axes.yaxis, a)


def _ticks(drawn: XAxis | YAxis, a: Axis) -> None:
    drawn.set_ticks(list(a.ticks), labels=[a.number.format(v) for v in a.ticks])
    drawn.set_ticks([], minor=True)
    drawn.set_label_text(a.label, color=LIGHT[SOFT])
