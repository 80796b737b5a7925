"""What a figure shows, independent of what draws it: the report's SVG or the file of --plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INK, SOFT, GRID = "ink", "soft", "grid"
SERIES = ("series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
# Each at least 3:1 against its background (WCAG 2.2, 1.4.11), text 4.5:1.
LIGHT = {
    INK: "#1f2937",
    SOFT: "#4b5563",
    GRID: "#e5e7eb",
    **dict(zip(SERIES, "#2563eb #c2660a #047857 #9333ea #dc2626 #0e7490".split(), strict=True)),
}
DARK = {
    INK: "#e5e7eb",
    SOFT: "#9ca3af",
    GRID: "#374151",
    **dict(zip(SERIES, "#60a5fa #f59e0b #34d399 #c084fc #f87171 #22d3ee".split(), strict=True)),
}
LINE, DASHES, DOT = "line", "dashes", "dot"
SLOWER, SAME, FASTER = (200, 70, 60), (247, 247, 247), (5, 122, 85)  # RGB of heat map cells
_FULL_COLOUR = 0.3  # the least distance from 1 at which a cell has its full colour


@dataclass(frozen=True)
class Axis:
    """`label` with its unit; `number`: how a tick is written (str.format)."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    number: str = "{:g}"
    log: bool = False


@dataclass(frozen=True)
class Series:
    """One line, or with style DOT only points. `band`: (x, low, high); `whiskers`: the same,
    drawn at the points. An empty name is left out of the legend."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    style: str = LINE
    band: Sequence[tuple[float, float, float]] = ()
    whiskers: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True)
class Note:
    """Text just above a point; `end`: right-aligned there, else centred."""

    x: float
    y: float
    words: str
    end: bool = False


@dataclass(frozen=True)
class LineChart:
    title: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    notes: Sequence[Note] = ()


@dataclass(frozen=True)
class IntervalRow:
    """A setting's speed-up. `low` and `high`: its 95 % interval, infinite where not known."""

    label: str
    value: float
    low: float
    high: float
    measured: bool


@dataclass(frozen=True)
class IntervalChart:
    """One row for each setting, `reference` a vertical line."""

    title: str
    caption: str
    x: Axis
    rows: Sequence[IntervalRow]
    reference: float = 1.0


@dataclass(frozen=True)
class HeatMap:
    """Speed-ups by (row, column). `best` has a solid outline, `measured` a dashed one."""

    title: str
    caption: str
    row_label: str
    column_label: str
    rows: Sequence[int]
    columns: Sequence[int]
    cells: Mapping[tuple[int, int], float]
    best: tuple[int, int]
    measured: frozenset[tuple[int, int]] = field(default_factory=frozenset)

    def fill(self, value: float) -> tuple[str, str]:
        """(fill, ink): white at 1, greener above, redder below; alike in a dark theme."""
        span = max(_FULL_COLOUR, *(abs(v - 1) for v in self.cells.values()))
        share = min(1.0, abs(value - 1) / span)
        full = FASTER if value >= 1 else SLOWER
        rgb = (round(s + (f - s) * share) for s, f in zip(SAME, full, strict=True))
        return "#{:02x}{:02x}{:02x}".format(*rgb), "#ffffff" if share > 0.85 else LIGHT[INK]


@dataclass(frozen=True)
class ShareChart:
    """Two-part bars. `rows`: (label, share of the first part)."""

    title: str
    caption: str
    x: Axis
    parts: tuple[str, str]
    rows: Sequence[tuple[str, float]]


Chart = LineChart | IntervalChart | HeatMap | ShareChart


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


def decades(low: float, high: float) -> list[float]:
    """0.1, 0.2, 0.5, 1, 2, 5, 10, … from low to high; `low` where there is none."""
    found = [f * 10.0**e for e in range(-2, 6) for f in (1, 2, 5) if low <= f * 10.0**e <= high]
    return found or [low]


def whole(most: int, about: int = 12) -> list[float]:
    """1 to `most`, or about so many of them."""
    step = max(1, math.ceil(most / about))
    return [float(k) for k in range(1, most + 1) if step == 1 or k % step == 0 or k == 1]
