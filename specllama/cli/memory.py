"""`specllama memory TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli import complete
from specllama.cli.options import (
    Context,
    Draft,
    DraftCache,
    DraftLayers,
    LlamaServer,
    Method,
    NMax,
    Prefer,
    Slots,
    Vram,
    Workload,
)

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.planning.budget import Budget
    from specllama.planning.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("memory", epilog="Arguments after -- are those of llama-server (-ngl, -ts, …).")(
        memory
    )


def memory(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The model to serve: a GGUF file, or OWNER/REPO[:QUANT] on the Hub (headers only).",
        ),
    ],
    draft: Draft = None,
    method: Method = None,
    n_max: NMax = None,
    context: Context = 0,
    cache_k: Annotated[
        str | None,
        typer.Option(
            "-ctk",
            "--cache-type-k",
            autocompletion=complete.cache_types,
            help="K cache type (f16).",
        ),
    ] = None,
    cache_v: Annotated[
        str | None,
        typer.Option(
            "-ctv",
            "--cache-type-v",
            autocompletion=complete.cache_types,
            help="V cache type (f16).",
        ),
    ] = None,
    parallel: Slots = 1,
    draft_layers: DraftLayers = None,
    draft_cache: DraftCache = None,
    workload: Workload = "chat",
    vram: Vram = None,
    prefer: Prefer = None,
    llama_server: LlamaServer = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what TARGET and its draft need on each device, whether that fits, and what to trade."""
    from specllama.cli.budget_lines import data
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
    printer = Printer()
    theirs = (*extra, *(ctx.obj or ()))
    apart = Printer(as_json)
    settings, plan = resolved(apart, target, settings, spec_options, theirs, llama_server, False)
    if plan is None:
        with printer.busy("reading the model and the engine …"):
            plan = prepare(settings, spec_options, theirs, llama_server, check_port=False)
    assert plan.budget is not None  # `exact` makes what cannot be summed an error
    if as_json:
        said = {"target": str(plan.target.path), "warnings": list(plan.notes)}
        printer.json({**said, **data(plan.budget), "last_time": _last_time(plan)})
        return
    _print(printer, plan, plan.budget)


def _print(printer: Printer, plan: Plan, b: Budget) -> None:
    from specllama.cli import budget_lines as lines
    from specllama.cli.render import environment_lines

    asked = b.requested
    drafting = asked.drafting
    with_what = ""
    if drafting is not None:
        file = f" with {drafting.model.title}" if drafting.model else ""
        with_what = f", {','.join(drafting.methods)}{file}"
    printer.say(f"target   {plan.target.title}{with_what}, {asked.use.context:,} tokens")
    if drafting is None:
        printer.say(f"method   none: {plan.choice.reason}")
    for line in (*environment_lines(plan), *lines.devices(b)):
        printer.say(line)
    printer.table(lines.table(asked.lines, b))
    ok = asked.verdict.kind == "fits"
    if (cache := lines.prompt_cache(b)) is not None:
        printer.say(cache)
    printer.say(f"verdict  {lines.verdict(asked)}", "green" if ok else "yellow")
    for line in _trade(b):
        printer.say(line)
    for warning in plan.notes:
        printer.say(f"note     {warning}")
    if (last := _last_time(plan)) is not None:
        real, share = last["real_bytes"] / 2**20, last["share"]
        printer.say(
            f"measured {real:,.1f} MiB when these files were last served, {share:+.1%} "
            "against the sum of that time"
        )


def _trade(b: Budget) -> list[str]:
    """What to give up, each with the flags that do it; where all fits, what is left over."""
    from specllama.cli import budget_lines as lines
    from specllama.memory.decide import TOO_BIG

    out = list(lines.advice(b))
    if b.request.use.context < b.requested_context:
        out.append(
            f"context  {b.request.use.context:,} of {b.requested_context:,} tokens is what fits"
        )
    for o in b.options[1:]:
        mark = "take" if o is b.chosen and o.verdict.kind != TOO_BIG else "or  "
        flags = f"  [{' '.join(o.flags)}]" if o.flags else ""
        warning = f" ({o.warning})" if o.warning else ""
        out.append(f"{mark}     {o.name}: {lines.verdict(o)}{warning}{flags}")
    return [*out, f"longest  {_longest(b)}"]


def _longest(b: Budget) -> str:
    """The longest context with everything where it belongs, or that there is none."""
    from specllama.memory.decide import longest_context

    drafting = b.request.drafting
    none = "no context fits"
    if partly := longest_context(b.request, None, partly=True):
        none += f" without layers in RAM ({partly:,} tokens with them)"
    plain = longest_context(b.request, None)
    if drafting is None:
        return f"{plain:,} tokens" if plain else none
    if longest := longest_context(b.request, drafting):
        return f"{longest:,} tokens as asked, {plain:,} without a draft"
    return f"{none}; {plain:,} tokens do without a draft" if plain else f"{none}, draft or not"


def _last_time(plan: Plan) -> dict[str, float] | None:
    """The last measured figure for these files with this engine."""
    from specllama.memory.observed import saved_residual

    last = saved_residual(plan.files, plan.engine.identity)
    if last is None:
        return None
    return {"real_bytes": last.real, "ours_bytes": last.ours, "share": last.share}
