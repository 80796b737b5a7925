"""`specllama watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli.options import ApiKey

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.watching.export import Exporter
    from specllama.watching.watch import ServerView, Watch


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="A server's address, of any engine; else the `serve` that runs here."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port of a server on this machine.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Behind a router: this model (it is never loaded).")
    ] = "",
    api_key: ApiKey = None,
    every: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    prometheus: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Serve the figures at /metrics there."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on a line, for every look.")
    ] = False,
) -> None:
    """Show what speculation does for the requests of a running server, as its counters say."""
    from contextlib import closing

    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.cli.streams import may_be_lost
    from specllama.stop import INTERRUPT, stop_on_signals
    from specllama.watching.export import Exporter
    from specllama.watching.watch import UP, Watch, find

    no_passthrough(ctx.obj or (), "watch")
    printer = Printer(as_json)
    address, others = find(url, port)
    for r in others:
        printer.say(f"also     {r.url} serves {r.model}: --port {r.url.rsplit(':', 1)[-1]}")
    with closing(Watch(address, api_key, model)) as server:
        view = server.look()
        if once:
            _once(printer, view)
            raise typer.Exit(0 if view.state == UP else 1)
        may_be_lost()
        exporter = Exporter(prometheus) if prometheus is not None else None
        try:
            with stop_on_signals(INTERRUPT):
                _follow(printer, server, view, every, exporter)
        except KeyboardInterrupt:
            return
        finally:
            if exporter is not None:
                exporter.close()


def _once(printer: Printer, view: ServerView) -> None:
    from specllama.cli.watch_lines import lines, view_data

    if printer.as_json:
        printer.json(view_data(view))
        return
    for line in lines(view):
        printer.say(line)


def _follow(
    printer: Printer, server: Watch, view: ServerView, every: float, exporter: Exporter | None
) -> None:
    """Until a signal ends it."""
    import time

    from specllama.cli.watch_lines import short, view_data
    from specllama.cli.watch_screen import screen

    with screen(printer) as draw:
        said = ""
        while True:
            if exporter is not None:
                exporter.show(view)
            if printer.as_json:
                printer.json(view_data(view))
            elif draw is not None:
                draw(view)
            elif (line := short(view)) != said:  # not a terminal: what has changed
                printer.say(line)
                said = line
            time.sleep(every)
            view = server.look()
