"""`specllama memory TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli import complete
from specllama.cli.help_pages import MEMORY, MODEL
from specllama.cli.options import (
    AsJson,
    Context,
    Draft,
    DraftCache,
    DraftLayers,
    LlamaServer,
    Method,
    NMax,
    Prefer,
    Quiet,
    Slots,
    Vram,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specllama.cli.render import Printer
    from specllama.planning.budget import Budget
    from specllama.planning.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("memory", epilog="Arguments after -- are llama-server's (-ngl, -ts, …).")(memory)


def memory(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            rich_help_panel=MODEL,
            help="GGUF file to serve, or OWNER/REPO[:QUANT] on the Hugging Face Hub (only headers "
            "are read).",
        ),
    ],
    workload: Workload = "chat",
    context: Context = 0,
    draft: Draft = None,
    method: Method = None,
    n_max: NMax = None,
    draft_layers: DraftLayers = None,
    draft_cache: DraftCache = None,
    vram: Vram = None,
    prefer: Prefer = None,
    cache_k: Annotated[
        str | None,
        typer.Option(
            "-ctk",
            "--cache-type-k",
            metavar="TYPE",
            rich_help_panel=MEMORY,
            autocompletion=complete.cache_types,
            help="KV cache type for K, e.g. q8_0; f16 unless set.",
        ),
    ] = None,
    cache_v: Annotated[
        str | None,
        typer.Option(
            "-ctv",
            "--cache-type-v",
            metavar="TYPE",
            rich_help_panel=MEMORY,
            autocompletion=complete.cache_types,
            help="KV cache type for V, e.g. q8_0; f16 unless set.",
        ),
    ] = None,
    parallel: Slots = 1,
    llama_server: LlamaServer = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show how much memory TARGET and its draft need, and whether they fit.

    Lists each part on each device, and the options if it does not fit: a shorter context, a
    smaller cache type, fewer layers on the GPU.
    """
    from specllama.cli.budget_lines import budget_data
    from specllama.cli.from_hub import resolved
    from specllama.cli.render import Printer
    from specllama.engine.settings import Settings
    from specllama.planning.prepare import prepare
    from specllama.planning.spec_options import SpeculationOptions

    extra = [w for o, v in (("-ctk", cache_k), ("-ctv", cache_v)) if v for w in (o, v)]
    settings = Settings(Path(target), "127.0.0.1", 8080, context=context, parallel=parallel)
    spec_options = SpeculationOptions(
        workload,
        draft,
        method,
        n_max,
        draft_layers=draft_layers,
        draft_cache=draft_cache,
        vram=vram,
        prefer=prefer,
        exact=True,
    )
    printer = Printer(quiet=quiet)
    server_arguments = (*extra, *(ctx.obj or ()))
    notes = Printer(as_json, quiet)
    settings, plan = resolved(
        notes, target, settings, spec_options, server_arguments, llama_server, False
    )
    if plan is None:
        with printer.busy("reading the model and the engine …"):
            plan = prepare(settings, spec_options, server_arguments, llama_server, check_port=False)
    assert plan.budget is not None  # `exact` raises an error instead of leaving it out
    if as_json:
        head = {"target": str(plan.target.path), "warnings": list(_notes(plan))}
        printer.json({**head, **budget_data(plan.budget), "last_time": _last_time(plan)})
        return
    _print(printer, plan, plan.budget)


def _print(printer: Printer, plan: Plan, b: Budget) -> None:
    from specllama.cli import budget_lines as lines
    from specllama.cli.render import environment_lines

    requested = b.requested
    drafting = requested.drafting
    with_what = ""
    if drafting is not None:
        file = f" with {drafting.model.title}" if drafting.model else ""
        with_what = f", {','.join(drafting.methods)}{file}"
    printer.say(f"target   {plan.target.title}{with_what}, {requested.use.context:,} tokens")
    if drafting is None:
        printer.say(f"method   none: {plan.choice.reason}")
    for line in (*environment_lines(plan), *lines.devices(b)):
        printer.detail(line)
    printer.table(lines.table(requested.lines, b), lines.SPARE)
    ok = requested.verdict.kind == "fits"
    if (cache := lines.prompt_cache(b)) is not None:
        printer.detail(cache)
    printer.say(f"verdict  {lines.fit_text(requested)}", "green" if ok else "yellow")
    for line in _trade(b):
        printer.say(line)
    for warning in _notes(plan):
        printer.detail(f"note     {warning}")
    if (last := _last_time(plan)) is not None:
        real, ours = last["real_bytes"] / 2**20, last["ours_bytes"] / 2**20
        printer.detail(
            f"measured {real:,.1f} MiB when these files were last served, with these or other options; "
            f"the estimate was {ours:,.1f} MiB then ({last['share']:+.1%})"
        )


def _notes(plan: Plan) -> Iterator[str]:
    """The notes that concern memory."""
    from specllama.planning.refusals import LOGPROBS_NOTE

    yield from (note for note in plan.notes if note != LOGPROBS_NOTE)


def _trade(b: Budget) -> list[str]:
    """The options with their flags, and the longest context that fits."""
    from specllama.cli import budget_lines as lines
    from specllama.memory.decide import TOO_BIG

    out = list(lines.advice(b))
    if b.request.use.context < b.requested_context:
        out.append(f"context  {b.request.use.context:,} of {b.requested_context:,} tokens fit")
    for o in b.options[1:]:
        mark = "chosen" if o is b.chosen and o.verdict.kind != TOO_BIG else "option"
        flags = f"  [{' '.join(o.flags)}]" if o.flags else ""
        warning = f" ({o.warning})" if o.warning else ""
        out.append(f"{mark:<8} {o.name}: {lines.fit_text(o)}{warning}{flags}")
    return [*out, f"longest  {_longest(b)}"]


def _longest(b: Budget) -> str:
    """The longest context that fits on the GPU alone, and with layers in RAM if that is more."""
    from specllama.memory.decide import longest_context

    drafting = b.request.drafting
    plain = longest_context(b.request, None)
    partly = longest_context(b.request, None, partly=True)
    in_ram = ""
    if partly > plain:
        in_ram = f" on the GPU alone ({partly:,} tokens with layers in RAM)"
    none = f"no context fits{in_ram}"
    if drafting is None:
        return f"{plain:,} tokens{in_ram}" if plain else none
    longest = longest_context(b.request, drafting)
    name = "a draft" if drafting.method else "n-grams"
    if longest == plain:
        with_or_without = f"with or without {name}"
        return (
            f"{plain:,} tokens{in_ram}, {with_or_without}"
            if plain
            else f"{none}, {with_or_without}"
        )
    if longest:
        return f"{longest:,} tokens with {name.replace('a ', 'the ')}, {plain:,} without{in_ram}"
    return f"{none}; {plain:,} tokens without {name}"


def _last_time(plan: Plan) -> dict[str, float] | None:
    """The last measurement of these files with this engine."""
    from specllama.memory.observed import saved_residual

    last = saved_residual(plan.files, plan.engine.identity)
    if last is None:
        return None
    return {"real_bytes": last.real, "ours_bytes": last.ours, "share": last.share}
