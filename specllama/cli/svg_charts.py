"""Figures as SVG, for the report."""

from __future__ import annotations

import math
import zlib
from functools import singledispatch
from html import escape

from specllama.cli.charts import (
    DASHES,
    DOT,
    FASTER,
    INK,
    SAME,
    SERIES,
    SLOWER,
    SOFT,
    Chart,
    HeatMap,
    IntervalChart,
    LineChart,
    Series,
    ShareChart,
)
from specllama.cli.shown import shown
from specllama.cli.svg import (
    DASHED,
    ROW,
    SIZE,
    WIDTH,
    Frame,
    cut_to_width,
    dot,
    outline,
    paint,
    rect,
    svg_line,
    swatch,
    text,
)


def svg(chart: Chart, name: str = "") -> str:
    """The chart, with its title and caption for screen readers. `name`: unique on the page."""
    height, parts = _drawn(chart)
    name = name or f"f{zlib.crc32(''.join(parts).encode('utf-8', 'replace'))}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-size="{SIZE:g}" '
        f'aria-labelledby="{name}-t {name}-d" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-t">{escape(shown(chart.title))}</title>'
        f'<desc id="{name}-d">{escape(shown(chart.caption))}</desc>'
        f"{''.join(parts).replace('%CLIP%', name + '-c')}</svg>"
    )


@singledispatch
def _drawn(chart: Chart) -> tuple[float, list[str]]:
    """(height, elements)."""
    raise TypeError(chart)


@_drawn.register
def _(chart: LineChart) -> tuple[float, list[str]]:
    legend = [s for s in chart.series if s.name]
    top = 30.0 + ROW * len(legend)
    frame = Frame(52, WIDTH - 12, top, top + 200, chart.x, chart.y)
    for i, s in enumerate(legend):
        y = 4 + ROW * i
        frame.parts.append(swatch(4, y + 6, s.colour, s.style))
        frame.parts.append(text(32, y + 11, cut_to_width(s.name, WIDTH - 40)))
    frame.grid()
    inside: list[str] = []
    for s in chart.series:
        inside += _series(frame, s)
    frame.clipped(inside)
    for n in chart.notes:
        y = min(max(frame.py(n.y) - 8, top + 10), frame.floor - 6)
        anchor = "end" if n.end else "middle"
        frame.parts.append(text(frame.px(n.x), y, n.words, SOFT, anchor, halo=True))
    return frame.floor + 46, frame.parts


def _series(f: Frame, s: Series) -> list[str]:
    out, colour = [], paint(s.colour)
    where = [f"{f.px(x):.1f},{f.py(y):.1f}" for x, y in s.points]
    if s.band:
        upper = [f"{f.px(x):.1f},{f.py(high):.1f}" for x, _, high in s.band]
        lower = [f"{f.px(x):.1f},{f.py(low):.1f}" for x, low, _ in reversed(s.band)]
        points = " ".join(upper + lower)
        out.append(f'<polygon points="{points}" fill="{colour}" opacity="0.14"/>')
    if s.style != DOT:
        dashes = f" {DASHED}" if s.style == DASHES else ""
        out.append(
            f'<polyline points="{" ".join(where)}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{dashes}/>'
        )
    for x, low, high in s.whiskers:
        at, up, down = f.px(x), f.py(high), f.py(low)
        out.append(svg_line(at, down, at, up, s.colour, 'stroke-width="1.5"'))
        out += [svg_line(at - 4, y, at + 4, y, s.colour, 'stroke-width="1.5"') for y in (up, down)]
    if s.style != DASHES:
        r = 5 if s.style == DOT else 3.5
        out += [dot(f.px(x), f.py(y), r, s.colour) for x, y in s.points]
    return out


