"""`specllama pick-draft TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.options import LlamaServer, Workload

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.drafts.pick import Candidate, Picked
    from specllama.gguf import ModelInfo

_SHOWN_REJECTED = 12


def register(app: typer.Typer) -> None:
    app.command("pick-draft")(pick_draft)


def pick_draft(
    ctx: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The model to draft for.")],
    folders: Annotated[
        list[Path] | None, typer.Option("--dir", help="A folder to search, with all below it.")
    ] = None,
    workload: Workload = "chat",
    llama_server: LlamaServer = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Look on the Hugging Face Hub as well (headers only).")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="With --hub: fetch the best one if it is not here.")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Compare plain drafts with the target, in process."),
    ] = False,
    text: Annotated[
        Path | None, typer.Option("--text", help="With --measure: compare on this text.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for --measure.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List every rejected file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find what can draft for TARGET, rank what fits, and name the rule that drops the rest.

    Exit code 0 when something fits, 1 when nothing does.
    """
    from specllama.cli.app import no_passthrough
    from specllama.cli.render import Printer
    from specllama.drafts import hub as remote
    from specllama.drafts.discover import discover
    from specllama.drafts.pick import judge
    from specllama.errors import UsageError
    from specllama.planning.prepare import target_info, usable_engine
    from specllama.workloads import load

    no_passthrough(ctx.obj or (), "pick-draft")
    if download and not hub:
        raise UsageError("--download goes with --hub")
    if text is not None and not measure:
        raise UsageError("--text goes with --measure")
    printer = Printer()
    for folder in folders or []:
        if not folder.is_dir():
            raise UsageError(f"--dir {folder}: no such folder")
    profile = load(workload)
    with printer.busy("looking for drafts …"):
        info = target_info(target)
        _, caps = usable_engine(llama_server)
        found = discover(info, folders or [])
    if hub:
        with printer.busy("asking the Hub …"):
            found = found.and_also(remote.search(info))
    picked = judge(info, profile, caps, found)
    if measure:
        from specllama.drafts.measured import measured

        with printer.busy("comparing target and drafts …"):
            picked = measured(info, picked, profile, text, threads)
    best = picked.candidates[0].draft if picked.candidates else None
    here = str(best.path) if best is not None else None
    if best is not None and download and not best.path.exists():
        here = str(remote.download(str(best.path)))
    if as_json:
        printer.json(_data(info, picked, workload, here))
    else:
        _print(printer, info, picked, show_all)
        printer.say(_last_line(info, picked, workload, here))
    if not picked.candidates:
        raise typer.Exit(1)


def _print(printer: Printer, target: ModelInfo, picked: Picked, show_all: bool) -> None:
    if picked.candidates:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        alpha = "α (* measured)" if any(c.measured for c in picked.candidates) else "α prior"
        for name in ("method", "file", "size", "memory", alpha, "τ at K", "predicted"):
            table.add_column(name, justify="left" if name in ("method", "file") else "right")
        for c in picked.candidates:
            table.add_row(*_row(target, c))
        printer.table(table)
    for source in dict.fromkeys(c.measured.source for c in picked.candidates if c.measured):
        printer.say(f"note     α and τ marked * are measured on {source}, at temperature 0")
    for c in picked.candidates:
        for warning in c.warnings:
            printer.say(f"note     {_file(target, c)}: {warning}")
    shown = picked.rejected if show_all else picked.rejected[:_SHOWN_REJECTED]
    for r in shown:
        printer.say(f"not used {r.what}: {r.detail} ({r.rule})")
    if len(shown) < len(picked.rejected):
        printer.say(f"         and {len(picked.rejected) - len(shown)} more; see --all")


def _row(target: ModelInfo, c: Candidate) -> tuple[str, ...]:
    from specllama.cli.render import mib

    p = c.prediction
    size = mib(c.draft.file_bytes) if c.draft else "in the model"
    cells = (c.method, _file(target, c), size, f"+{mib(p.memory)}")
    if m := c.measured:
        tau = f"{m.tau:.2f} ({m.tau_low:.2f} to {m.tau_high:.2f}) at {m.k}"
        return (*cells, f"{m.alpha:.2f}*", f"{tau}*", f"about {m.speedup:.2f}x")
    tau = f"{p.tau:.2f} at {p.k}"
    return (*cells, f"{p.prior.alpha:.2f}", tau, f"{p.low:.2f}x to {p.high:.2f}x")


def _file(target: ModelInfo, c: Candidate) -> str:
    return c.draft.path.name if c.draft else f"{target.path.name} (its MTP head)"


def _last_line(target: ModelInfo, picked: Picked, workload: str, draft: str | None) -> str:
    """What to run, or what to download."""
    import shlex

    if picked.candidates:
        words = ["specllama", "serve", str(target.path), "--workload", workload]
        if draft is not None and not Path(draft).exists():
            return f"get      it with --hub --download, or from {draft}"
        if draft is not None:
            words += ["--draft", draft]
        return f"run      {shlex.join(words)}"
    return "\n".join(_advice(target))


def _advice(target: ModelInfo) -> list[str]:
    from specllama.drafts.families import family_of

    family = family_of(target)
    out = [f"nothing found drafts for {target.path.name}"]
    if family is None:
        out.append("get      a much smaller model of the same family, from the same uploader")
    else:
        for s in family.suggestions:
            out.append(
                f"get      {s.name}{s.where}: {s.method}, for {family.name} [source {s.source}]"
            )
        if family.note:
            out.append(f"note     {family.note}")
    out.append(f"without  specllama serve {target.path} --method ngram-simple")
    return out


def _data(target: ModelInfo, picked: Picked, workload: str, draft: str | None) -> dict[str, Any]:
    return {
        "draft": draft,
        "target": str(target.path),
        "workload": workload,
        "candidates": [
            {
                "method": c.method,
                "draft": str(c.draft.path) if c.draft else None,
                "file_bytes": c.draft.file_bytes if c.draft else None,
                "memory_bytes": c.prediction.memory,
                "alpha_prior": c.prediction.prior.alpha,
                "alpha_source": c.prediction.prior.source,
                "k": c.prediction.k,
                "tau": c.prediction.tau,
                "speedup_low": c.prediction.low,
                "speedup": c.prediction.speedup,
                "speedup_high": c.prediction.high,
                "measured": _measured_data(c),
                "warnings": list(c.warnings),
            }
            for c in picked.candidates
        ],
        "rejected": [{"what": r.what, "rule": r.rule, "detail": r.detail} for r in picked.rejected],
        "advice": [] if picked.candidates else _advice(target),
    }


def _measured_data(c: Candidate) -> dict[str, Any] | None:
    m = c.measured
    if m is None:
        return None
    return {
        "source": m.source,
        "k": m.k,
        "alpha": m.alpha,
        "tau": m.tau,
        "tau_interval": [m.tau_low, m.tau_high],
        "acceptance_by_position": list(m.by_position),
        "tau_by_temperature": {str(t): v for t, v in m.tau_hot.items()},
        "speedup": m.speedup,
    }
