"""`specllama plan MODEL`."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.options import (
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
    Prefer,
    Slots,
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
    app.command(
        "plan",
        epilog="Arguments after -- go to llama-server and win. Its own names (-md, --spec-type, -np, "
        "-ngl, -ctk …) are understood before -- too.",
    )(plan)


def plan(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The GGUF file to serve, or OWNER/REPO[:QUANT] on the Hub."
        ),
    ],
    to: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help=f"{', '.join(FORMATS)}; without it, lines to read.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write it to FILE; one that plan made before is replaced."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With -o: replace any file.")
    ] = False,
    rpc: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT[,HOST:PORT]: spread the model over the ggml-rpc-servers there too."
        ),
    ] = None,
    target_repo: Annotated[
        str | None,
        typer.Option(
            help="OWNER/NAME on Hugging Face with the same model, for vLLM, SGLang, TensorRT-LLM."
        ),
    ] = None,
    draft_repo: Annotated[
        str | None, typer.Option(help="The same for the draft; a P-EAGLE or PARD one too.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines, for vLLM and SGLang; 1.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each machine, for the same; 1.")
    ] = None,
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
        typer.Option(min=1, max=65535, envvar="LLAMA_ARG_PORT", help="Port."),
    ] = 8080,
    api_key: ApiKey = None,
    vram: Vram = None,
    prefer: Prefer = None,
    prompts: Annotated[
        Path | None, typer.Option(help="The questions it was tuned by, as for serve.")
    ] = None,
    llama_server: LlamaServer = None,
) -> None:
    """Write how MODEL is served best, in the format of what runs it; start nothing.

    What serve or probe measured before is used.
    """
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer, decision_lines
    from specllama.engine.settings import Settings
    from specllama.errors import UsageError
    from specllama.formats import HF_FORMATS, Deployment, multi_machine, write
    from specllama.formats.base import MADE, one_line
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts

    if output is not None and to is None:
        raise UsageError(f"-o {output}: in which format?", f"--format {'|'.join(FORMATS)}")
    if overwrite and output is None:
        raise UsageError("--overwrite needs -o FILE")
    if output is not None and not overwrite:
        check_replaceable(output, MADE)
    given = {
        "--target-repo": target_repo, "--draft-repo": draft_repo, "--nodes": nodes, "--gpus": gpus
    }  # fmt: skip
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None and (to is None or to.value not in HF_FORMATS):
        raise UsageError(f"{wrong} is for another engine", f"--format {'|'.join(HF_FORMATS)}")
    deployment = Deployment(target_repo, draft_repo, nodes or 1, gpus or 1)
    printer = Printer()
    own = read_prompts(prompts) if prompts is not None else ()
    settings = Settings(
        Path(model).absolute(), host, port, context=context, parallel=parallel, api_key=api_key
    )
    draft = draft.absolute() if draft is not None else None
    spec_options = SpeculationOptions(
        workload, draft, method, n_max, p_min, draft_layers, draft_cache, vram, prefer
    )
    theirs = (*multi_machine.rpc_arguments(rpc), *(ctx.obj or ()))
    apart = Printer(as_json=to is not None)  # stdout is the format's
    settings, unseen = resolved(apart, model, settings, spec_options, theirs, llama_server, False)
    if unseen is not None:
        _show_unseen(printer, model, unseen, to)
        return
    with printer.busy("reading the model and the engine …"):
        decision = _decided(settings, spec_options, theirs, llama_server, own, deployment)
    if to is not None and to.value in HF_FORMATS:  # the rest is about llama-server and this machine
        decision = replace(decision, reasons=tuple(map(shown, decision_lines(decision.plan))))
    if to is None:
        for line in (*decision.reasons, *multi_machine.advice(decision.plan)):
            printer.say(line)
        printer.say(decision.plan.command.display())
        return
    written = write(to.value, decision)
    notes = written.notes
    if to.value not in HF_FORMATS:  # those are the way out themselves
        notes += multi_machine.advice(decision.plan)
    if output is None:
        _print(written)
        for note in notes:
            if not (sys.stdout.isatty() and one_line(note) in written.text):  # seen once
                print(shown(note), file=sys.stderr)
        return
    if not overwrite:  # again: deciding takes its time
        check_replaceable(output, MADE)
    save(output, written.text.encode("utf-8"))
    for line in (*decision.reasons, *notes, f"written  {output}"):
        printer.say(line)


def _show_unseen(printer: Printer, model: str, plan: Plan, to: Format | None) -> None:
    """The plan for a model that is not on this machine: to read, not to run."""
    from specllama.cli.render import plan_lines
    from specllama.errors import UsageError

    if to is not None:
        raise UsageError(
            f"{plan.target.path.as_posix()} is not on this machine yet: it has no path to write",
            f"`specllama serve {model}` downloads it with its draft.",
        )
    for line in plan_lines(plan):
        printer.say(line)


def _decided(
    settings: Settings,
    spec_options: SpeculationOptions,
    theirs: tuple[str, ...],
    llama_server: str | None,
    prompts: tuple[Prompt, ...],
    deployment: Deployment,
) -> Decision:
    """The plan as serve would make it, by what was measured before."""
    from specllama.cli.render import plan_data, plan_lines
    from specllama.formats import Decision
    from specllama.planning.prepare import prepare
    from specllama.serving.scope import scope_of
    from specllama.serving.tune import AUTO, TuningOptions, apply_stored_result

    plan = prepare(settings, spec_options, theirs, llama_server, check_port=False)
    wanted = TuningOptions(AUTO, 60, scope_of(spec_options), prompts=prompts)
    plan, known = apply_stored_result(plan, wanted)
    return Decision(plan, tuple(map(shown, plan_lines(plan))), plan_data(plan), known, deployment)


def _print(written: WrittenFiles) -> None:
    """To stdout: in UTF-8 with plain line ends where it goes to a program or a file, as lines to
    read on a terminal."""
    stdout: Any = sys.stdout
    if stdout.isatty():
        stdout.write("".join(f"{shown(line)}\n" for line in written.text.split("\n")[:-1]))
        return
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(encoding="utf-8", newline="\n")
    stdout.write(written.text)
