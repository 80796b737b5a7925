"""A watched server as a live screen; 40 columns are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specllama.cli.shown import shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from specllama.cli.render import Printer
    from specllama.watching.watch import ServerView

_TWO_COLUMNS = 72
_MAX_BAR = 30
_SPARKS = "▁▂▃▄▅▆▇█"
_PLAIN_SPARKS = ".:-=+*#@"


@contextmanager
def screen(printer: Printer) -> Iterator[Callable[[ServerView], None] | None]:
    """A function that draws a view; None without a terminal."""
    console = printer.console
    if printer.as_json or not console.is_terminal:
        yield None
        return
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(view: ServerView) -> None:
            live.update(picture(view, console), refresh=True)

        yield draw


def picture(v: ServerView, console: Console) -> RenderableType:
    """The whole screen."""
    from rich.console import Group
    from rich.table import Table

    from specllama.watching.watch import UP

    unicode = console.encoding.startswith("utf")
    parts: list[RenderableType] = [_head(v, console.width)]
    if v.state != UP:
        parts.append(_text(f"{v.state.upper()}: {v.reason}", "bold red"))
    left, right = _figures(v), _positions(v, console.width, unicode)
    if right is None:
        parts += [_text(""), left]
    elif console.width >= _TWO_COLUMNS:
        grid = Table.grid(padding=(0, 4))
        grid.add_row(left, right)
        parts += [_text(""), grid]
    else:
        parts += [_text(""), left, _text(""), right]
    parts += _last_quarter(v, console.width, unicode)
    parts += [_text(f"note: {m}", "dim") for m in v.missing]
    parts += _verdict(v)
    return Group(*parts)


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    # set here: our console does not wrap, and a screen cuts longer lines
    return Text(shown(text), style=style, no_wrap=False, overflow="fold")


def _head(v: ServerView, width: int) -> RenderableType:
    from rich.text import Text

    out = Text(no_wrap=True, overflow="ellipsis")
    out.append(shown(v.model or v.url), "bold")
    if v.engine:
        out.append(f"  {v.engine}", "dim")
    out.append(f"\n{shown(v.url)}", "dim")
    if v.setting:
        workload = v.tuned.workload if v.tuned is not None else ""
        out.append(f"\n{shown(v.setting)}  {shown(workload)}", "dim")
    return out


def _figures(v: ServerView) -> RenderableType:
    from rich.table import Table

    from specllama.cli.watch_lines import figure_rows

    rows = list(figure_rows(v))
    names, values = ([len(row[i]) for row in rows] for i in (0, 1))
    out = Table.grid(padding=(0, 2))
    out.add_column(no_wrap=True, min_width=max(names, default=8))
    out.add_column(justify="right", style="bold", no_wrap=True, min_width=max(values, default=0))
    out.add_column(style="dim", overflow="ellipsis", no_wrap=True)
    for name, value, what in rows:
        out.add_row(name, value, what)
    if not rows:
        out.add_row("waiting", "", "for the first request")
    return out


def _positions(v: ServerView, width: int, unicode: bool) -> RenderableType | None:
    """A bar for each position in the draft."""
    from rich.table import Table

    from specllama.cli.watch_lines import POSITIONS

    if not v.acceptance:
        return None
    columns = min(_MAX_BAR, (width // 2 if width >= _TWO_COLUMNS else width) - 14)
    out = Table.grid(padding=(0, 1))
    out.add_row("", _text("acceptance by position", "dim"), "")
    # long drafts: every few positions
    every = -(-len(v.acceptance) // POSITIONS)
    for i, a in list(enumerate(v.acceptance, start=1))[every - 1 :: every]:
        out.add_row(str(i), _text(bar(a, columns, unicode), _colour(a, v)), f"{a:.2f}")
    return out


def bar(share: float, width: int, unicode: bool) -> str:
    """A share as a bar of at most `width` characters, in eighths if unicode has them."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if not unicode:
        return "#" * (eighths // 8)
    part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]
    return "█" * (eighths // 8) + part


def _colour(a: float, v: ServerView) -> str:
    return "red" if a < v.limits.off else "yellow" if a < v.limits.warn else "green"


def _last_quarter(v: ServerView, width: int, unicode: bool) -> list[RenderableType]:
    speeds = [s for s in v.speeds if s is not None]
    if not speeds:
        return []
    title = f"tok/s, last 15 minutes, up to {max(speeds):.1f}"
    return [_text(""), _text(title, "dim"), _text(sparkline(v.speeds, width - 2, unicode))]


def sparkline(values: Sequence[float | None], width: int, unicode: bool) -> str:
    """The values in at most `width` columns, neighbours averaged if there are more; a gap for
    missing values."""
    marks = _SPARKS if unicode else _PLAIN_SPARKS
    per = max(1, -(-len(values) // max(1, width)))
    columns = [_mean(values[i : i + per]) for i in range(0, len(values), per)]
    top = max((v for v in columns if v is not None), default=0.0)
    return "".join(
        " " if v is None else marks[min(7, int(v / top * 8))] if top > 0 else marks[0]
        for v in columns
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _verdict(v: ServerView) -> list[RenderableType]:
    from specllama.cli.watch_lines import conclusion
    from specllama.watching.verdict import ACCEPTED, PAYS, SLOWER, VERY_LOW

    text = conclusion(v)
    if not text:
        return []
    kind = v.verdict.kind
    bad, good = kind in (SLOWER, VERY_LOW), kind in (PAYS, ACCEPTED)
    style = "bold red" if bad else "green" if good else "yellow"
    return [_text(""), _text(text, style)]
