"""Plain SVG: axes, lines, bars and text, as much as probe's report needs. No scripts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
# The page around may set other ones (a dark theme); alone it is on white.
INK, SOFT, GRID = "var(--ink, #1f2937)", "var(--soft, #6b7280)", "var(--grid, #e5e7eb)"
WIDTH = 640
LINE, DASHES, DOT = "", "5 4", "dot"
_CHAR = 6.7  # mean width of a character at 12 px, generously
_LEGEND = 18  # height of a line of the legend


def text(
    x: float, y: float, words: str, colour: str = INK, anchor: str = "start", weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{bold}>'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}"{" " + more if more else ""}/>'
    )


def rect(x: float, y: float, w: float, h: float, fill: str, more: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, w):.1f}" height="{max(0.0, h):.1f}" '
        f'fill="{fill}"{" " + more if more else ""}/>'
    )


def cut(words: str, pixels: float) -> str:
    """The words, shortened in their middle to what fits."""
    most = max(4, int(pixels / _CHAR))
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def svg(parts: Iterable[str], height: float, label: str, width: float = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(label, quote=True)}" font-size="12" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high, about so many."""
    if high <= low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= about)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def doublings(low: float, high: float) -> list[float]:
    """1, 2, 4, … from low to high."""
    found, at = [], 1.0
    while at <= high * 1.001:
        if at >= low * 0.999:
            found.append(at)
        at *= 2
    return found


@dataclass
class Plot:
    """A frame with two axes. `x`, `y`: ranges; `log`: both by doublings. What lies outside is
    cut off at the frame. `legend`: words, colour and LINE, DASHES or DOT."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_title: str
    y_title: str
    log: bool = False
    legend: Sequence[tuple[str, str, str]] = ()
    height: float = 300
    _inside: list[str] = field(default_factory=list, init=False)
    _outside: list[str] = field(default_factory=list, init=False)

    _LEFT, _RIGHT, _BOTTOM = 58.0, 14.0, 44.0

    @property
    def _top(self) -> float:
        return 26.0 + _LEGEND * len(self.legend)

    @property
    def _total(self) -> float:
        return self.height + _LEGEND * len(self.legend)

    def px(self, x: float) -> float:
        return self._LEFT + self._share(x, self.x) * (WIDTH - self._LEFT - self._RIGHT)

    def py(self, y: float) -> float:
        y = min(max(y, self.y[0] if self.log else -1e9), 1e9)
        floor = self._total - self._BOTTOM
        return floor - self._share(y, self.y) * (floor - self._top)

    def _share(self, v: float, ends: tuple[float, float]) -> float:
        f: Callable[[float], float] = math.log2 if self.log else float
        return (f(v) - f(ends[0])) / ((f(ends[1]) - f(ends[0])) or 1.0)

    def axes(self, xs: Sequence[float], ys: Sequence[float], unit: str, digits: int = -1) -> None:
        """Grid lines with their numbers. `unit`: after those of y; `digits`: -1 = as needed."""
        left, right, floor = self._LEFT, WIDTH - self._RIGHT, self._total - self._BOTTOM
        for v in ys:
            y = self.py(v)
            self._outside.append(line(left, y, right, y, GRID))
            number = f"{v:g}" if digits < 0 else f"{v:.{digits}f}"
            self._outside.append(text(left - 6, y + 4, number + unit, SOFT, "end"))
        for v in xs:
            self._outside.append(text(self.px(v), floor + 17, f"{v:g}", SOFT, "middle"))
        self._outside.append(line(left, floor, right, floor, SOFT))
        middle = (left + right) / 2
        self._outside.append(text(middle, self._total - 8, self.x_title, SOFT, "middle"))
        self._outside.append(text(4, self._top - 12, self.y_title, SOFT))

    def path(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        where = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)
        self._inside.append(
            f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        )

    def band(self, points: Sequence[tuple[float, float, float]], colour: str) -> None:
        """(x, low, high): what an interval covers."""
        upper = [f"{self.px(x):.1f},{self.py(high):.1f}" for x, _, high in points]
        lower = [f"{self.px(x):.1f},{self.py(low):.1f}" for x, low, _ in reversed(points)]
        where = " ".join(upper + lower)
        self._inside.append(f'<polygon points="{where}" fill="{colour}" opacity="0.14"/>')

    def dots(self, points: Iterable[tuple[float, float]], colour: str, r: float = 3) -> None:
        for x, y in points:
            self._inside.append(
                f'<circle cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{r:g}" fill="{colour}" '
                'stroke="#fff"/>'
            )

    def whisker(self, x: float, low: float, high: float) -> None:
        at, top, bottom = self.px(x), self.py(high), self.py(low)
        self._inside.append(line(at, bottom, at, top, INK, 'stroke-width="1.5"'))
        for y in (top, bottom):
            self._inside.append(line(at - 4, y, at + 4, y, INK, 'stroke-width="1.5"'))

    def note(
        self, x: float, y: float, words: str, colour: str = INK, anchor: str = "middle"
    ) -> None:
        """Words just above a point, within the frame."""
        at = min(max(self.py(y) - 8, self._top + 10), self._total - self._BOTTOM - 6)
        self._outside.append(text(self.px(x), at, words, colour, anchor))

    def draw(self, label: str) -> str:
        box = rect(
            self._LEFT,
            self._top,
            WIDTH - self._LEFT - self._RIGHT,
            self._total - self._BOTTOM - self._top,
            "#000",
        )
        inside = "".join(self._inside)
        name = f"c{zlib.crc32(inside.encode())}"
        out = [f'<clipPath id="{name}">{box}</clipPath>']
        for i, (named, colour, kind) in enumerate(self.legend):
            y = 6.0 + _LEGEND * i
            out.append(_swatch(self._LEFT, y + 5, colour, kind))
            out.append(text(self._LEFT + 26, y + 9, cut(named, WIDTH - self._LEFT - 34)))
        # the grid lies below the curves, the words above them
        words = [p for p in self._outside if p.startswith("<text")]
        out += [p for p in self._outside if not p.startswith("<text")]
        out.append(f'<g clip-path="url(#{name})">{inside}</g>')
        return svg(out + words, self._total, label)


def _swatch(x: float, y: float, colour: str, kind: str) -> str:
    if kind == DOT:
        return f'<circle cx="{x + 10:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    dashes = f' stroke-dasharray="{DASHES}"' if kind == DASHES else ""
    return line(x, y, x + 20, y, colour, f'stroke-width="2"{dashes}')
