"""Options that several commands share, declared once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from specllama.cli import complete
from specllama.engine.settings import MOST_DRAFTED
from specllama.errors import UsageError

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
LlamaServer = Annotated[
    str | None,
    typer.Option(
        "--llama-server",
        autocompletion=complete.one_of("embedded"),
        help="The binary to run, or `embedded`.",
    ),
]
PMin = Annotated[
    float | None,
    typer.Option(
        "--p-min",
        min=0,
        max=1,
        callback=a_number,
        help="Stop drafting below this probability.",
    ),
]
Slots = Annotated[int, typer.Option("--parallel", min=1, help="Slots. One is right for one user.")]
Host = Annotated[str, typer.Option("--host", envvar="LLAMA_ARG_HOST", help="Address to listen on.")]
Context = Annotated[
    int,
    typer.Option(
        "--context",
        "-c",
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
    str | None, typer.Option("--vram", help="SIZE[,SIZE]: take the GPUs to be that large.")
]
Prefer = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete.one_of("speed", "context"),
        help="When memory is short: speed (shorter context) or context (no draft).",
    ),
]
DraftCache = Annotated[
    str | None,
    typer.Option(
        "--draft-cache",
        autocompletion=complete.cache_types,
        help="Type of the draft's KV cache (f16).",
    ),
]
DraftLayers = Annotated[
    str | None,
    typer.Option(
        "--draft-layers",
        autocompletion=complete.one_of("auto", "all"),
        help="Draft layers on the GPU: N, auto or all.",
    ),
]
NMax = Annotated[
    int | None,
    typer.Option("--n-max", min=1, max=MOST_DRAFTED, help="Tokens per draft (K)."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="SPECLLAMA_API_KEY",
        callback=_api_key,
        help="Key of the server. Better in the variable: arguments show in `ps`.",
    ),
]


def no_passthrough(theirs: Sequence[str], command: str) -> None:
    """For commands that start no server of the user's."""
    if theirs:
        raise UsageError(f"{command} takes no arguments after --")
