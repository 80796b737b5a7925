"""`specllama results`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("results")(results)


def results(
    ctx: typer.Context,
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="Only results of this model.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Forget them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what was measured before, which serve starts from; --clear forgets it."""
    from specllama.cli.app import no_passthrough
    from specllama.cli.render import Printer
    from specllama.tuning.results import all_results
    from specllama.tuning.results import clear as forget

    no_passthrough(ctx.obj or (), "results")
    printer = Printer()
    if clear:
        count = forget(model)
        if as_json:
            printer.json({"cleared": count})
        else:
            printer.say(f"{count} results forgotten")
        return
    wanted = str(model.absolute()) if model is not None else None
    found = [r for r in all_results() if wanted in (None, r.target)]
    if as_json:
        printer.json(
            {
                "results": [
                    {
                        "target": r.target,
                        "workload": r.workload,
                        "speculation": r.label,
                        "reason": r.reason,
                        "speedup": list(r.speedup) if r.speedup else None,
                        "tokens_per_second": r.tokens_per_second,
                        "engine": r.engine,
                        "devices": list(r.devices),
                        "when": r.when,
                    }
                    for r in found
                ]
            }
        )
        return
    if not found:
        printer.say("nothing was measured yet: `specllama probe MODEL`, or `serve`, does it")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "workload", "served with", "speed-up", "tok/s", "when"):
        table.add_column(name, justify="right" if name in ("speed-up", "tok/s") else "left")
    for r in found:
        table.add_row(
            Path(r.target).name,
            r.workload,
            r.label,
            f"{r.speedup[0]:.2f}x" if r.speedup else "",
            f"{r.tokens_per_second:.1f}",
            datetime.fromtimestamp(r.when).strftime("%Y-%m-%d %H:%M"),
        )
    printer.table(table)
