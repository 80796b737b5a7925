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
from specllama.cli.options import (
    DRAFTING,
    MOST_SECONDS,
    ApiKey,
    Context,
    Draft,
    DryRun,
    LlamaServer,
    Method,
    Prompts,
    Slots,
    Vram,
    a_number,
)

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.planning.plan import Plan
    from specllama.serving.probe import ProbeOptions, ProbeResult


def register(app: typer.Typer) -> None:
    app.command("probe", epilog="Arguments after -- go to llama-server.")(probe)


def probe(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="The model to probe, a file or OWNER/REPO[:QUANT] on the Hub; none with --url.",
        ),
    ] = None,
    draft: Draft = None,
    method: Method = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every way that fits in one table, expected to pay or not; combinations too.",
        ),
    ] = False,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "-w",
            autocompletion=complete.workloads,
            help="A profile (`profiles list`); a mix by comma; may repeat.",
        ),
    ] = None,
    prompts: Prompts = None,
    replayed: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            help="Your past conversations, JSON lines with their answers (OpenAI messages): what "
            "every setting would have gained on them. Nothing is generated again.",
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            max=MOST_SECONDS,
            callback=a_number,
            help="Seconds of wall time for all workloads together, loading the model included.",
        ),
    ] = 300,
    n_max: Annotated[
        str | None,
        typer.Option(
            "--n-max",
            rich_help_panel=DRAFTING,
            help="Only these draft lengths K, as 1,2,4.",
        ),
    ] = None,
    context: Context = 0,
    parallel: Slots = 1,
    vram: Vram = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report: one file that works offline.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write a CSV table, one row per measured setting.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write the figures as FILE.png or FILE.svg; needs matplotlib."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Attach to a running server (llama.cpp, vLLM, SGLang, …).")
    ] = None,
    baseline_url: Annotated[
        str | None, typer.Option(help="With --url: the same model there without speculation.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--model", help="With --url: the model to ask, where several are served."),
    ] = None,
    api_key: ApiKey = None,
    llama_server: LlamaServer = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure every way MODEL could speculate, and say which is fastest, or that none is."""
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer
    from specllama.engine.settings import Settings
    from specllama.errors import UsageError
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts
    from specllama.serving.probe import ProbeOptions

    if (model is None) == (url is None):
        raise UsageError("probe takes a MODEL or --url URL, one of the two")
    if budget <= 0:
        raise UsageError(f"--budget {budget:g}: there is no time to measure anything")
    if replayed is not None:
        others = {
            "--url": url, "--prompts": prompts, "--n-max": n_max, "--report": report, "--csv": csv,
            "--plot": plot, "--baseline-url": baseline_url, "--model": name,
        }  # fmt: skip
        if clash := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"--replay cannot be combined with {clash[0]}")
    files = {"--report": report, "--csv": csv, "--plot": plot}
    outputs = {option: path for option, path in files.items() if path is not None}
    _check_outputs(outputs, url)
    own = read_prompts(prompts) if prompts is not None else ()
    printer = Printer(as_json)
    names = workloads or ["chat"]
    if url is not None:
        if dry_run:
            raise UsageError("--dry-run needs a MODEL: with --url nothing is launched")
        from specllama.cli.attached import show_attached

        show_attached(printer, url, baseline_url, name, api_key, own, names[0], budget)
        return
    assert model is not None
    for option, value in (("--baseline-url", baseline_url), ("--model", name)):
        if value is not None:
            raise UsageError(f"{option} needs --url")
    asked = ProbeOptions(
        settings=Settings(
            Path(model), "127.0.0.1", 0, context=context, parallel=parallel, api_key=api_key
        ),
        spec_options_list=tuple(
            SpeculationOptions(w, draft, method, vram=vram) for w in dict.fromkeys(names)
        ),
        user_args=tuple(ctx.obj or ()),
        llama_server=llama_server,
        prompts=own,
        budget=budget,
        everything=everything,
        lengths=_lengths(n_max),
    )
    settings, unseen = resolved(
        printer,
        model,
        asked.settings,
        asked.spec_options_list[0],
        asked.user_args,
        llama_server,
        not dry_run,
    )
    if unseen is not None:  # what would be measured depends on what is in the file
        _show_unseen(printer, unseen)
        return
    asked = replace(asked, settings=settings)
    if replayed is not None:
        _replay(printer, asked, replayed, dry_run)
        return
    if dry_run:
        _show_planned(printer, asked)
        return
    found = _measured(printer, asked)
    _show(printer, found, outputs)
    if len(found) < len(asked.spec_options_list) or any(p.stopped for p in found):
        raise typer.Exit(1)


def _check_outputs(outputs: Mapping[str, Path], url: str | None) -> None:
    """Before minutes of measuring. Raises UsageError for a file that could not be written."""
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


def _show_unseen(printer: Printer, plan: Plan) -> None:
    from specllama.cli.render import plan_data, plan_lines

    for line in plan_lines(plan):
        printer.say(line)
    if printer.as_json:
        printer.json(plan_data(plan))


def _lengths(text: str | None) -> tuple[int, ...]:
    from specllama.errors import UsageError

    if text is None:
        return ()
    words = [w.strip() for w in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,2}", w) and 1 <= int(w) <= 64 for w in words):
        raise UsageError(f"--n-max {text}: give draft lengths from 1 to 64 by comma, as 1,2,4")
    return tuple(sorted({int(w) for w in words}))


def _show_planned(printer: Printer, asked: ProbeOptions) -> None:
    from specllama.cli.planned_lines import planned_data, planned_lines
    from specllama.serving.probe import plan_probes

    each = list(plan_probes(asked))
    if printer.as_json:
        printer.json({"workloads": [planned_data(p) for p in each]})
        return
    for line in (line for p in each for line in planned_lines(p)):
        printer.say(line)


def _measured(printer: Printer, asked: ProbeOptions) -> tuple[ProbeResult, ...]:
    """The answers; whatever there is after Ctrl-C or another signal that ends us."""
    from specllama.logs import new_log
    from specllama.serving.probe import probe as run
    from specllama.tuning.errors import TuningError

    log = new_log(0).with_suffix(".probe.log")
    try:
        with printer.progress("probing") as progress:
            return run(asked, log, progress)
    except KeyboardInterrupt:
        raise TuningError("stopped before anything was measured") from None


def _show(printer: Printer, found: tuple[ProbeResult, ...], outputs: Mapping[str, Path]) -> None:
    from specllama.cli import probe_lines as lines
    from specllama.cli.output import save

    if printer.as_json:
        printer.json({"workloads": [lines.data(p) for p in found]})
    else:
        for p in found:
            printer.say(lines.title(p), "bold")
            if p.plan.workload.mixed:
                printer.say(f"workload {p.plan.workload.mixed}")
            printer.table(lines.table(p))
            for line in lines.below_table(p):
                printer.say(line)
    for option, path in outputs.items():
        save(path, _output(option, path, found), option)
        printer.say(f"{option.removeprefix('--'):<8} {path}")


def _output(option: str, path: Path, found: tuple[ProbeResult, ...]) -> bytes:
    """The file's content. Names that are no Unicode are written with escapes."""
    if option == "--plot":
        from specllama.cli.plot_file import picture

        return picture(found, path)
    if option == "--report":
        from specllama.cli.report import html

        return html(found).encode("utf-8", "backslashreplace")
    from specllama.cli.probe_csv import csv_text

    return csv_text(found).encode("utf-8", "backslashreplace")


def _replay(printer: Printer, asked: ProbeOptions, file: Path, dry_run: bool) -> None:
    """What the settings would have gained on past conversations."""
    from specllama.cli import replay_lines as lines
    from specllama.logs import new_log
    from specllama.serving.replay import plan_replay, replay
    from specllama.tuning.conversations import read_conversations
    from specllama.tuning.errors import TuningError

    source = read_conversations(file)
    if dry_run:
        p = plan_replay(asked)
        if printer.as_json:
            printer.json(lines.planned_replay_data(p, source))
        else:
            for line in lines.planned_replay_lines(p, source):
                printer.say(line)
        return
    try:
        with printer.progress("replay") as progress:
            found = replay(asked, source, new_log(0).with_suffix(".replay.log"), progress)
    except KeyboardInterrupt:
        raise TuningError("stopped before anything was replayed") from None
    if printer.as_json:
        printer.json(lines.data(found))
        return
    printer.say(lines.title(found), "bold")
    printer.table(lines.table(found))
    for line in lines.below_table(found):
        printer.say(line)
