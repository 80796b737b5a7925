"""A server as `serve` reports it: ready, with speculation on or off, and later events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from specllama.cli.render import plan_data

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.serving.serve import Ready
    from specllama.serving.verify import Engagement


class ServeReport:
    """Prints what `serve` does. `extra` is added to its JSON object; `events`: later events are
    lines of JSON too."""

    def __init__(
        self, printer: Printer, extra: dict[str, Any] | None = None, events: bool = False
    ) -> None:
        self._out = printer
        self._extra = extra or {}
        self._events = events
        self._restarts = 0

    def say(self, text: str) -> None:
        self._out.say(text, style="yellow")
        self._json_event("note", {"text": text})

    def event(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        """An event while serving."""
        self._out.say(f"{kind}: {text}")
        self._json_event(kind, {"text": text, **data})

    def busy(self, text: str) -> AbstractContextManager[None]:
        return self._out.busy(text)

    def ready(self, ready: Ready) -> None:
        for line, style in ready_lines(ready):
            self._out.say(line, style)
        if self._restarts:
            self._out.say("serving again")
            self._json_event("serving again", ready_data(ready))
        elif self._out.as_json:
            first = {"event": "ready"} if self._events else {}
            # last: whoever reads it has seen every line
            self._out.json({**first, **ready_data(ready), **self._extra})
        self._restarts += 1

    def _json_event(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._events:
            when = datetime.now(timezone.utc).isoformat(timespec="seconds")
            self._out.json({"event": kind, "when": when, **data})


def ready_lines(ready: Ready) -> Iterator[tuple[str, str | None]]:
    """(line, style): speculation on or off, and the server's address."""
    e = ready.engagement
    good = e.engaged and not e.only_costs and not ready.warning
    yield engagement_line(e), "green" if good else "yellow"
    if ready.warning:
        yield f"note     {ready.warning}", "yellow"
    if e.remedy:
        yield f"do       {e.remedy}" if e.only_costs else f"note     {e.remedy}", "yellow"
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
    tau = f", τ={e.tokens_per_step:.2f} tokens per verify step" if e.tokens_per_step else ""
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
        "warning": ready.warning or None,
        "alpha": e.alpha,
        "drafted": e.drafted,
        "accepted": e.accepted,
        "tokens_per_step": e.tokens_per_step,
        "tokens_per_second": e.tokens_per_second,
    }
