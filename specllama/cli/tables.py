"""Tables that fit a terminal. Cells wrap at spaces; if that is not enough, inside long words; then
columns are left out, those that matter least first. Text is never cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specllama.cli.shown import shown

if TYPE_CHECKING:
    from rich.table import Table

_GAP = 2  # columns of the terminal between two columns of a table
_SHORTEST_BREAK = 12  # a longer word may be broken into parts of this length
_BREAKS = (re.compile(r"(?<=[-/\\,+])"), re.compile(r"(?<=_)|(?=\.[A-Za-z])"))  # best first
_WORD = re.compile(r"(?:≤ |-[a-z]+ )?\S+")  # "-c 4096" stays together


@dataclass(frozen=True)
class _Column:
    """One column of a table. `right`: aligned to the right; `texts`: its name and cells."""

    right: bool
    texts: Sequence[str]
    _wrapped: dict[int, Sequence[Sequence[str]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.texts[0]

    @property
    def widest(self) -> int:
        """Its width if nothing wraps."""
        return max(map(_width, self.texts))

    @property
    def longest_word(self) -> int:
        """Its width if cells wrap at spaces only."""
        return max((_width(w) for text in self.texts for w in _WORD.findall(text)), default=0)

    @property
    def narrowest(self) -> int:
        """Its width if long words are broken as well."""
        return min(self.longest_word, _SHORTEST_BREAK)

    def wrapped(self, width: int) -> Sequence[Sequence[str]]:
        """The lines of each cell, the name first."""
        if width not in self._wrapped:
            self._wrapped[width] = [wrapped_cell(text, width) for text in self.texts]
        return self._wrapped[width]

    def narrower(self, width: int) -> int:
        """The next smaller width that it can fill."""
        return max(_width(line) for lines in self.wrapped(width - 1) for line in lines)


def fitted(table: Table, width: int, spare: Sequence[str]) -> tuple[Table, Sequence[str]] | None:
    """The table in at most `width` columns, and the names of the columns left out, of those in
    `spare`; None if it cannot fit."""
    columns = [
        _Column(c.justify == "right", [shown(str(text)) for text in (c.header, *c.cells)])
        for c in table.columns
    ]
    names = {c.name for c in columns}
    present = [name for name in spare if name in names]
    for count in range(len(present) + 1):
        kept = [c for c in columns if c.name not in present[:count]]
        room = width - _GAP * (len(kept) - 1)
        for least in ([c.longest_word for c in kept], [c.narrowest for c in kept]):
            if sum(least) <= room:
                return _table(kept, _widths(kept, least, room)), present[:count]
    return None


def by_row(table: Table) -> Iterator[str]:
    """The rows as text: the first cell, and under it the others with their names."""
    names = [str(c.header) for c in table.columns]
    for cells in zip(*(c.cells for c in table.columns), strict=True):
        first, *others = (str(c) for c in cells)
        yield f"{names[0]:<8} {first}"
        named = (f"{n} {c}" for n, c in zip(names[1:], others, strict=True) if c.strip())
        yield f"         {', '.join(named)}"


def wrapped_cell(text: str, width: int) -> Sequence[str]:
    """`text` in lines of at most `width` columns. A longer word is broken, if possible after a
    hyphen, a slash or the like."""
    lines = [""]
    for word in _WORD.findall(text):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for part in _parts(word, width):
            if _width(lines[-1] + part) > width:
                lines.append("")
            lines[-1] += part
    return lines


def _parts(word: str, width: int, breaks: Sequence[re.Pattern[str]] = _BREAKS) -> Iterator[str]:
    from rich.cells import chop_cells

    if not breaks:
        yield from chop_cells(word, width)
        return
    for part in breaks[0].split(word):
        yield from (part,) if _width(part) <= width else _parts(part, width, breaks[1:])


def _widths(columns: Sequence[_Column], least: Sequence[int], room: int) -> Sequence[int]:
    """Widths whose sum is at most `room`, none below `least`. Always narrows the column that
    makes the table grow least, and of several the widest."""
    out = [min(c.widest, room) for c in columns]
    while sum(out) > room:
        choices = []
        for i, c in enumerate(columns):
            if out[i] > least[i]:
                narrower = max(least[i], c.narrower(out[i]))
                changed = [*out[:i], narrower, *out[i + 1 :]]
                choices.append((*_size(columns, changed), -out[i], changed))
        out = min(choices)[-1]
    return out


def _size(columns: Sequence[_Column], widths: Sequence[int]) -> tuple[int, int]:
    """The table's height, and the number of lines of all cells."""
    counts = [[len(x) for x in c.wrapped(w)] for c, w in zip(columns, widths, strict=True)]
    return sum(map(max, zip(*counts, strict=True))), sum(map(sum, counts))


def _table(columns: Sequence[_Column], widths: Sequence[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    out = Table(box=None, pad_edge=False, header_style="bold")
    cells = [
        [Text("\n".join(lines)) for lines in c.wrapped(w)]
        for c, w in zip(columns, widths, strict=True)
    ]
    for c, width, (name, *_) in zip(columns, widths, cells, strict=True):
        out.add_column(name, justify="right" if c.right else "left", width=width)
    for row in zip(*(x[1:] for x in cells), strict=True):
        out.add_row(*row)
    return out


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
