"""`specllama demo`: all of `serve` on the packaged tiny models, in seconds."""

from __future__ import annotations

from dataclasses import replace

import typer

from specllama.cli.options import AsJson, DryRun, LlamaServer, Quiet

_PROMPT = 'def read_lines(path):\n    """Return the lines of a file.'


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    ctx: typer.Context,
    llama_server: LlamaServer = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try speculative decoding with built-in test models.

    Starts the server, sends one completion, shows how many drafted tokens were accepted, and
    stops.
    """
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer, plan_data, plan_lines
    from specllama.cli.serve_lines import ServeReport, engagement_line, ready_data
    from specllama.cli.units import plural
    from specllama.engine.settings import Settings
    from specllama.errors import StrictError
    from specllama.logs import new_log
    from specllama.planning.prepare import prepare
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.resources import demo_model
    from specllama.serving.launch import launch
    from specllama.serving.serve import Ready, check_engagement

    no_passthrough(ctx.obj or (), "demo")
    printer = Printer(as_json, quiet)
    settings = Settings(demo_model("target.gguf"), host="127.0.0.1", port=0, context=1024)
    spec_options = SpeculationOptions("code", draft=demo_model("draft.gguf"))
    # The tiny models need one thread; more are slower.
    plan = prepare(settings, spec_options, ("-t", "1"), llama_server or "embedded")
    engine = plan.engine if llama_server else replace(plan.engine, reason="default of the demo")
    plan = replace(plan, engine=engine, choice=replace(plan.choice, reason="part of the demo"))
    if dry_run and as_json:
        printer.json(plan_data(plan))
        return
    for line in plan_lines(plan):
        printer.detail(line)
    if not quiet or dry_run:
        printer.command(f"command  {plan.command.display()}")
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
    for line in (*_block("prompt", _PROMPT), *_block("response", completion.text)):
        printer.detail(line)
    if t := completion.timings:
        printer.detail(
            f"drafted  {plural(t.drafted, 'token')} for this response of {t.tokens}, "
            f"{t.accepted} accepted; server stopped"
        )
    printer.detail("note     drafting works, but a model this small is faster without speculation")
    if not engagement.engaged or engagement.only_costs:
        raise StrictError("the demo did not speculate", f"Log: {running.server.log}")


def _block(label: str, text: str) -> list[str]:
    """Text of several lines behind a label, indented under its first line."""
    lines = text.strip("\n").splitlines() or [""]
    return [f"{label if i == 0 else '':9}{line}" for i, line in enumerate(lines)]
