"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Workload = Annotated[
    str, typer.Option("--workload", "-w", help="code, chat, text, edit or creative.")
]
LlamaServer = Annotated[
    str | None, typer.Option("--llama-server", help="The binary to run, or `embedded`.")
]
Context = Annotated[
    int,
    typer.Option(
        "--context",
        "-c",
        min=0,
        envvar="LLAMA_ARG_CTX_SIZE",
        show_envvar=False,
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
    typer.Option(help="When memory is short: speed (shorter context) or context (no draft)."),
]
DraftCache = Annotated[
    str | None, typer.Option("--draft-cache", help="Type of the draft's KV cache (f16).")
]