@_drawn.register
def _(chart: IntervalChart) -> tuple[float, list[str]]:
    each, top = 40.0, 30.0
    frame = Frame(24, WIDTH - 24, top, top + each * len(chart.rows) + 6, chart.x)
    frame.parts += [dot(11, 11, 5, SERIES[0]), text(24, 15, "measured, 95% interval")]
    if any(not r.measured for r in chart.rows):
        frame.parts += [dot(231, 11, 5, SERIES[0], False), text(244, 15, "only predicted")]
    frame.grid(vertical=True)
    at = frame.px(chart.reference)
    inside = [svg_line(at, top, at, frame.floor, SOFT, f'stroke-width="2" {DASHED}')]
    labels = []
    for i, r in enumerate(chart.rows):
        y = top + each * i + 30
        low = max(0.0, r.low) if math.isfinite(r.low) else chart.x.low
        high = min(r.high, 1e3)
        width = 'stroke-width="2"' if r.measured else 'stroke-width="1.5" opacity="0.6"'
        inside.append(svg_line(frame.px(low), y, frame.px(high), y, SERIES[0], width))
        inside.append(dot(frame.px(r.value), y, 5, SERIES[0], r.measured))
        words = f"{r.value:.2f}x"
        labels.append(text(WIDTH - 4, y - 12, words, INK, "end", r.measured, halo=True))
        labels.append(text(4, y - 12, cut_to_width(r.label, WIDTH - 100), halo=True))
    frame.clipped(inside)
    return frame.floor + 46, frame.parts + labels


@_drawn.register
def _(chart: HeatMap) -> tuple[float, list[str]]:
    left, top, row = 36.0, 50.0, 24.0
    width = min(42.0, (WIDTH - left - 4) / max(1, len(chart.columns)))
    out = _heat_key(chart)
    out.append(text(4, top + 14, "n\\m", SOFT))
    out += [
        text(left + (i + 0.5) * width, top + 14, str(m), SOFT, "middle")
        for i, m in enumerate(chart.columns)
    ]
    marked = []
    for j, n in enumerate(chart.rows):
        y = top + 20 + j * row
        out.append(text(left - 8, y + 17, str(n), SOFT, "end"))
        for i, m in enumerate(chart.columns):
            if (value := chart.cells.get((n, m))) is None:
                continue
            x = left + i * width
            fill, ink = chart.fill(value)
            best = (n, m) == chart.best
            out.append(rect(x + 1, y + 1, width - 2, row - 2, fill))
            out.append(text(x + width / 2, y + 17, f"{value:.2f}", ink, "middle", best))
            if best or (n, m) in chart.measured:
                marked.append(outline(x, y, width, row, best))
    below = top + 20 + row * len(chart.rows)
    words = f"{chart.row_label}, {chart.column_label}"
    out.append(text(left, below + 18, words, SOFT))
    return below + 26, out + marked


def _heat_key(chart: HeatMap) -> list[str]:
    """Two lines: colours, and outlines."""
    out = []
    for x, rgb, words in ((4.0, SLOWER, "slower than plain decoding"), (222.0, FASTER, "faster")):
        out += [rect(x, 2, 14, 12, "rgb({},{},{})".format(*rgb)), text(x + 20, 13, words)]
    same = "rgb({},{},{})".format(*SAME)
    out += [rect(4, 22, 16, 14, same), outline(4, 22, 16, 14, True), text(24, 33, "best predicted")]
    if chart.measured:
        out += [rect(222, 22, 16, 14, same), outline(222, 22, 16, 14, False)]
        out.append(text(242, 33, "measured"))
    return out


@_drawn.register
def _(chart: ShareChart) -> tuple[float, list[str]]:
    each, top = 46.0, 28.0
    frame = Frame(24, WIDTH - 24, top, top + each * len(chart.rows) + 4, chart.x)
    for x, colour, name in zip((4.0, 120.0), (SERIES[1], SERIES[0]), chart.parts, strict=True):
        frame.parts += [rect(x, 2, 14, 12, colour), text(x + 20, 13, name)]
    frame.grid(vertical=True)
    for i, (label, share) in enumerate(chart.rows):
        y = top + each * i
        frame.parts.append(text(24, y + 16, cut_to_width(label, WIDTH - 130), halo=True))
        words = f"{share:.0%} / {1 - share:.0%}"
        frame.parts.append(text(WIDTH - 24, y + 16, words, SOFT, "end", halo=True))
        middle = frame.px(100 * share)
        frame.parts.append(rect(24, y + 22, middle - 24, 16, SERIES[1]))
        frame.parts.append(rect(middle, y + 22, WIDTH - 24 - middle, 16, SERIES[0]))
    return frame.floor + 46, frame.parts
