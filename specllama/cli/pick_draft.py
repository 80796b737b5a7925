"""`specllama pick-draft TARGET`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.help_pages import DRAFT, MODEL
from specllama.cli.measured_lines import cost_lines, measured_data
from specllama.cli.options import AsJson, Context, LlamaServer, Quiet, Verbose, Vram, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specllama.cli.render import Printer
    from specllama.drafts.pick import Candidate, PickResult
    from specllama.gguf import ModelInfo
    from specllama.planning.candidate_memory import CandidateMemory

_SHOWN_REJECTED = 12
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
    from specllama.engine.launch_options import read
    from specllama.engine.loading import check_loads
    from specllama.errors import UsageError
    from specllama.memory.devices import machine, parse_sizes
    from specllama.planning.candidate_memory import memory_of_candidates
    from specllama.planning.prepare import target_info, usable_engine
    from specllama.workloads import load

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
    profile = load(workload)
    with printer.busy("looking for drafts …"):
        info = target_info(target)
        engine, caps = usable_engine(llama_server)
        warnings = check_loads(info, caps)
        user = read((), caps, os.environ)
        sizes = parse_sizes(vram) if vram is not None else ()
        devices = machine(engine, sizes, user.values("--rpc"))
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
    on_hub = remote.label(best.path) if best is not None else None
    draft = on_hub or (str(best.path) if best is not None else None)
    if on_hub is not None and download:
        draft, on_hub = str(remote.download(on_hub)), None
    if as_json:
        data = _data(info, picked, space, workload, draft)
        printer.json({**data, "warnings": list(warnings), "skipped": list(found.skipped)})
    else:
        for line in warnings:
            printer.detail(f"note     {line}")
        _print(printer, info, picked, space)
        for line in found.skipped:
            printer.detail(f"skipped  {line}; --dir searches a folder completely")
        last = _last_lines(info, picked, workload, draft, on_hub, context)
        printer.lines(last, results=("run", "get", "without", "no"))
    if not picked.candidates:
        raise typer.Exit(1)


def _print(
    printer: Printer,
    target: ModelInfo,
    picked: PickResult,
    space: Sequence[CandidateMemory | None],
) -> None:
    if picked.candidates:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        alpha = "α (* measured)" if any(c.measured for c in picked.candidates) else "α prior"
        for name in ("method", "file", "size", "memory", "fits", alpha, "τ at K", "predicted"):
            left = name in ("method", "file", "fits")
            table.add_column(name, justify="left" if left else "right")
        for c, room in zip(picked.candidates, space, strict=True):
            table.add_row(*_row(target, c, room))
        printer.table(table)
        if (room := next((r for r in space if r is not None), None)) is not None:
            plain = (
                f"{room.longest_without:,} tokens fit"
                if room.longest_without
                else "no context length fits"
            )
            printer.detail(
                f"memory   in addition to the target, at a context of {room.context:,} tokens; "
                f"without a draft {plain}"
            )
    for source in dict.fromkeys(c.measured.source for c in picked.candidates if c.measured):
        printer.detail(f"note     α and τ marked * are measured on {source}, at temperature 0")
    for line in cost_lines(picked):
        printer.detail(line)
    for c in picked.candidates:
        for warning in c.warnings:
            printer.detail(f"note     {_file(target, c)}: {warning}")
    listed = picked.rejected if printer.verbose else picked.rejected[:_SHOWN_REJECTED]
    for r in listed:
        printer.detail(f"not used {r.what}: {r.detail} ({r.rule})")
    if len(listed) < len(picked.rejected):
        printer.detail(f"         and {len(picked.rejected) - len(listed)} more; see --verbose")


def _row(target: ModelInfo, c: Candidate, room: CandidateMemory | None) -> tuple[str, ...]:
    from specllama.cli.units import mib

    p = c.prediction
    size = mib(c.draft.file_bytes) if c.draft else "in the model"
    extra = f"+{mib(room.extra)}" if room else "unknown"
    cells = (c.method, _file(target, c), size, extra, _fits(room))
    if m := c.measured:
        tau = f"{m.tau:.2f} ({m.tau_low:.2f} to {m.tau_high:.2f}) at {m.k}"
        return (*cells, f"{m.alpha:.2f}*", f"{tau}*", f"about {m.speedup:.2f}x")
    tau = f"{p.tau:.2f} at {p.k}"
    return (*cells, f"{p.prior.alpha:.2f}", tau, f"{p.low:.2f}x to {p.high:.2f}x")


def _best(picked: PickResult, space: Sequence[CandidateMemory | None]) -> ModelInfo | None:
    """The file of the first candidate that fits, else of the first one."""
    ways = list(zip(picked.candidates, space, strict=True))
    fitting = [c for c, room in ways if room is None or room.longest]
    return (fitting or list(picked.candidates))[0].draft if ways else None


def _fits(room: CandidateMemory | None) -> str:
    """Whether it fits, and up to which context length."""
    if room is None:
        return "unknown"
    if not room.longest:
        return "partly" if room.verdict.gpu_layers else "no"
    if room.fits and room.longest >= room.longest_without:
        return "yes"
    return f"up to {room.longest:,} tokens"


def _file(target: ModelInfo, c: Candidate) -> str:
    return c.draft.title if c.draft else f"{target.title} (its MTP head)"


def _last_lines(
    target: ModelInfo,
    picked: PickResult,
    workload: str,
    draft: str | None,
    on_hub: str | None,
    context: int,
) -> list[str]:
    """The command to run, or what to download. `on_hub`: the draft's name on the Hub, if it is
    not on this machine."""
    import shlex

    if picked.candidates:
        words = ["specllama", "serve", str(target.path), "--workload", workload]
        if on_hub is not None:
            return [f"get      {on_hub} (--hub --download fetches it)"]
        if draft is not None:
            words += ["--draft", draft]
        words += ["-c", str(context)] if context else []
        return [f"run      {shlex.join(words)}"]
    return _advice(target)


def _advice(target: ModelInfo) -> list[str]:
    from specllama.drafts.families import family_of

    family = family_of(target)
    out = [f"no draft found for {target.title}"]
    if family is None:
        out.append("get      a much smaller model of the same family, from the same uploader")
    else:
        for s in family.suggestions:
            out.append(f"get      {s.name}{s.where}: {s.method}, for {family.name}")
        if not family.suggestions:
            out.append(f"note     no draft for this model is known in the {family.name} family")
        if family.note:
            out.append(f"note     {family.note}")
    out.append(f"without  specllama serve {target.path} --method ngram-simple")
    return out


def _data(
    target: ModelInfo,
    picked: PickResult,
    space: Sequence[CandidateMemory | None],
    workload: str,
    draft: str | None,
) -> dict[str, Any]:
    from specllama.drafts.hub import label

    return {
        "draft": draft,
        "target": str(target.path),
        "workload": workload,
        "candidates": [
            {
                "method": c.method,
                "draft": (label(c.draft.path) or str(c.draft.path)) if c.draft else None,
                "called": c.draft.title if c.draft else None,
                "file_bytes": c.draft.file_bytes if c.draft else None,
                "memory_bytes": room.extra if room else None,
                "fits": room.verdict.kind if room else "unknown",
                "longest_context": room.longest if room else None,
                "alpha_prior": c.prediction.prior.alpha,
                "alpha_source": c.prediction.prior.source,
                "k": c.prediction.k,
                "tau": c.prediction.tau,
                "speedup_low": c.prediction.low,
                "speedup": c.prediction.speedup,
                "speedup_high": c.prediction.high,
                "measured": measured_data(c),
                "warnings": list(c.warnings),
            }
            for c, room in zip(picked.candidates, space, strict=True)
        ],
        "rejected": [{"what": r.what, "rule": r.rule, "detail": r.detail} for r in picked.rejected],
        "advice": [] if picked.candidates else _advice(target),
    }
