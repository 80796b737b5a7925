"""Lines and JSON for the user. Colours only on a terminal (rich honours NO_COLOR)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specllama.cli.budget_lines import budget_data, memory_lines
from specllama.cli.repeating import repeating
from specllama.cli.shown import shown, wrapped
from specllama.cli.units import count, mib
from specllama.storage import strict_json

if TYPE_CHECKING:  # commands that start no server import render too
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from specllama.planning.plan import Plan

_SHOWN_REJECTED = 6
_COMMANDS = ("run ", "baseline ", "           specllama ")  # lines to copy
_PIPE = 400  # least width of output that is not on a terminal
_WIDEST = 4000  # and its greatest, for a table
_BAR = 16  # columns of a progress bar: label, bar and description fit into 80
_OFTEN_S = 10.0  # between two lines of progress


class Printer:
    """Human text on stdout, or on stderr when stdout carries JSON. `quiet`: results, warnings and
    errors only; `verbose`: nothing is shortened. Commands ask `verbose` what to leave out."""

    def __init__(self, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose
        self._console = _console(as_json)

    @property
    def console(self) -> Console:
        """What it prints on."""
        return self._console

    def say(self, text: str, style: str | None = None) -> None:
        """One line; on a terminal wrapped at spaces, under its own text."""
        if self._console.is_terminal:
            for line in wrapped(shown(text), self._console.width):
                self._console.print(line, style=style)
            return
        self._console.print(text, style=style)

    def command(self, text: str) -> None:
        """A line to copy: never broken."""
        self._console.print(text)

    def detail(self, text: str, style: str | None = None) -> None:
        """One line that --quiet leaves out."""
        if not self.quiet:
            self.say(text, style)

    def lines(self, lines: Iterable[str], results: Collection[str]) -> None:
        """Several lines, of which --quiet prints those with one of these labels, and what is
        indented under them."""
        is_result = True
        for line in lines:
            if not line.startswith(" "):
                is_result = line.split(" ", 1)[0] in results
            if self.quiet and not is_result:
                continue
            if line.startswith(_COMMANDS):
                self.command(line)
            else:
                self.say(line)

    def table(self, table: Table, spare: Sequence[str] = ()) -> None:
        """A rich table; in a pipe as wide as its content, so that no path is cut. On a terminal,
        one that is too wide wraps its cells and may lose the columns named in `spare`; if that
        is not enough, it is printed row by row, as text."""
        console = self._console
        natural = console.measure(table, options=console.options.update(max_width=_WIDEST))
        if not console.is_terminal:
            console.width = max(_PIPE, natural.maximum)
        elif natural.maximum > console.width:
            self._narrow_table(table, spare)
            return
        console.print(table)

    def _narrow_table(self, table: Table, spare: Sequence[str]) -> None:
        from specllama.cli.tables import by_row, fitted

        found = fitted(table, self._console.width, spare)
        if found is None:
            for line in by_row(table):
                self.say(line)
            return
        narrow, left_out = found
        self._console.print(narrow)
        if left_out:
            names = ", ".join(left_out)
            self.detail(f"         no room for {names}: a wider terminal or --json shows them")

    def json(self, data: dict[str, Any]) -> None:
        """One JSON object on stdout, on one line, flushed; null for what is not finite."""
        print(strict_json(data), flush=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """A spinner on a terminal, a line now and then elsewhere; nothing with --quiet."""
        if self.quiet:
            yield
            return
        if not self._console.is_terminal:
            with repeating(lambda seconds: self.say(f"{text} {seconds:.0f} s"), _OFTEN_S):
                yield
            return
        from rich.text import Text

        # not every encoding has the dots
        spinner = "dots" if self._console.encoding.startswith("utf") else "line"
        with self._console.status(Text(shown(text)), spinner=spinner):
            yield

    @contextmanager
    def progress(self, title: str) -> Iterator[ProgressReport]:
        """The current measurement and the time left: a bar on a terminal, a line now and then
        elsewhere; nothing with --quiet."""
        if self.quiet:
            yield ProgressReport(lambda text: None)
            return
        if not self._console.is_terminal:
            yield ProgressReport(lambda text: self.say(f"{title:<8} {text}"))
            return
        from rich.progress import BarColumn, Progress, TextColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (TextColumn(shown(title), markup=False), BarColumn(_BAR), text)
        room = self._console.width - len(title) - _BAR - 2
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("", total=1.0)

            def draw(text: str, left: str, share: float) -> None:
                bar.update(task, completed=share, description=_bar_text(text, left, room))

            yield ProgressReport(lambda text: None, draw)


def _console(stderr: bool) -> Console:
    """A console for which text is text: no markup, no emoji names, no control characters."""
    from rich.console import Console
    from rich.text import Text

    class LiteralConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(shown(text), **options)

    return LiteralConsole(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)


class ProgressReport:
    """Moves a progress bar, or prints a line when another measurement begins and every _OFTEN_S.
    `step` with no text keeps the last one; before the first, the model is being loaded."""

    def __init__(
        self,
        say: Callable[[str], None],
        draw: Callable[[str, str, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._draw, self._clock = say, draw, clock
        self._text, self._shown, self._at = "loading the model", "", 0.0

    def step(self, text: str, share: float, left_s: float) -> None:
        self._text = text or self._text
        left = f"{left_s:.0f} s left" if left_s >= 0.5 else "the budget is spent"
        if self._draw is not None:
            self._draw(self._text, left, share)
            return
        now = self._clock()
        if self._text != self._shown or now - self._at >= _OFTEN_S:
            self._shown, self._at = self._text, now
            self._say(f"{self._text}, {left}")


def _bar_text(text: str, left: str, room: int) -> str:
    """What is measured, without details, and the time left, in at most `room` columns: the file's
    name is cut first."""
    from rich.text import Text

    what = Text(shown(text.split(": ")[0]))
    what.truncate(max(1, room - len(left) - 2), overflow="ellipsis")
    return f"{what.plain}, {left}"


def _draft_name(plan: Plan, path: Path) -> str:
    """Ollama's files have names in its library."""
    draft = plan.choice.draft
    return draft.title if draft is not None and draft.path == path else path.name


