"""Options that several commands share, declared once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specllama.cli import complete
from specllama.engine.settings import MAX_DRAFT_TOKENS
from specllama.errors import UsageError

# The groups of --help.
DRAFTING, MEMORY, TUNING = "How to draft", "Memory", "Tuning"
SERVER, OUTPUT = "Server", "Output"

# What is more than anyone means, so that a slip is told from a wish.
MOST_CONTEXT = 2**28  # tokens; no model is trained on a tenth of it
MOST_SECONDS = 86_400.0


def a_number(value: float | None) -> float | None:
    """nan is within every range."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan")  # typer adds whose value it is
    return value


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
        autocompletion=complete.workloads,
        help="A profile: code, chat, … (`profiles list`); a mix by comma.",
    ),
]
Draft = Annotated[
    Path | None,
    typer.Option(
        "--draft",
        rich_help_panel=DRAFTING,
        help="Draft model, or a head in a file of its own (MTP, EAGLE-3, DFlash, DSpark).",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        rich_help_panel=DRAFTING,
        autocompletion=complete.methods,
        help="TYPE[,TYPE]: mtp, draft, eagle3, dflash, dspark, ngram-simple, ngram-map-k, "
        "ngram-map-k4v, ngram-mod, ngram-cache; none = plain decoding.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        rich_help_panel=TUNING,
        help="Tune with your own questions: JSON lines (OpenAI messages too), or texts separated "
        "by `---` lines.",
    ),
]
LlamaServer = Annotated[
    str | None,
    typer.Option(
        "--llama-server",
        rich_help_panel=SERVER,
        autocompletion=complete.one_of("embedded"),
        help="The binary to run, or `embedded`.",
    ),
]
PMin = Annotated[
    float | None,
    typer.Option(
        "--p-min",
        rich_help_panel=DRAFTING,
        min=0,
        max=1,
        callback=a_number,
        help="Stop drafting below this probability.",
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        "--parallel",
        rich_help_panel=SERVER,
        min=1,
        help="Server slots; 1 for a single user.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host", rich_help_panel=SERVER, envvar="LLAMA_ARG_HOST", help="Address to listen on."
    ),
]
Context = Annotated[
    int,
    typer.Option(
        "--context",
        "-c",
        rich_help_panel=MEMORY,
        min=0,
        max=MOST_CONTEXT,
        envvar="LLAMA_ARG_CTX_SIZE",
        help="Context in tokens; 0 = the model's own.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the decision and the command; start nothing.")
]
Vram = Annotated[
    str | None,
    typer.Option("--vram", rich_help_panel=MEMORY, help="SIZE[,SIZE]: plan for GPUs of this size."),
]
Prefer = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MEMORY,
        autocompletion=complete.one_of("speed", "context"),
        help="When memory is short: speed (shorter context) or context (no draft).",
    ),
]
DraftCache = Annotated[
    str | None,
    typer.Option(
        "--draft-cache",
        rich_help_panel=MEMORY,
        autocompletion=complete.cache_types,
        help="Type of the draft's KV cache (f16).",
    ),
]
DraftLayers = Annotated[
    str | None,
    typer.Option(
        "--draft-layers",
        rich_help_panel=MEMORY,
        autocompletion=complete.one_of("auto", "all"),
        help="Draft layers on the GPU: N, auto or all.",
    ),
]
NMax = Annotated[
    int | None,
    typer.Option(
        "--n-max",
        rich_help_panel=DRAFTING,
        min=1,
        max=MAX_DRAFT_TOKENS,
        help="Draft length K: tokens per draft.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=SERVER,
        envvar="SPECLLAMA_API_KEY",
        callback=_api_key,
        help="Key of the server. Better in the variable: arguments show in `ps`.",
    ),
]


def no_passthrough(theirs: Sequence[str], command: str) -> None:
    """For commands that start no server of the user's."""
    if theirs:
        raise UsageError(f"{command} takes no arguments after --")
