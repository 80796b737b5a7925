"""`specllama demo`: the whole of `serve` on the packaged tiny pair, in seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from specllama.cli.options import DryRun, LlamaServer

_PROMPT = 'def read_lines(path):\n    """Return the lines of a file.'


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    ctx: typer.Context,
    llama_server: LlamaServer = "embedded",
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Serve the packaged tiny model and its draft, send a completion, say what happened, stop."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import (
        Printer,
        ServeReport,
        engagement_line,
        plan_data,
        plan_lines,
        ready_data,
    )
    from specllama.engine.settings import Settings
    from specllama.errors import StrictError
    from specllama.logs import new_log
    from specllama.planning.prepare import prepare
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.resources import demo_model
    from specllama.serving.launch import launch
    from specllama.serving.serve import Ready, check_engagement

    no_passthrough(ctx.obj or (), "demo")
    printer = Printer(as_json)
    settings = Settings(demo_model("target.gguf"), host="127.0.0.1", port=0, context=1024)
    spec_options = SpeculationOptions("code", draft=demo_model("draft.gguf"))
    # The tiny pair needs one thread; more only wait for each other.
    plan = prepare(settings, spec_options, ("-t", "1"), llama_server)
    if dry_run and as_json:
        printer.json(plan_data(plan))
        return
    for line in plan_lines(plan):
        printer.say(line)
    printer.say(f"command  {plan.command.display()}")
    if dry_run:
        return
    running = launch(plan, new_log(plan.settings.port), ServeReport(printer))
    try:
        engagement = check_engagement(running)
        completion = running.client.complete(_PROMPT, 64, {"temperature": 0.0})
    finally:
        running.stop()
    if as_json:
        ready = ready_data(Ready(running, engagement, running.plan.settings.url))
        printer.json({**ready, "prompt": _PROMPT, "completion": completion.text})
    printer.say(engagement_line(engagement), "green" if engagement.engaged else "yellow")
    for line in (*_block("prompt", _PROMPT), *_block("answer", completion.text)):
        printer.say(line)
    if t := completion.timings:
        printer.say(
            f"drafted  {t.drafted} tokens for this answer of {t.tokens}, {t.accepted} accepted; "
            "the server is stopped"
        )
    printer.say("note     this pair shows that drafting works; a target this small is faster alone")
    if not engagement.engaged or engagement.only_costs:
        raise StrictError("the demo did not speculate", f"Log: {running.server.log}")


def _block(label: str, text: str) -> list[str]:
    """Text of several lines behind a label, indented under its first line."""
    lines = text.strip("\n").splitlines() or [""]
    return [f"{label if i == 0 else '':9}{line}" for i, line in enumerate(lines)]
