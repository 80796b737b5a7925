"""`specllama serve MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specllama.cli.help_pages import MODEL, OUTPUT, SERVER, TUNING
from specllama.cli.options import (
    MAX_SECONDS,
    OVERRIDING,
    AnyPort,
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
    Quiet,
    Slots,
    Verbose,
    Vram,
    Workload,
    reject_nan,
)

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.errors import StrictError
    from specllama.planning.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("serve", epilog=OVERRIDING)(serve)


def serve(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            rich_help_panel=MODEL,
            help="GGUF file (any part of a split one), or OWNER/REPO[:QUANT] on the Hugging Face "
            "Hub, which is downloaded with its draft.",
        ),
    ],
    workload: Workload = "chat",
    context: Context = 0,
    draft: Draft = None,
    method: Method = None,
    n_max: NMax = None,
    p_min: PMin = None,
    draft_layers: DraftLayers = None,
    draft_cache: DraftCache = None,
    vram: Vram = None,
    prefer: Prefer = None,
    tune: Annotated[
        Literal["auto", "full", "off"],
        typer.Option(
            "--tune",
            rich_help_panel=TUNING,
            help="auto reuses saved results, or runs a short benchmark; full runs a long one; "
            "off does neither.",
        ),
    ] = "auto",
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            min=1,
            max=MAX_SECONDS,
            rich_help_panel=TUNING,
            callback=reject_nan,
            help="Time limit for tuning, loading the model included.",
        ),
    ] = 60,
    prompts: Prompts = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            rich_help_panel=TUNING,
            help="Speculate even if it measured slower than plain decoding.",
        ),
    ] = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            rich_help_panel=TUNING,
            help="Switch to settings that real requests show to be faster, or to no speculation. "
            "The server restarts while idle; no request is lost.",
        ),
    ] = False,
    idle_probes: Annotated[
        bool,
        typer.Option(
            "--idle-probes/--no-idle-probes",
            rich_help_panel=TUNING,
            help="If no step times are saved, measure them with a few short requests while the "
            "server is idle.",
        ),
    ] = True,
    host: Host = "127.0.0.1",
    port: AnyPort = 8080,
    parallel: Slots = 1,
    api_key: ApiKey = None,
    llama_server: LlamaServer = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            rich_help_panel=SERVER,
            help="Write the server's log to FILE; its older half moves to FILE.1.",
        ),
    ] = None,
    dry_run: DryRun = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", rich_help_panel=OUTPUT, help="Exit with code 3 if speculation is off."
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", rich_help_panel=OUTPUT, help="Print one JSON object when the server is ready."
        ),
    ] = False,
    json_events: Annotated[
        bool,
        typer.Option(
            "--json-events",
            rich_help_panel=OUTPUT,
            help="Like --json, plus one line of JSON for each later event.",
        ),
    ] = False,
) -> None:
    """Serve MODEL with speculative decoding and verify that it drafts."""
    from specllama.cli.from_hub import resolved
    from specllama.cli.output import check_folder
    from specllama.cli.render import Printer, plan_data, plan_lines
    from specllama.cli.serve_lines import ServeReport
    from specllama.cli.streams import output_is_optional
    from specllama.cli.tuning_lines import tuning_data, tuning_lines
    from specllama.engine.settings import Settings
    from specllama.errors import StrictError, UsageError
    from specllama.logs import new_log
    from specllama.planning.prepare import prepare
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts
    from specllama.serving.adaptive import behind_relay, start_adaptive
    from specllama.serving.scope import scope_of
    from specllama.serving.serve import run_server
    from specllama.serving.tune import (
        TuningOptions,
        apply_stored_result,
        cached_line,
        tune_plan,
        tuning_reference,
        unfinished_result,
        would_measure,
    )
    from specllama.stop import Stopped
    from specllama.watching.running import port_users_named

    if log is not None:
        check_folder(log, "--log")
    if adaptive and strict:
        raise UsageError("--adaptive cannot be combined with --strict: it may turn speculation off")
    own = read_prompts(prompts) if prompts is not None else ()
    settings = Settings(
        model=Path(model), host=host, port=port, context=context, parallel=parallel, api_key=api_key
    )
    spec_options = SpeculationOptions(
        workload, draft, method, n_max, p_min, draft_layers, draft_cache, vram, prefer
    )
    as_json = as_json or json_events
    printer = Printer(as_json, quiet, verbose)
    server_arguments = ctx.obj or ()
    settings, plan = resolved(
        printer, model, settings, spec_options, server_arguments, llama_server, not dry_run
    )
    on_hub = plan is not None
    if plan is None:
        with printer.busy("reading the model and the engine …"), port_users_named():
            plan = prepare(
                settings, spec_options, server_arguments, llama_server, check_port=not dry_run
            )
    tuning = TuningOptions(tune, budget, scope_of(spec_options), force, own)
    if dry_run:
        measures = not on_hub and would_measure(plan, tuning)
        unfinished = unfinished_result(plan, tuning) if measures else None
        plan, saved = (plan, None) if on_hub else apply_stored_result(plan, tuning)
        if as_json:
            printer.json(plan_data(plan))
        else:
            for line in plan_lines(plan, verbose):
                printer.detail(line)
            if saved is not None:
                printer.detail(f"tuning   {cached_line(saved)}")
            if measures:
                state = "not measured yet: " if tune == "auto" and not force else ""
                reason = f"not decided yet: {unfinished.reason}; " if unfinished else state
                printer.detail(
                    f"tuning   {reason}serve runs a benchmark of up to {budget:g} s first"
                )
            printer.command(plan.command.display())
        _check_strict(plan, strict)  # the reason is in the plan's JSON
        return
    for line in plan_lines(plan, verbose):
        printer.detail(line)
    try:
        _check_strict(plan, strict)
    except StrictError as e:
        _print_refusal(printer, e, json_events)
        raise
    output_is_optional()
    path = log or new_log(plan.settings.port)
    base, at = plan, plan.settings
    if adaptive:
        base = plan = behind_relay(plan)
    outcome = None
    try:
        if would_measure(plan, tuning):
            printer.detail(f"tuning   up to {budget:g} s; Ctrl-C skips it")
        with printer.progress("tuning") as progress:
            outcome = tune_plan(plan, tuning, path, progress)
        for line in tuning_lines(outcome, verbose):
            printer.detail(line)
        report = ServeReport(printer, tuning_data(outcome), json_events)
        known = outcome.source in ("cached", "measured")
        measured = tuning_reference(outcome)
        run_server(
            outcome.plan,
            path,
            report,
            strict,
            known,
            outcome.running,
            measured,
            idle_probes,
            start_adaptive(base, at, outcome.plan, measured, tuning.scope) if adaptive else None,
        )
    except StrictError as e:
        _print_refusal(printer, e, json_events)
        raise
    except Stopped as e:  # before it served
        if e.is_interrupt:
            raise
    finally:
        if outcome is not None and outcome.running is not None:
            outcome.running.stop()


def _print_refusal(printer: Printer, e: StrictError, events: bool) -> None:
    """The JSON object of a server that --strict does not let serve."""
    if printer.as_json:
        first = {"event": "refused"} if events else {}
        printer.json({**first, "serving": False, "reason": e.message, "remedy": e.hint or None})


def _check_strict(plan: Plan, strict: bool) -> None:
    """Raises StrictError where speculation must be on and is off."""
    from specllama.errors import StrictError

    if strict and not plan.speculates:
        raise StrictError(f"speculation OFF because {plan.choice.reason}", plan.choice.remedy)
