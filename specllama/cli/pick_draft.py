"""`specllama pick-draft TARGET`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli.help_pages import DRAFT, MODEL
from specllama.cli.options import AsJson, Context, LlamaServer, Quiet, Verbose, Vram, Workload
from specllama.cli.pick_lines import last_lines, pick_data, print_candidates, saved_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specllama.drafts.pick import PickResult
    from specllama.gguf import ModelInfo
    from specllama.planning.candidate_memory import CandidateMemory

_NOTHING_TO_SEARCH = (
    "the Hub has no repository to search: none is known for this model's family or base model"
)


def register(app: typer.Typer) -> None:
    app.command("pick-draft")(pick_draft)


def pick_draft(
    ctx: typer.Context,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", rich_help_panel=MODEL, help="GGUF file to find drafts for."
        ),
    ],
    workload: Workload = "chat",
    context: Context = 0,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            rich_help_panel=DRAFT,
            help="Search this folder and all below it; may be repeated.",
        ),
    ] = None,
    hub: Annotated[
        bool,
        typer.Option(
            "--hub",
            rich_help_panel=DRAFT,
            help="Also search the Hugging Face Hub (only headers are read).",
        ),
    ] = False,
    download: Annotated[
        bool,
        typer.Option(
            "--download",
            rich_help_panel=DRAFT,
            help="With --hub: download the best draft if it is not here.",
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            rich_help_panel=DRAFT,
            help="Measure the acceptance rate of plain drafts in this process (needs llama-cpp-python).",
        ),
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            rich_help_panel=DRAFT,
            help="With --measure: measure on this text.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            max=1024,
            rich_help_panel=DRAFT,
            help="With --measure: CPU threads to use.",
        ),
    ] = None,
    vram: Vram = None,
    llama_server: LlamaServer = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Find draft models that fit TARGET, ranked.

    Shows the memory each draft takes and its expected speed-up, and why the other files do not
    fit. Exits with 0 if a draft fits, with 1 if none does.
    """
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.drafts import hub as remote
    from specllama.drafts.discover import discover
    from specllama.drafts.pick import rank_drafts
    from specllama.engine.launch_options import read_launch_options
    from specllama.engine.loading import check_loads
    from specllama.errors import UsageError
    from specllama.memory.devices import find_machine, parse_sizes
    from specllama.planning.candidate_memory import memory_of_candidates
    from specllama.planning.prepare import target_info, usable_engine
    from specllama.workloads import load_workload

    no_passthrough(ctx.obj or (), "pick-draft")
    if download and not hub:
        raise UsageError("--download needs --hub")
    if text is not None and not measure:
        raise UsageError("--text needs --measure")
    if threads is not None and not measure:
        raise UsageError("--threads needs --measure")
    printer = Printer(quiet=quiet, verbose=verbose)
    for folder in folders or []:
        if not os.path.isdir(folder):
            raise UsageError(f"--dir {folder}: no such folder")
    profile = load_workload(workload)
    with printer.busy("looking for drafts …"):
        info = target_info(target)
        engine, caps = usable_engine(llama_server)
        warnings = check_loads(info, caps)
        user = read_launch_options((), caps, os.environ)
        sizes = parse_sizes(vram) if vram is not None else ()
        devices = find_machine(engine, sizes, user.values("--rpc"))
        found = discover(info, folders or [])
    if hub:
        with printer.busy("searching the Hugging Face Hub …"):
            repositories = remote.repositories(info)
            found = found.and_also(remote.search(info, repositories))
        if not repositories:
            warnings = (*warnings, _NOTHING_TO_SEARCH)
    picked = rank_drafts(info, profile, caps, found)
    if measure:
        from specllama.drafts.measured import measure_candidates

        with printer.busy("comparing target and drafts …"):
            picked = measure_candidates(info, picked, profile, text, threads)
    space = memory_of_candidates(info, picked.candidates, caps, devices, user, context)
    best = _best(picked, space)
    on_hub = remote.hub_label(best.path) if best is not None else None
    draft = on_hub or (str(best.path) if best is not None else None)
    if on_hub is not None and download:
        draft, on_hub = str(remote.download(on_hub)), None
    if as_json:
        data = pick_data(info, picked, space, workload, draft)
        printer.json({**data, "warnings": list(warnings), "skipped": list(found.skipped)})
    else:
        for line in warnings:
            printer.detail(f"note     {line}")
        print_candidates(printer, info, picked, space)
        for line in found.skipped:
            printer.detail(f"skipped  {line}; --dir searches a folder completely")
        if (saved := saved_line(info, workload)) is not None:
            printer.detail(saved)
        last = last_lines(info, picked, workload, draft, on_hub, context)
        printer.lines(last, results=("run", "get", "no"))
    if not picked.candidates:
        raise typer.Exit(1)


def _best(picked: PickResult, space: Sequence[CandidateMemory | None]) -> ModelInfo | None:
    """The file of the first candidate that fits, else of the first one."""
    choices = list(zip(picked.candidates, space, strict=True))
    fitting = [c for c, room in choices if room is None or room.longest]
    return (fitting or list(picked.candidates))[0].draft if choices else None
