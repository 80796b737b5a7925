"""Options that several commands share, declared once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specllama.cli import complete
from specllama.cli.help_pages import DRAFT, MEMORY, MODEL, OUTPUT, SERVER, TUNING
from specllama.engine.settings import MAX_CONTEXT, MAX_DRAFT_TOKENS
from specllama.errors import UsageError

MAX_SECONDS = 86_400.0  # above what anyone means: a typo rather than a choice

# Epilogs of --help.
SERVER_ARGUMENTS = "Arguments after -- go to llama-server"
OVERRIDING = (
    f"{SERVER_ARGUMENTS} and override specllama's choices. Its own names (-md, --spec-type, -np, "
    "-ngl, -ctk, …) also work before --."
)


def reject_nan(value: float | None) -> float | None:
    """nan passes every range check."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan")  # typer adds the option's name
    return value


def _port(least: int, help: str) -> Any:
    return typer.Option(
        "--port",
        metavar="PORT",
        min=least,
        max=65535,
        rich_help_panel=SERVER,
        envvar="LLAMA_ARG_PORT",
        help=help,
    )


def _api_key(value: str | None) -> str | None:
    from specllama.engine.keys import usable

    if value is None:
        return None
    if not (key := usable(value, "--api-key or SPECLLAMA_API_KEY")):
        raise UsageError("the API key is empty", "Unset SPECLLAMA_API_KEY, or give a key.")
    return key


Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME[,NAME]",
        rich_help_panel=MODEL,
        autocompletion=complete.workloads,
        help="Workload profile, or a mix of several; see `specllama profiles`.",
    ),
]
Context = Annotated[
    int,
    typer.Option(
        "--context",
        "-c",
        metavar="N",
        rich_help_panel=MODEL,
        min=0,
        max=MAX_CONTEXT,
        envvar="LLAMA_ARG_CTX_SIZE",
        help="Context size in tokens; 0 uses the model's own.",
    ),
]
Draft = Annotated[
    Path | None,
    typer.Option(
        "--draft",
        metavar="FILE",
        rich_help_panel=DRAFT,
        help="Draft model, or a separate MTP, EAGLE-3, DFlash or DSpark file.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="TYPE[,TYPE]",
        rich_help_panel=DRAFT,
        autocompletion=complete.methods,
        help="mtp, draft, eagle3, dflash, dspark, ngram-simple, ngram-map-k, ngram-map-k4v, "
        "ngram-mod or ngram-cache; none turns speculation off.",
    ),
]
NMax = Annotated[
    int | None,
    typer.Option(
        "--n-max",
        metavar="N",
        rich_help_panel=DRAFT,
        min=1,
        max=MAX_DRAFT_TOKENS,
        help="Draft length K: maximum tokens per draft.",
    ),
]
PMin = Annotated[
    float | None,
    typer.Option(
        "--p-min",
        metavar="P",
        rich_help_panel=DRAFT,
        min=0,
        max=1,
        callback=reject_nan,
        help="Stop drafting below this token probability.",
    ),
]
DraftLayers = Annotated[
    str | None,
    typer.Option(
        "--draft-layers",
        metavar="N|auto|all",
        rich_help_panel=DRAFT,
        autocompletion=complete.one_of("auto", "all"),
        help="Draft layers to offload to the GPU.",
    ),
]
DraftCache = Annotated[
    str | None,
    typer.Option(
        "--draft-cache",
        metavar="TYPE",
        rich_help_panel=DRAFT,
        autocompletion=complete.cache_types,
        help="KV cache type of the draft, e.g. q8_0; f16 unless set.",
    ),
]
Vram = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE[,SIZE]",
        rich_help_panel=MEMORY,
        help="Plan for GPUs of this size, e.g. 24GiB or 24GiB,16GiB.",
    ),
]
Prefer = Annotated[
    Literal["speed", "context"] | None,
    typer.Option(
        "--prefer",
        rich_help_panel=MEMORY,
        help="If VRAM is short: speed keeps the draft and shortens the context, context drops "
        "the draft.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        rich_help_panel=TUNING,
        help="Measure on your own prompts: JSON lines (OpenAI messages work too), or texts "
        "separated by `---` lines.",
    ),
]
TunedPrompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        rich_help_panel=TUNING,
        help="Use the results measured with these prompts.",
    ),
]
LlamaServer = Annotated[
    str | None,
    typer.Option(
        "--llama-server",
        metavar="PATH",
        rich_help_panel=SERVER,
        autocompletion=complete.one_of("embedded"),
        help="llama-server binary, or `embedded` for the built-in one.",
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        "--parallel",
        metavar="N",
        rich_help_panel=SERVER,
        min=1,
        help="Server slots; 1 for a single user.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        rich_help_panel=SERVER,
        envvar="LLAMA_ARG_HOST",
        help="Address to listen on.",
    ),
]
Port = Annotated[int, _port(1, "Port to listen on.")]
AnyPort = Annotated[int, _port(0, "Port to listen on; 0 picks a free one.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        rich_help_panel=SERVER,
        envvar="SPECLLAMA_API_KEY",
        callback=_api_key,
        help="API key of the server. Prefer the variable: arguments show up in `ps`.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        rich_help_panel=OUTPUT,
        help="Print what would be done, but start nothing.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=OUTPUT,
        help="Print only the result, warnings and errors.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        rich_help_panel=OUTPUT,
        help="Print everything: full reasons and complete lists.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON object to stdout."),
]


def no_passthrough(server_arguments: Sequence[str], command: str) -> None:
    """For commands that start no server. Raises UsageError for arguments after --."""
    if server_arguments:
        raise UsageError(f"{command} takes no arguments after --")
