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
        typer.Option(
            "--url",
            metavar="URL",
            help="Server to watch, of any engine; unless set, the `serve` running on this machine.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            help="Watch the server on this port of this machine.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Model to watch, of several behind a router. It is never loaded.",
        ),
    ] = "",
    api_key: ApiKey = None,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0.5, max=3600, help="Time between two updates."
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    prometheus: Annotated[
        int | None,
        typer.Option(
            "--prometheus",
            metavar="PORT",
            min=1,
            max=65535,
            help="Export the metrics at http://127.0.0.1:PORT/metrics.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each update as one line of JSON.")
    ] = False,
) -> None:
    """Show acceptance rate and speed of a running server, live.

    Reads the server's own counters, so the figures are those of real requests.
    """
    from contextlib import closing

    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.cli.streams import output_is_optional
    from specllama.stop import INTERRUPT, stop_on_signals
    from specllama.watching.export import Exporter
    from specllama.watching.watch import UP, Watch, server_to_watch

    no_passthrough(ctx.obj or (), "watch")
    printer = Printer(as_json)
    address, others = server_to_watch(url, port)
    for r in others:
        printer.say(f"also     {r.url} serves {r.model}: --port {r.url.rsplit(':', 1)[-1]}")
    with closing(Watch(address, api_key, model)) as server:
        view = server.look()
        if once:
            _once(printer, view)
            raise typer.Exit(0 if view.state == UP else 1)
        output_is_optional()
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
    from specllama.cli.watch_lines import view_data, view_lines

    if printer.as_json:
        printer.json(view_data(view))
        return
    for line in view_lines(view):
        printer.say(line)


def _follow(
    printer: Printer, server: Watch, view: ServerView, every: float, exporter: Exporter | None
) -> None:
    """Runs until a signal."""
    import time

    from specllama.cli.watch_lines import short, view_data
    from specllama.cli.watch_screen import screen

    with screen(printer) as draw:
        printed = ""
        while True:
            if exporter is not None:
                exporter.show(view)
            if printer.as_json:
                printer.json(view_data(view))
            elif draw is not None:
                draw(_retrying(view, every))
            elif (line := short(_retrying(view, every))) != printed:  # no terminal: changes only
                printer.say(line)
                printed = line
            time.sleep(every)
            view = server.look()


def _retrying(view: ServerView, every: float) -> ServerView:
    """The view with a remark, if its server does not answer."""
    from dataclasses import replace

    from specllama.watching.watch import LOST

    if view.state != LOST:
        return view
    return replace(view, reason=f"{view.reason}; retrying every {every:g} s, Ctrl-C to stop")
