"""Lines and JSON for a user's eyes. Colours only on a terminal (rich honours NO_COLOR)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from specllama.cli.budget_lines import data as budget_data
from specllama.cli.budget_lines import summary
from specllama.cli.repeating import repeating
from specllama.cli.shown import shown
from specllama.cli.units import count, mib
from specllama.storage import strict_json

if TYPE_CHECKING:  # render is imported by commands that start no server
    from pathlib import Path

    from rich.console import Console, ConsoleOptions
    from rich.table import Table

    from specllama.planning.plan import Plan
    from specllama.serving.serve import Ready
    from specllama.serving.verify import Engagement

_SHOWN_REJECTED = 6
_PIPE = 400  # columns of a table that is not on a terminal
_OFTEN_S = 10.0  # between two lines of progress


class Printer:
    """Human text on stdout, or on stderr when stdout carries JSON."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._console = _console(as_json)

    @property
    def console(self) -> Console:
        """What it prints on."""
        return self._console

    def say(self, text: str, style: str | None = None) -> None:
        """One line."""
        self._console.print(text, style=style)

    def table(self, table: Any) -> None:
        """A rich table; in a pipe as wide as its content, so that no path is cut. One that is
        wider than the terminal is shown row by row, a line for each cell."""
        if not self._console.is_terminal:
            self._console.width = _PIPE
        elif self._console.measure(table, options=_unbounded(self._console)).maximum > (
            self._console.width
        ):
            for line in _by_row(table):
                self.say(line)
            return
        self._console.print(table)

    def json(self, data: dict[str, Any]) -> None:
        """One JSON object on stdout, on one line, flushed; null for what is not finite."""
        print(strict_json(data), flush=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """A spinner on a terminal; elsewhere a line now and then, so that it is seen to live."""
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
    def progress(self, title: str) -> Iterator[Bar]:
        """What is being learnt, and for how much longer: a bar on a terminal, a line now and
        then elsewhere."""
        if not self._console.is_terminal:
            yield Bar(lambda text: self.say(f"{title:<8} {text}"))
            return
        from rich.progress import BarColumn, Progress, TextColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (TextColumn(shown(title), markup=False), BarColumn(), text)
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield Bar(
                lambda text: None,
                lambda text, share: bar.update(task, completed=share, description=shown(text)),
            )


def _console(stderr: bool) -> Console:
    """A console for which text is text: no markup, no emoji names, no control characters."""
    from rich.console import Console
    from rich.text import Text

    class LiteralConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(shown(text), **options)

    return LiteralConsole(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)


def _unbounded(console: Console) -> ConsoleOptions:
    return console.options.update(max_width=_PIPE)


def _by_row(table: Table) -> Iterator[str]:
    """The cells of a table that is too wide: a row's first one, then the others under it."""
    names = [str(c.header) for c in table.columns]
    for cells in zip(*(c.cells for c in table.columns), strict=True):
        first, *others = (str(c) for c in cells)
        yield f"{names[0]:<8} {first}"
        yield from (f"  {n} {c}" for n, c in zip(names[1:], others, strict=True) if c.strip())


class Bar:
    """What moves a progress bar, or says a line at once when something else is being learnt
    and every _OFTEN_S otherwise. `step` with no text keeps the one that was given; before the
    first one a server is being loaded."""

    def __init__(
        self,
        say: Callable[[str], None],
        draw: Callable[[str, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._draw, self._clock = say, draw, clock
        self._text, self._shown, self._at = "loading the model", "", 0.0

    def step(self, text: str, share: float, left_s: float) -> None:
        self._text = text or self._text
        left = f"{left_s:.0f} s left" if left_s >= 0.5 else "the budget is spent"
        line = f"{self._text}, {left}"
        if self._draw is not None:
            self._draw(line, share)
            return
        now = self._clock()
        if self._text != self._shown or now - self._at >= _OFTEN_S:
            self._shown, self._at = self._text, now
            self._say(line)


class ServeReport:
    """Tells a user of `serve` what happens. `extra` goes into its JSON object; `events`: what
    happens later is a line of JSON too."""

    def __init__(
        self, printer: Printer, extra: dict[str, Any] | None = None, events: bool = False
    ) -> None:
        self._out = printer
        self._extra = extra or {}
        self._events = events
        self._restarts = 0

    def say(self, text: str) -> None:
        self._out.say(text, style="yellow")
        self._happened("note", {"text": text})

    def event(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        """Something that happened while it served."""
        self._out.say(f"{kind}: {text}")
        self._happened(kind, {"text": text, **data})

    def busy(self, text: str) -> AbstractContextManager[None]:
        return self._out.busy(text)

    def ready(self, ready: Ready) -> None:
        for line, style in ready_lines(ready):
            self._out.say(line, style)
        if self._restarts:
            self._out.say("serving again")
            self._happened("serving again", ready_data(ready))
        elif self._out.as_json:
            first = {"event": "ready"} if self._events else {}
            # last: who reads it has everything
            self._out.json({**first, **ready_data(ready), **self._extra})
        self._restarts += 1

    def _happened(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._events:
            when = datetime.now(timezone.utc).isoformat(timespec="seconds")
            self._out.json({"event": kind, "when": when, **data})


def _draft_name(plan: Plan, path: Path) -> str:
    """Ollama's files have names of their own."""
    draft = plan.choice.draft
    return draft.title if draft is not None and draft.path == path else path.name


def plan_lines(plan: Plan) -> Iterator[str]:
    """What was decided and why, one line each."""
    target, *decided = decision_lines(plan)
    yield target
    yield f"engine   {plan.engine.label}, {plan.capabilities.label}: {plan.engine.why}"
    yield from decided
    t, spec = plan.target, plan.settings.speculation
    # what is already said in the line above is not said again
    rejected = [r for r in plan.choice.rejected if spec or r.detail not in plan.choice.reason]
    for r in rejected[:_SHOWN_REJECTED]:
        yield f"not used {r.what}: {r.detail} ({r.rule})"
    if (more := len(rejected) - _SHOWN_REJECTED) > 0:
        yield f"         and {more} more; see `specllama pick-draft {t.path} --all`"
    if plan.budget is not None:
        yield from summary(plan.budget)
    for warning in plan.notes:
        yield f"note     {warning}"
    for change in plan.command.changes:
        yield f"yours    {change}"
    yield from environment_lines(plan)


def decision_lines(plan: Plan) -> Iterator[str]:
    """What holds with any engine: target, workload and how to draft."""
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
    yield f"method   {','.join(spec.methods)}{with_draft}{length}: {plan.choice.reason}"


def environment_lines(plan: Plan) -> Iterator[str]:
    """What comes from outside the command line, and what of that is not taken."""
    if also := [f"{' '.join(g.words)} ({g.source})" for g in plan.user.from_outside]:
        yield f"yours    the environment also sets {', '.join(also)}"
    if plan.user.secrets:
        yield "yours    keys reach the server by its environment, not by its command line"
    if plan.command.dropped:
        yield f"ignored  environment: {', '.join(plan.command.dropped)}"


def ready_lines(ready: Ready) -> Iterator[tuple[str, str | None]]:
    """(line, style): on or off, and where the server is."""
    e = ready.engagement
    yield engagement_line(e), "green" if e.engaged and not e.only_costs else "yellow"
    if e.only_costs:
        yield f"do       {e.remedy}", "yellow"
    yield f"serving  {ready.url}   OpenAI base URL: {ready.url}/v1", None
    yield f"log      {ready.launch.server.log}", None


def engagement_line(e: Engagement) -> str:
    """`speculation ON: …` or `speculation OFF because …`."""
    speed = f"{e.tokens_per_second:.1f} tok/s" if e.tokens_per_second else "speed unknown"
    doubt = f"; {e.doubt}" if e.doubt else ""
    if not e.engaged:
        return f"speculation OFF because {e.reason}{doubt} ({speed})"
    if e.alpha is None:
        return f"speculation ON, but {e.doubt} ({speed})"
    if e.only_costs:
        return f"speculation ON, but {e.only_costs} (α={e.alpha:.2f}, {speed}){doubt}"
    if not e.accepted:
        return (
            f"speculation ON, but none of {e.drafted} drafted tokens was accepted ({speed}){doubt}"
        )
    tau = f", τ={e.tokens_per_step:.2f} tokens per step" if e.tokens_per_step else ""
    return (
        f"speculation ON: α={e.alpha:.2f} ({e.accepted} of {e.drafted} drafted tokens "
        f"accepted){tau}, {speed}{doubt}"
    )


def ready_data(ready: Ready) -> dict[str, Any]:
    """The JSON object of a ready server."""
    e, launch = ready.engagement, ready.launch
    return {
        **plan_data(launch.plan),
        "url": ready.url,
        "openai_base_url": f"{ready.url}/v1",
        "log": str(launch.server.log),
        "server_pid": launch.server.pid,
        "speculation": "off" if not e.engaged else "useless" if e.only_costs else "on",
        "reason": e.reason,
        "slots_speculative": e.slots,
        "doubt": e.doubt or None,
        "only_costs": e.only_costs or None,
        "remedy": e.remedy or None,
        "alpha": e.alpha,
        "drafted": e.drafted,
        "accepted": e.accepted,
        "tokens_per_step": e.tokens_per_step,
        "tokens_per_second": e.tokens_per_second,
    }


def plan_data(plan: Plan) -> dict[str, Any]:
    """The JSON object of a decision. Holds no secrets."""

    spec = plan.settings.speculation
    return {
        "target": str(plan.target.path),
        "architecture": plan.target.architecture,
        "workload": plan.workload.name,
        "engine": plan.engine.label,
        "engine_why": plan.engine.why,
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
