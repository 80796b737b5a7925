"""`specllama profiles list | show | new`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli import complete

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specllama.own_profiles import NewProfile
    from specllama.workloads import Workload

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_PER_TOKEN = 4  # characters, about


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Workload profiles: list them, show one, make one of your prompts.")
    group.callback(invoke_without_command=True)(_listed)
    group.command("list")(listed)
    group.command("show")(show)
    group.command("new")(new)
    app.add_typer(group, name="profiles")


def _listed(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        listed(ctx)


def listed(ctx: typer.Context, as_json: _Json = False) -> None:
    """List the profiles that --workload takes, your own too."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.errors import UsageError
    from specllama.workloads import load, names, profile_file, user_profiles_dir

    no_passthrough(ctx.obj or (), "profiles")
    printer = Printer()
    found, broken = [], {}
    for name in names():
        try:
            found.append((load(name), profile_file(name)))
        except UsageError as e:
            broken[name] = e.message
    if as_json:
        data = [{**_data(w), "file": str(file)} for w, file in found]
        printer.json({"profiles": data, "broken": broken, "folder": str(user_profiles_dir())})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "whose", "prompts", "temperature", "what"):
        table.add_column(title, justify="right" if title in ("prompts", "temperature") else "left")
    for w, file in found:
        whose = "yours" if file.parent == user_profiles_dir() else "built in"
        table.add_row(w.name, whose, str(len(w.prompts)), _temperature(w), w.title)
    printer.table(table)
    for message in broken.values():
        printer.say(f"broken   {message}", "yellow")
    printer.say(
        f"yours    lie in {user_profiles_dir()}; `specllama profiles new NAME --from FILE` makes one"
    )


def show(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=complete.workloads, help="A profile; a mix by comma."
        ),
    ],
    prompts: Annotated[bool, typer.Option("--prompts", help="Print its prompts too.")] = False,
    as_json: _Json = False,
) -> None:
    """Show one profile: its settings, its prompts, and the file to copy."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.prompts import as_record
    from specllama.workloads import load, profile_file, user_profiles_dir

    no_passthrough(ctx.obj or (), "profiles")
    printer = Printer()
    workload = load(name)
    files = [str(profile_file(part)) for part in workload.name.split(",")]
    if as_json:
        printer.json(
            {**_data(workload), "files": files, "prompts": list(map(as_record, workload.prompts))}
        )
        return
    for line in _lines(workload):
        printer.say(line)
    for file in files:
        printer.say(f"file     {file}")
    printer.say(
        f"change   a copy in {user_profiles_dir()}: `specllama profiles new NAME --like {name}`"
    )
    for line in _prompt_lines(workload) if prompts else ():
        printer.say(line)


def new(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What --workload is to call it.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Your prompts: JSON lines (OpenAI messages too), texts separated by `---` lines, "
            "or a folder of them.",
        ),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            autocompletion=complete.profiles,
            help="The profile whose settings it gets (without --from, prompts too).",
        ),
    ] = "chat",
    as_json: _Json = False,
) -> None:
    """Make a workload of your own prompts: two files to edit, in your config folder."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.own_profiles import create_profile

    no_passthrough(ctx.obj or (), "profiles")
    printer = Printer()
    made = create_profile(name, source, like)
    if as_json:
        printer.json(
            {
                "name": name,
                "file": str(made.file),
                "prompts_file": str(made.prompts),
                "prompts": len(made.sizes),
                "characters": list(made.sizes),
                "temperature": made.temperature.value,
                "temperature_because": made.temperature.source,
                "answer": made.answer_length.value,
                "answer_because": made.answer_length.source,
            }
        )
        return
    for line in _made_lines(name, made):
        printer.say(line)


def _made_lines(name: str, made: NewProfile) -> Iterator[str]:
    yield f"profile  {made.file}"
    yield f"prompts  {_sizes(made.sizes)}: {made.prompts}"
    yield f"sampling temperature {made.temperature.value:g}: {made.temperature.source}"
    yield f"answers  up to {made.answer_length.value:.0f} tokens are measured: {made.answer_length.source}"
    yield f"run      specllama serve MODEL --workload {name}"


def _sizes(sizes: Sequence[int]) -> str:
    """How many prompts, and how long they are."""
    from statistics import median

    few = f"{len(sizes)} prompt{'s' if len(sizes) != 1 else ''}"
    middle = median(sizes)
    about = f"about {max(1, round(middle / _PER_TOKEN)):,} tokens"
    return (
        f"{few} of {min(sizes):,} to {max(sizes):,} characters, half below {middle:,.0f} ({about})"
    )


def _lines(w: Workload) -> Iterator[str]:
    from specllama.prompts import as_text

    yield f"profile  {w.name}: {w.title}"
    if w.mixed:
        yield f"mix      {w.mixed}"
    yield f"prompts  {_sizes([len(as_text(p)) for p in w.prompts])}"
    thinking = w.sampling.get("chat_template_kwargs", {}).get("enable_thinking")
    told = [f"{k} {v:g}" for k, v in w.sampling.items() if isinstance(v, float)]
    told += [f"thinking {'on' if thinking else 'off'}"] if thinking is not None else []
    yield f"sampling {', '.join(told)}"
    yield f"methods  {', '.join(w.methods)}"
    yield f"n-grams  {w.ngram.n} tokens looked up, {w.ngram.m} drafted, to begin with"
    yield f"draft    K={w.n_max}, p_min {w.p_min:g}, to begin with"
    yield f"answers  up to {w.answer} tokens are measured"


def _prompt_lines(w: Workload) -> Iterator[str]:
    from specllama.prompts import as_text

    for prompt in w.prompts:
        yield "====="
        yield from as_text(prompt).splitlines()


def _temperature(w: Workload) -> str:
    hot = w.sampling.get("temperature")
    return f"{hot:g}" if hot is not None else ""


def _data(w: Workload) -> dict[str, Any]:
    return {
        "name": w.name,
        "title": w.title,
        "methods": list(w.methods),
        "sampling": dict(w.sampling),
        "ngram": {"n": w.ngram.n, "m": w.ngram.m, "min_hits": w.ngram.min_hits},
        "n_max": w.n_max,
        "p_min": w.p_min,
        "answer": w.answer,
        "prompts": len(w.prompts),
    }
