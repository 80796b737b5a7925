"""`specllama advise MODEL`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.help_pages import MODEL, OUTPUT
from specllama.cli.options import (
    AsJson,
    Context,
    Draft,
    LlamaServer,
    Method,
    Prefer,
    Quiet,
    Slots,
    TunedPrompts,
    Vram,
    Workload,
)

if TYPE_CHECKING:
    from specllama.serving.advise import Advice
    from specllama.serving.token_cost import HourlyPrice
    from specllama.tuning.results import Result


def register(app: typer.Typer) -> None:
    app.command("advise", epilog="Arguments after -- are llama-server's, as for `serve`.")(advise)


def advise(
    ctx: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", rich_help_panel=MODEL, help="GGUF file to serve.")
    ],
    workload: Workload = "chat",
    context: Context = 0,
    draft: Draft = None,
    method: Method = None,
    vram: Vram = None,
    prefer: Prefer = None,
    prompts: TunedPrompts = None,
    parallel: Slots = 1,
    llama_server: LlamaServer = None,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            metavar="AMOUNT/h",
            rich_help_panel=OUTPUT,
            help="Hourly price of the machine, e.g. 2.50/h: also print the cost of a million "
            "tokens.",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Explain why MODEL is served with or without speculation.

    Shows the rule behind the decision, the measurements it rests on, and the changes that would
    make speculation pay off.
    """
    from specllama.cli.render import Printer
    from specllama.engine.settings import Settings
    from specllama.planning.spec_options import SpeculationOptions
    from specllama.prompts import read_prompts
    from specllama.serving.advise import explain_decision
    from specllama.serving.token_cost import parse_price

    money = parse_price(price) if price is not None else None
    own = read_prompts(prompts) if prompts is not None else ()
    settings = Settings(model, "127.0.0.1", 8080, context=context, parallel=parallel)
    spec_options = SpeculationOptions(workload, draft, method, vram=vram, prefer=prefer)
    printer = Printer(as_json, quiet)
    with printer.busy("reading the model and the engine …"):
        found = explain_decision(
            settings, spec_options, tuple(ctx.obj or ()), llama_server, own, money
        )
    if as_json:
        printer.json(data(found))
        return
    printer.lines(lines(found), results=("decision", "change", "cost"))


def lines(a: Advice) -> Iterator[str]:
    """The decision, its rule, and the changes that would reverse it."""
    from specllama.serving.advise import MEASURED, RULES
    from specllama.tuning.records import setting_label
    from specllama.tuning.results import format_time

    spec = a.plan.settings.speculation
    on = setting_label(spec) if spec is not None else "off"
    yield f"target   {a.plan.target.title}, workload {a.plan.workload.name}"
    yield f"decision {on}: {a.plan.choice.reason}"
    only_predicted = a.rule == MEASURED and a.result is not None and a.result.speedup is None
    rule = "predicted from a measurement on this machine" if only_predicted else RULES[a.rule]
    yield f"rule     {rule}"
    if (r := a.result) is not None:
        yield f"measured {_figures(r)} ({format_time(r.when)})"
    yield from (f"note     {s}" for s in a.notes)
    for r in a.elsewhere:
        on = "on" if r.speculation is not None else "off"
        yield f"also     {r.workload}: {on}, {r.reason}"
    for c in a.factors:
        yield f"change   {c.what}: {c.reason}"
        if c.command:
            yield f"           {c.command}"
    if a.price is not None:
        yield from _cost_lines(a, a.price)


def _figures(r: Result) -> str:
    """The measurement, in one line."""
    from specllama.cli.tuning_lines import interval_text

    speed = f"{r.tokens_per_second:.1f} tok/s" if r.tokens_per_second else "no speed"
    if r.speedup is None:
        return f"plain decoding {speed}; the rest is predicted from that"
    whose = "your" if r.prompts == "yours" else "the profile's"
    alpha = f", α={r.tried.alpha:.2f}" if r.tried is not None else ""
    plain = "" if r.speculation is not None else " without speculation"
    return f"{interval_text(r.speedup)}{alpha} on {r.texts} of {whose} prompts, {speed}{plain}"


def _cost_lines(a: Advice, price: HourlyPrice) -> Iterator[str]:
    cost = a.cost
    if cost is None or cost.baseline is None:
        how = next((f"; run `{c.command}`" for c in a.factors if c.what == "a measurement"), "")
        yield f"cost     unknown: no speed was measured{how}"
        return
    unit = f" {price.currency}" if price.currency else ""
    fast = f", {cost.speculating:.2f}{unit} with it" if cost.speculating else ""
    yield f"cost     a million tokens: {cost.baseline:.2f}{unit} without speculation{fast}"
    yield (
        "         for one request at a time; concurrent requests cost less each and gain less "
        "from speculation"
    )


def data(a: Advice) -> dict[str, Any]:
    """The same for JSON."""
    from specllama.cli.results import result_data
    from specllama.serving.advise import RULES
    from specllama.serving.decision_factors import needed_alpha

    spec = a.plan.settings.speculation
    tried = a.result.tried if a.result is not None else None
    return {
        "target": str(a.plan.target.path),
        "workload": a.plan.workload.name,
        "methods": list(spec.methods) if spec is not None else [],
        "because": a.plan.choice.reason,
        "rule": a.rule,
        "rule_in_words": RULES[a.rule],
        "measured": result_data(a.result) if a.result is not None else None,
        "alpha": tried.alpha if tried is not None else None,
        "alpha_needed": needed_alpha(a.result) if a.result is not None else None,
        "notes": list(a.notes),
        "elsewhere": [result_data(r) for r in a.elsewhere],
        "changes": [
            {"what": c.what, "reason": c.reason, "command": c.command or None} for c in a.factors
        ],
        "cost_per_million": {
            "unit": a.price.currency or None,
            "per_hour": a.price.per_hour,
            "with": a.cost.speculating,
            "without": a.cost.baseline,
        }
        if a.price is not None and a.cost is not None
        else None,
    }