def plan_lines(plan: Plan, verbose: bool = False) -> Iterator[str]:
    """Each decision with its reason, one line each. `verbose`: every rejected file."""
    target, *decided = decision_lines(plan)
    yield target
    yield f"engine   {plan.engine.label}, {plan.capabilities.label}: {plan.engine.reason}"
    yield from decided
    t, spec = plan.target, plan.settings.speculation
    # a reason that stands in the line above is not repeated
    rejected = [r for r in plan.choice.rejected if spec or r.detail not in plan.choice.reason]
    listed = rejected if verbose else rejected[:_SHOWN_REJECTED]
    for r in listed:
        yield f"not used {r.what}: {r.detail} ({r.rule})"
    if more := len(rejected) - len(listed):
        yield f"         and {more} more; see `specllama pick-draft {t.path} --verbose`"
    if plan.budget is not None:
        yield from memory_lines(plan.budget)
    for warning in plan.notes:
        yield f"note     {warning}"
    for change in plan.command.changes:
        yield f"options  {change}"
    yield from environment_lines(plan)


def decision_lines(plan: Plan) -> Iterator[str]:
    """The decisions that apply to any engine: target, workload and method."""
    t, spec = plan.target, plan.settings.speculation
    size = f"{count(t.parameters)} parameters, {mib(t.file_bytes)}"
    yield f"target   {t.title}: {t.architecture}, {size}"
    if plan.workload.mixed:
        yield f"workload {plan.workload.name}: {plan.workload.mixed}"
    if spec is None:
        yield f"method   none: {plan.choice.reason}"
        if plan.choice.remedy:
            yield f"do       {plan.choice.remedy}"
        return
    with_draft = f" with {_draft_name(plan, spec.draft)}" if spec.draft else ""
    length = f", K={spec.n_max}" if spec.uses_draft else ""
    if spec.uses_draft and spec.p_min:
        length += f", p_min={spec.p_min:g}"
    yield f"method   {','.join(spec.methods)}{with_draft}{length}: {plan.choice.reason}"


def environment_lines(plan: Plan) -> Iterator[str]:
    """Options from the environment, and the ones that were dropped."""
    if also := [f"{' '.join(g.words)} ({g.source})" for g in plan.user.from_outside]:
        yield f"options  also set in the environment: {', '.join(also)}"
    if plan.user.secrets:
        yield "options  keys are passed to the server in its environment, not on its command line"
    if plan.command.dropped:
        yield f"ignored  environment: {', '.join(plan.command.dropped)}"


def plan_data(plan: Plan) -> dict[str, Any]:
    """The JSON object of a decision. Holds no secrets."""

    spec = plan.settings.speculation
    return {
        "target": str(plan.target.path),
        "architecture": plan.target.architecture,
        "workload": plan.workload.name,
        "engine": plan.engine.label,
        "engine_reason": plan.engine.reason,
        "build": plan.capabilities.build,
        "flavour": plan.capabilities.flavour,
        "methods": list(spec.methods) if spec else [],
        "draft": str(spec.draft) if spec and spec.draft else None,
        "n_max": spec.n_max if spec and spec.uses_draft else None,
        "because": plan.choice.reason,
        "needed": plan.choice.remedy or None,
        "rejected": [
            {"what": r.what, "rule": r.rule, "detail": r.detail} for r in plan.choice.rejected
        ],
        "warnings": list(plan.notes),
        "memory": budget_data(plan.budget) if plan.budget is not None else None,
        "changed_by_you": list(plan.command.changes),
        "environment": [
            {"set_by": g.source, "words": list(g.words)} for g in plan.user.from_outside
        ],
        "dropped_environment": list(plan.command.dropped),
        "command": list(plan.command.argv),
    }
