"""`specllama profiles list | show | new`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli import complete
from specllama.cli.options import AsJson, Verbose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specllama.own_profiles import NewProfile
    from specllama.workloads import Workload

_PER_TOKEN = 4  # characters, about


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, show and create workload profiles.")
    group.callback(invoke_without_command=True)(_list_by_default)
    group.command("list")(list_profiles)
    group.command("show")(show)
    group.command("new")(new)
    app.add_typer(group, name="profiles")


def _list_by_default(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_profiles(ctx)


def list_profiles(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the profiles for --workload, including your own."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.errors import UsageError
    from specllama.workloads import load_workload, names, profile_file, user_profiles_dir

    no_passthrough(ctx.obj or (), "profiles")
    printer = Printer()
    found, broken = [], {}
    for name in names():
        try:
            found.append((load_workload(name), profile_file(name)))
        except UsageError as e:
            broken[name] = e.message
    if as_json:
        data = [{**_data(w), "file": str(file)} for w, file in found]
        printer.json({"profiles": data, "broken": broken, "folder": str(user_profiles_dir())})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "from", "prompts", "temperature", "description"):
        table.add_column(title, justify="right" if title in ("prompts", "temperature") else "left")
    for w, file in found:
        origin = "own" if file.parent == user_profiles_dir() else "built-in"
        table.add_row(w.name, origin, str(len(w.prompts)), _temperature(w), w.title)
    printer.table(table)
    for message in broken.values():
        printer.say(f"broken   {message}", "yellow")
    printer.say(
        f"folder   {user_profiles_dir()}: your profiles; `specllama profiles new NAME --from FILE` adds one"
    )


def show(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[,NAME]",
            autocompletion=complete.workloads,
            help="Profile, or a mix of several.",
        ),
    ],
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Show a profile: its settings and its file, and its prompts with -v."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.prompts import as_record
    from specllama.workloads import load_workload, profile_file, user_profiles_dir

    no_passthrough(ctx.obj or (), "profiles")
    printer = Printer(verbose=verbose)
    workload = load_workload(name)
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
        f"copy     `specllama profiles new NAME --like {name}` copies it to {user_profiles_dir()}"
    )
    for line in _prompt_lines(workload) if verbose else ():
        printer.say(line)


def new(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name for --workload.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Your prompts: JSON lines (OpenAI messages work too), texts separated by `---` "
            "lines, or a folder of such files.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="NAME",
            autocompletion=complete.profiles,
            help="Profile to copy settings from, and prompts too without --from; unless set, chat, "
            "or the built-in one that NAME overrides.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a profile from your own prompts: two files to edit, in your config folder."""
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
                "max_tokens": made.max_tokens.value,
                "max_tokens_because": made.max_tokens.source,
            }
        )
        return
    for line in _made_lines(name, made):
        printer.say(line)


def _made_lines(name: str, made: NewProfile) -> Iterator[str]:
    yield f"profile  {made.file}"
    yield f"prompts  {_sizes(made.sizes)}: {made.prompts}"
    if made.overrides:
        yield f"note     used instead of the built-in profile {name}"
    yield f"sampling temperature {made.temperature.value:g}: {made.temperature.source}"
    yield (
        f"length   responses are measured up to {made.max_tokens.value:.0f} tokens: "
        f"{made.max_tokens.source}"
    )
    yield f"run      specllama serve MODEL --workload {name}"


def _sizes(sizes: Sequence[int]) -> str:
    """How many prompts, and how long they are."""
    from statistics import median

    from specllama.cli.units import plural

    middle = median(sizes)
    about = f"about {max(1, round(middle / _PER_TOKEN)):,} tokens"
    span = f"{min(sizes):,} to {max(sizes):,} characters, median {middle:,.0f} ({about})"
    return f"{plural(len(sizes), 'prompt')} of {span}"


def _lines(w: Workload) -> Iterator[str]:
    from specllama.prompts import as_text

    yield f"profile  {w.name}: {w.title}"
    if w.mixed:
        yield f"mix      {w.mixed}"
    yield f"prompts  {_sizes([len(as_text(p)) for p in w.prompts])}"
    thinking = w.sampling.get("chat_template_kwargs", {}).get("enable_thinking")
    settings = [f"{k} {v:g}" for k, v in w.sampling.items() if isinstance(v, float)]
    settings += [f"thinking {'on' if thinking else 'off'}"] if thinking is not None else []
    yield f"sampling {', '.join(settings)}"
    yield f"methods  {', '.join(w.methods)}"
    yield f"n-grams  look up {w.ngram.n} tokens, draft {w.ngram.m} (initial values)"
    yield f"draft    K={w.n_max}, p_min {w.p_min:g} (initial values)"
    yield f"length   responses are measured up to {w.max_tokens} tokens"


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
        "max_tokens": w.max_tokens,
        "prompts": len(w.prompts),
    }
