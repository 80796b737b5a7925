"""`specllama results`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.tuning.results import Result


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
            printer.say(f"{count} {'result' if count == 1 else 'results'} forgotten")
        return
    wanted = str(model.absolute()) if model is not None else None
    found = [r for r in all_results() if wanted in (None, r.target)]
    if as_json:
        printer.json({"results": [data(r) for r in found]})
        return
    if not found:
        what = f"of {model} " if model is not None else ""
        printer.say(f"nothing {what}was measured yet: `specllama probe MODEL`, or `serve`, does it")
        return
    printer.table(_table(found))
    for r in found:
        if r.speculation is None:
            printer.say(f"off      {Path(r.target).name}, {r.workload}: {r.reason}")


def data(r: Result) -> dict[str, Any]:
    return {
        "target": r.target,
        "workload": r.workload,
        "state": r.state,
        "speculation": r.label,
        "reason": r.reason,
        "speedup": list(r.speedup) if r.speedup else None,
        "chance_slower": r.slower,
        "tokens_per_second": r.tokens_per_second,
        "prompts": r.prompts,
        "texts": r.texts,
        "engine": r.engine,
        "devices": list(r.devices),
        "since": r.since,
        "when": r.when,
    }


def _table(found: Sequence[Result]) -> Table:
    """One row per result: what it says, how sure that is, and what it rests on."""
    from rich.table import Table

    from specllama.cli.probe_lines import chance
    from specllama.cli.tuning_lines import interval
    from specllama.tuning.results import moment

    names = ("model", "workload", "state", "served with", "speed-up", "chance slower", "tok/s")
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*names, "prompts", "since"):
        out.add_column(name, justify="right" if name in names[4:] else "left")
    for r in found:
        whose = "yours" if r.prompts == "yours" else "profile's"
        out.add_row(
            Path(r.target).name,
            r.workload,
            r.state,
            r.label,
            interval(r.speedup),
            chance(r.slower) if r.slower is not None else "",
            f"{r.tokens_per_second:.1f}" if r.tokens_per_second is not None else "",
            f"{r.texts} of {whose}" if r.texts else "",
            moment(r.since),
        )
    return out
