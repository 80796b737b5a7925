"""Elements of plain SVG: shapes, words, and a frame with axes. No scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape

from specllama.cli.charts import DASHES, DOT, GRID, INK, LIGHT, SOFT, Axis
from specllama.cli.shown import shown

WIDTH = 460  # a unit is a pixel at most: as narrow as a phone, text stays legible
SIZE = 13.0  # of text
_CHAR = 8.0  # mean width of a character, generously
ROW = 20.0  # height of a line of text
_PAGE = "var(--page, #fff)"
DASHED = 'stroke-dasharray="5 4"'


def cut_to_width(words: str, pixels: float) -> str:
    """The words, shortened in their middle to what fits."""
    most = max(4, int(pixels / _CHAR))
    words = shown(words)
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def paint(colour: str) -> str:
    """The page around may set other colours (a dark theme); alone it is on white."""
    return f"var(--{colour}, {LIGHT[colour]})" if colour in LIGHT else colour


def text(
    x: float,
    y: float,
    words: str,
    colour: str = INK,
    anchor: str = "start",
    bold: bool = False,
    halo: bool = False,
) -> str:
    """`halo`: an edge in the page's colour, for words above lines."""
    more = ' font-weight="bold"' if bold else ""
    if halo:
        more += f' stroke="{_PAGE}" stroke-width="4" paint-order="stroke"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{paint(colour)}" text-anchor="{anchor}"{more}>'
        f"{escape(words)}</text>"
    )


def svg_line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{paint(colour)}"{" " + more if more else ""}/>'
    )


def rect(x: float, y: float, w: float, h: float, fill: str, more: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, w):.1f}" height="{max(0.0, h):.1f}" '
        f'fill="{paint(fill)}"{" " + more if more else ""}/>'
    )


def dot(x: float, y: float, r: float, colour: str, filled: bool = True) -> str:
    inside, edge = (colour, "page") if filled else ("page", colour)
    fill, stroke = (_PAGE if c == "page" else paint(c) for c in (inside, edge))
    width = 1 if filled else 2
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="{width}"/>'
    )


def swatch(x: float, y: float, colour: str, style: str) -> str:
    if style == DOT:
        return dot(x + 11, y, 5, colour)
    dashes = f" {DASHED}" if style == DASHES else ""
    return svg_line(x, y, x + 22, y, colour, f'stroke-width="2"{dashes}')


def outline(x: float, y: float, w: float, h: float, best: bool) -> str:
    """Inside a cell, which is light in a dark theme too."""
    dashes = "" if best else ' stroke-dasharray="4 2"'
    more = f'stroke="{LIGHT[INK]}" stroke-width="2.5"{dashes}'
    return rect(x + 1.5, y + 1.5, w - 3, h - 3, "none", more)


@dataclass
class Frame:
    """A plot area with these edges; `x` and `y` map values to coordinates."""

    left: float
    right: float
    top: float
    floor: float
    x: Axis
    y: Axis | None = None
    parts: list[str] = field(default_factory=list)

    def px(self, x: float) -> float:
        return self.left + _share(x, self.x) * (self.right - self.left)

    def py(self, y: float) -> float:
        assert self.y is not None
        return self.floor - _share(y, self.y) * (self.floor - self.top)

    def grid(self, vertical: bool = False) -> None:
        """Grid lines with their numbers, and both labels."""
        if self.y is not None:
            for v in self.y.ticks:
                at = self.py(v)
                self.parts.append(svg_line(self.left, at, self.right, at, GRID))
                number = self.y.number.format(v)
                self.parts.append(text(self.left - 6, at + 4, number, SOFT, "end"))
            self.parts.append(text(4, self.top - 12, self.y.label, SOFT))
        for v in self.x.ticks:
            at = self.px(v)
            if vertical:
                self.parts.append(svg_line(at, self.top, at, self.floor, GRID))
            self.parts.append(text(at, self.floor + 18, self.x.number.format(v), SOFT, "middle"))
        self.parts.append(svg_line(self.left, self.floor, self.right, self.floor, SOFT))
        middle = (self.left + self.right) / 2
        self.parts.append(text(middle, self.floor + 38, self.x.label, SOFT, "middle"))

    def clipped(self, inside: Iterable[str]) -> None:
        """Clips at the frame."""
        box = rect(self.left, self.top, self.right - self.left, self.floor - self.top, INK)
        self.parts.append(f'<clipPath id="%CLIP%">{box}</clipPath>')
        self.parts.append(f'<g clip-path="url(#%CLIP%)">{"".join(inside)}</g>')


def _share(v: float, axis: Axis) -> float:
    f: Callable[[float], float] = math.log2 if axis.log else float
    v = min(max(v, axis.low if axis.log else -1e9), 1e9)
    return (f(v) - f(axis.low)) / ((f(axis.high) - f(axis.low)) or 1.0)
