"""The front door: one small module per command, rendering, errors → exit codes."""

from __future__ import annotations

import sys


def main() -> None:
    """The `specllama` command. Exits 0, 1 (a run failed), 2 (usage, input), 3 (--strict)."""
    from specllama.cli.app import run

    sys.exit(run(sys.argv[1:]))
