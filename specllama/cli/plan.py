"""`specllama plan MODEL`."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.help_pages import MODEL, OTHER_ENGINES, OUTPUT, SERVER
from specllama.cli.options import (
    OVERRIDING,
    ApiKey,
    Context,
    Draft,
    DraftCache,
    DraftLayers,
    Host,
    LlamaServer,
    Method,
    NMax,
    PMin,
    Port,
    Prefer,
    Quiet,
    Slots,
    TunedPrompts,
    Verbose,
    Vram,
    Workload,
)
from specllama.cli.output import check_replaceable, save
from specllama.cli.shown import shown
from specllama.formats import FORMATS

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.engine.client import Prompt
    from specllama.engine.settings import Settings
    from specllama.formats import Decision, Deployment, WrittenFiles
    from specllama.planning.plan import Plan
    from specllama.planning.spec_options import SpeculationOptions

Format = Enum("Format", {name: name for name in FORMATS})  # type: ignore[misc]


def register(app: typer.Typer) -> None:
    app.command("plan", epilog=OVERRIDING)(plan)


def plan(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            rich_help_panel=MODEL,
            help="GGUF file to serve, or OWNER/REPO[:QUANT] on the Hugging Face Hub.",
        ),
    ],
    to: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            rich_help_panel=OUTPUT,
            help=f"{', '.join(FORMATS)}. Without it: the decisions and the command, to read.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write to FILE. It may exist if an earlier plan wrote it.",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", rich_help_panel=OUTPUT, help="With -o: replace any file."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
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
    prompts: TunedPrompts = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    parallel: Slots = 1,
    api_key: ApiKey = None,
    llama_server: LlamaServer = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            "--rpc",
            metavar="HOST:PORT[,HOST:PORT]",
            rich_help_panel=SERVER,
            help="Also spread the model over these ggml-rpc-servers.",
        ),
    ] = None,
    target_repo: Annotated[
        str | None,
        typer.Option(
            "--target-repo",
            metavar="OWNER/NAME",
            rich_help_panel=OTHER_ENGINES,
            help="Hugging Face repository of the same model.",
        ),
    ] = None,
    draft_repo: Annotated[
        str | None,
        typer.Option(
            "--draft-repo",
            metavar="OWNER/NAME",
            rich_help_panel=OTHER_ENGINES,
            help="Hugging Face repository of the draft; P-EAGLE and PARD drafts work too.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=1,
            rich_help_panel=OTHER_ENGINES,
            help="Number of machines (vLLM, SGLang); 1 unless set.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            metavar="N",
            min=1,
            rich_help_panel=OTHER_ENGINES,
            help="GPUs per machine (vLLM, SGLang); 1 unless set.",
        ),
    ] = None,
) -> None:
    """Write the launch command or config file for MODEL; start nothing.

    Uses the results that serve or probe saved.
    """
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer, decision_lines
    from specllama.engine.settings import Settings
    from specllama.errors import UsageError
    from specllama.formats import HF_FORMATS, Deployment, multi_machine, write_format
    from specllama.formats.base import MADE, one_line
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts

    if output is not None and to is None:
        raise UsageError("-o needs --format", f"Formats: {', '.join(FORMATS)}.")
    if overwrite and output is None:
        raise UsageError("--overwrite needs -o FILE")
    if output is not None and not overwrite:
        check_replaceable(output, MADE)
    given = {
        "--target-repo": target_repo, "--draft-repo": draft_repo, "--nodes": nodes, "--gpus": gpus
    }  # fmt: skip
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None and (to is None or to.value not in HF_FORMATS):
        raise UsageError(
            f"{wrong} only applies to other engines",
            f"It needs --format with one of {', '.join(HF_FORMATS)}.",
        )
    deployment = Deployment(target_repo, draft_repo, nodes or 1, gpus or 1)
    printer = Printer(quiet=quiet, verbose=verbose)
    own = read_prompts(prompts) if prompts is not None else ()
    settings = Settings(
        Path(model), host, port, context=context, parallel=parallel, api_key=api_key
    )
    spec_options = SpeculationOptions(
        workload, draft, method, n_max, p_min, draft_layers, draft_cache, vram, prefer
    )
    server_arguments = (*multi_machine.rpc_arguments(rpc), *(ctx.obj or ()))
    notes_out = Printer(as_json=to is not None, quiet=quiet)  # stdout is for the file
    settings, unseen = resolved(
        notes_out, model, settings, spec_options, server_arguments, llama_server, False
    )
    if unseen is not None:
        _show_unseen(printer, model, unseen, to)
        return
    with printer.busy("reading the model and the engine …"):
        decision = _decided(
            settings, spec_options, server_arguments, llama_server, own, deployment, verbose
        )
    if to is not None and to.value in HF_FORMATS:  # the rest is about llama-server and this machine
        decision = replace(decision, reasons=tuple(map(shown, decision_lines(decision.plan))))
    if to is None:
        for line in (*decision.reasons, *multi_machine.advice(decision.plan)):
            printer.detail(line)
        printer.command(decision.plan.command.display())
        return
    written = write_format(to.value, decision)
    notes = written.notes
    if to.value not in HF_FORMATS:  # they are the remedy themselves
        notes += multi_machine.advice(decision.plan)
    if output is None:
        _print(written)
        for note in notes:
            if not quiet and not (sys.stdout.isatty() and one_line(note) in written.text):
                print(shown(note), file=sys.stderr)
        return
    if not overwrite:  # again: another program may have written it meanwhile
        check_replaceable(output, MADE)
    save(output, written.text.encode("utf-8"))
    for line in (*decision.reasons, *notes):
        printer.detail(line)
    printer.say(f"written  {output}")


def _show_unseen(printer: Printer, model: str, plan: Plan, to: Format | None) -> None:
    """Prints the plan for a model that is not on this machine: to read, not to run."""
    from specllama.cli.render import plan_lines
    from specllama.errors import UsageError

    if to is not None:
        raise UsageError(
            f"{plan.target.path.as_posix()} is not on this machine yet, so it has no path to write",
            f"`specllama serve {model}` downloads it and its draft.",
        )
    for line in plan_lines(plan):
        printer.say(line)


def _decided(
    settings: Settings,
    spec_options: SpeculationOptions,
    server_arguments: tuple[str, ...],
    llama_server: str | None,
    prompts: tuple[Prompt, ...],
    deployment: Deployment,
    verbose: bool,
) -> Decision:
    """The plan as serve would make it, with saved results."""
    from specllama.cli.render import plan_data, plan_lines
    from specllama.formats import Decision
    from specllama.planning.prepare import prepare
    from specllama.serving.scope import scope_of
    from specllama.serving.tune import (
        AUTO,
        TuningOptions,
        apply_stored_result,
        cached_line,
        unfinished_result,
        would_measure,
    )

    plan = prepare(settings, spec_options, server_arguments, llama_server, check_port=False)
    tuning = TuningOptions(AUTO, 60, scope_of(spec_options), prompts=prompts)
    planned, known = apply_stored_result(plan, tuning)
    reasons = [*plan_lines(planned, verbose)]
    if known is not None:
        reasons.append(f"tuning   {cached_line(known)}")
    elif would_measure(plan, tuning):
        unfinished = unfinished_result(plan, tuning)
        state = f"not decided yet: {unfinished.reason}" if unfinished else "not measured yet"
        reasons.append(f"tuning   {state}; `specllama probe` measures whether it pays off")
    return Decision(planned, tuple(map(shown, reasons)), plan_data(planned), known, deployment)


def _print(written: WrittenFiles) -> None:
    """Prints to stdout: in UTF-8 with plain line ends to a file or program, escaped to a terminal."""
    stdout: Any = sys.stdout
    if stdout.isatty():
        stdout.write("".join(f"{shown(line)}\n" for line in written.text.split("\n")[:-1]))
        return
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(encoding="utf-8", newline="\n")
    stdout.write(written.text)
