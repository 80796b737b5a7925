"""`specllama serve MODEL`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specllama.cli import complete
from specllama.cli.options import (
    MOST_SECONDS,
    OUTPUT,
    SERVER,
    TUNING,
    ApiKey,
    Context,
    Draft,
    DraftCache,
    DraftLayers,
    DryRun,
    Host,
    LlamaServer,
    Method,
    NMax,
    PMin,
    Prefer,
    Prompts,
    Slots,
    Vram,
    Workload,
    a_number,
)


def register(app: typer.Typer) -> None:
    app.command(
        "serve",
        epilog="Arguments after -- go to llama-server and win. Its own names (-md, --spec-type, -np, "
        "-ngl, -ctk …) are understood before -- too.",
    )(serve)


def serve(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The GGUF file to serve (any part of a split one), or OWNER/REPO[:QUANT] on the "
            "Hugging Face Hub, which is downloaded with its draft.",
        ),
    ],
    workload: Workload = "chat",
    draft: Draft = None,
    method: Method = None,
    n_max: NMax = None,
    p_min: PMin = None,
    draft_layers: DraftLayers = None,
    draft_cache: DraftCache = None,
    context: Context = 0,
    parallel: Slots = 1,
    host: Host = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            rich_help_panel=SERVER,
            envvar="LLAMA_ARG_PORT",
            help="Port; 0 = a free one.",
        ),
    ] = 8080,
    api_key: ApiKey = None,
    vram: Vram = None,
    prefer: Prefer = None,
    prompts: Prompts = None,
    tune: Annotated[
        str,
        typer.Option(
            rich_help_panel=TUNING,
            autocompletion=complete.one_of("auto", "off", "full"),
            help="auto: reuse saved results, or run a short benchmark; off; full: a long one.",
        ),
    ] = "auto",
    budget: Annotated[
        float,
        typer.Option(
            min=1,
            max=MOST_SECONDS,
            rich_help_panel=TUNING,
            callback=a_number,
            help="Seconds that tuning may take, loading the model included.",
        ),
    ] = 60,
    force: Annotated[
        bool,
        typer.Option("--force", rich_help_panel=TUNING, help="Speculate even where it is slower."),
    ] = False,
    llama_server: LlamaServer = None,
    log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=OUTPUT, help="File for the server's log; its older half goes to FILE.1."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", rich_help_panel=OUTPUT, help="Exit with code 3 when speculation is off."
        ),
    ] = False,
    dry_run: DryRun = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            rich_help_panel=TUNING,
            help="Restart with other settings, or without speculation, when real requests show that "
            "these are faster: while the server is idle, and no request is lost.",
        ),
    ] = False,
    idle_probes: Annotated[
        bool,
        typer.Option(
            "--idle-probes/--no-idle-probes",
            rich_help_panel=TUNING,
            help="Where nothing was measured: time a few short requests while the server is idle.",
        ),
    ] = True,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON object when ready."),
    ] = False,
    json_events: Annotated[
        bool,
        typer.Option(
            "--json-events",
            rich_help_panel=OUTPUT,
            help="As --json, and one line of JSON for whatever happens later.",
        ),
    ] = False,
) -> None:
    """Serve MODEL with a draft that fits it, and check that it really drafts."""
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer, ServeReport, plan_data, plan_lines
    from specllama.cli.streams import may_be_lost
    from specllama.cli.tuning_lines import tuning_data, tuning_lines
    from specllama.engine.settings import Settings
    from specllama.errors import StrictError, UsageError
    from specllama.logs import new_log
    from specllama.planning.prepare import prepare
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts
    from specllama.serving.adaptive import behind_relay, start_adaptive
    from specllama.serving.scope import scope_of
    from specllama.serving.serve import serve as run
    from specllama.serving.tune import (
        AUTO,
        FULL,
        OFF,
        TuningOptions,
        tune_plan,
        tuning_reference,
        with_stored_result,
    )
    from specllama.stop import Stopped

    if log is not None and os.path.isdir(log):
        raise UsageError(f"--log {log} is a folder", "Give the name of a file in it.")
    if adaptive and strict:
        raise UsageError("--adaptive may switch speculation off, which --strict forbids")
    if tune not in (AUTO, OFF, FULL):
        raise UsageError(f"--tune {tune}: must be {AUTO}, {FULL} or {OFF}")
    own = read_prompts(prompts) if prompts is not None else ()
    settings = Settings(
        model=Path(model), host=host, port=port, context=context, parallel=parallel, api_key=api_key
    )
    spec_options = SpeculationOptions(
        workload, draft, method, n_max, p_min, draft_layers, draft_cache, vram, prefer
    )
    as_json = as_json or json_events
    printer = Printer(as_json)
    theirs = ctx.obj or ()
    settings, plan = resolved(
        printer, model, settings, spec_options, theirs, llama_server, not dry_run
    )
    on_hub = plan is not None
    if plan is None:
        with printer.busy("reading the model and the engine …"):
            plan = prepare(settings, spec_options, theirs, llama_server, check_port=not dry_run)
    wanted = TuningOptions(tune, budget, scope_of(spec_options), force, own)
    if dry_run:
        plan = plan if on_hub else with_stored_result(plan, wanted)
        if as_json:
            printer.json(plan_data(plan))
            return
    for line in plan_lines(plan):
        printer.say(line)
    if dry_run:
        printer.say(plan.command.display())
        return
    if strict and not plan.speculates:
        raise StrictError(f"speculation OFF because {plan.choice.reason}", plan.choice.remedy)
    may_be_lost()
    path = log or new_log(plan.settings.port)
    base, at = plan, plan.settings
    if adaptive:
        base = plan = behind_relay(plan)
    outcome = None
    try:
        with printer.progress("tuning") as progress:
            outcome = tune_plan(plan, wanted, path, progress)
        for line in tuning_lines(outcome):
            printer.say(line)
        report = ServeReport(printer, tuning_data(outcome), json_events)
        known = outcome.source in ("cached", "measured")
        measured = tuning_reference(outcome)
        run(
            outcome.plan,
            path,
            report,
            strict,
            known,
            outcome.running,
            measured,
            idle_probes,
            start_adaptive(base, at, outcome.plan, measured, wanted.scope) if adaptive else None,
        )
    except Stopped as e:  # before it served
        if e.is_interrupt:
            raise
    finally:
        if outcome is not None and outcome.running is not None:
            outcome.running.stop()
