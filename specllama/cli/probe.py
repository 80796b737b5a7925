"""`specllama probe MODEL` and `specllama probe --url URL`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli import complete
from specllama.cli.help_pages import DRAFT, MODEL, OUTPUT, RUNNING_SERVERS, TUNING
from specllama.cli.options import (
    MAX_SECONDS,
    SERVER_ARGUMENTS,
    ApiKey,
    AsJson,
    Context,
    Draft,
    DryRun,
    LlamaServer,
    Method,
    Prompts,
    Quiet,
    Slots,
    Verbose,
    Vram,
    reject_nan,
)

if TYPE_CHECKING:
    pass


def register(app: typer.Typer) -> None:
    app.command("probe", epilog=f"{SERVER_ARGUMENTS}.")(probe)


def probe(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            rich_help_panel=MODEL,
            help="GGUF file to measure, or OWNER/REPO[:QUANT] on the Hugging Face Hub; omit it "
            "with --url.",
        ),
    ] = None,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "-w",
            metavar="NAME[,NAME]",
            rich_help_panel=MODEL,
            autocompletion=complete.workloads,
            help="Workload profile, or a mix of several; may be repeated. chat unless set.",
        ),
    ] = None,
    context: Context = 0,
    draft: Draft = None,
    method: Method = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--draft-lengths",
            metavar="N[,N]",
            rich_help_panel=DRAFT,
            help="Measure only these draft lengths K, e.g. 1,2,4.",
        ),
    ] = None,
    vram: Vram = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            rich_help_panel=TUNING,
            help="Compare every method that fits, combinations too, whether or not it is expected "
            "to pay off.",
        ),
    ] = False,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            max=MAX_SECONDS,
            rich_help_panel=TUNING,
            callback=reject_nan,
            help="Time limit for all workloads together, loading the model included.",
        ),
    ] = 300,
    prompts: Prompts = None,
    replayed: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FILE",
            rich_help_panel=TUNING,
            help="Predict the speed-up of every setting on past conversations: JSON lines with "
            "responses (OpenAI messages). Nothing is generated again.",
        ),
    ] = None,
    parallel: Slots = 1,
    llama_server: LlamaServer = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            rich_help_panel=RUNNING_SERVERS,
            help="Measure a running server (llama.cpp, vLLM, SGLang, …).",
        ),
    ] = None,
    baseline_url: Annotated[
        str | None,
        typer.Option(
            "--baseline-url",
            metavar="URL",
            rich_help_panel=RUNNING_SERVERS,
            help="With --url: a server with the same model without speculation.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            rich_help_panel=RUNNING_SERVERS,
            help="With --url: the model to use if the server has several.",
        ),
    ] = None,
    api_key: ApiKey = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write an HTML report: one file that works offline.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write a CSV table, one row per setting.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write the figures as FILE.png or FILE.svg; needs matplotlib.",
        ),
    ] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure every speculative method for MODEL and show which is fastest.

    The answer may be that plain decoding is fastest. serve reuses the results.
    """
    from specllama.cli import probe_runs as runs
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer
    from specllama.engine.settings import Settings
    from specllama.errors import UsageError
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts
    from specllama.serving.probe import ProbeOptions

    if (model is None) == (url is None):
        raise UsageError("probe takes either a MODEL or --url URL")
    if budget <= 0:
        raise UsageError(f"--budget {budget:g}: no time to measure anything")
    if replayed is not None:
        others = {
            "--url": url, "--prompts": prompts, "--draft-lengths": lengths, "--report": report,
            "--csv": csv, "--plot": plot, "--baseline-url": baseline_url, "--model": name,
        }  # fmt: skip
        if clash := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"--replay cannot be combined with {clash[0]}")
    files = {"--report": report, "--csv": csv, "--plot": plot}
    outputs = {option: path for option, path in files.items() if path is not None}
    _check_outputs(outputs, url)
    own = read_prompts(prompts) if prompts is not None else ()
    printer = Printer(as_json, quiet, verbose)
    names = workloads or ["chat"]
    if url is not None:
        if dry_run:
            raise UsageError("--dry-run cannot be combined with --url, which starts nothing")
        from specllama.cli.attached import show_attached

        show_attached(printer, url, baseline_url, name, api_key, own, names[0], budget)
        return
    assert model is not None
    for option, value in (("--baseline-url", baseline_url), ("--model", name)):
        if value is not None:
            raise UsageError(f"{option} needs --url")
    options = ProbeOptions(
        settings=Settings(
            Path(model), "127.0.0.1", 0, context=context, parallel=parallel, api_key=api_key
        ),
        spec_options_list=tuple(
            SpeculationOptions(w, draft, method, vram=vram) for w in dict.fromkeys(names)
        ),
        user_args=tuple(ctx.obj or ()),
        llama_server=llama_server,
        prompts=own,
        prompts_file=prompts,
        budget=budget,
        everything=everything,
        lengths=_draft_lengths(lengths),
    )
    settings, unseen = resolved(
        printer,
        model,
        options.settings,
        options.spec_options_list[0],
        options.user_args,
        llama_server,
        not dry_run,
    )
    if unseen is not None:  # what is measured depends on the file
        runs.show_unseen(printer, unseen)
        return
    options = replace(options, settings=settings)
    if replayed is not None:
        runs.show_replay(printer, options, replayed, dry_run)
        return
    if dry_run:
        runs.show_planned(printer, options)
        return
    found = runs.measured(printer, options)
    runs.show(printer, found, outputs)
    runs.show_unreached(printer, options, len(found))
    if len(found) < len(options.spec_options_list) or any(p.stopped for p in found):
        raise typer.Exit(130)


def _check_outputs(outputs: Mapping[str, Path], url: str | None) -> None:
    """Called before minutes of measuring. Raises UsageError for a file that cannot be written."""
    from specllama.cli import plot_file
    from specllama.cli.output import check_writable
    from specllama.errors import UsageError

    for option, path in outputs.items():
        if url is not None:
            raise UsageError(f"{option} needs a MODEL: with --url, use --json")
        if option == "--plot":
            plot_file.check(path)
        check_writable(path, option)
    if len({os.path.realpath(path) for path in outputs.values()}) < len(outputs):
        raise UsageError(f"{' and '.join(outputs)}: each needs a file of its own")


def _draft_lengths(text: str | None) -> tuple[int, ...]:
    from specllama.errors import UsageError

    if text is None:
        return ()
    words = [w.strip() for w in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,2}", w) and 1 <= int(w) <= 64 for w in words):
        raise UsageError(f"--draft-lengths {text}: must be numbers from 1 to 64, e.g. 1,2,4")
    return tuple(sorted({int(w) for w in words}))
