"""A decision in other people's formats: one module per format, imported when it is asked for.

A module has `write(decision) -> Written`. It raises Unsayable for a decision that its format
cannot say.
"""

from __future__ import annotations

from importlib import import_module

from specllama.errors import UsageError
from specllama.formats.base import Decision, Unsayable, Written

# Format → the module that writes it.
FORMATS: dict[str, str] = {
    "shell": "shell",
    "powershell": "powershell",
    "json": "as_json",
    "llama-swap": "llama_swap",
    "preset": "preset",
    "systemd": "systemd",
    "launchd": "launchd",
    "compose": "compose",
    "kubernetes": "kubernetes",
}


def write(name: str, decision: Decision) -> Written:
    """The decision in the format `name`. Raises UsageError when there is none of that name and
    Unsayable when it cannot say this decision."""
    module = FORMATS.get(name)
    if module is None:
        raise UsageError(
            f"--format {name}: there is no such format", f"Formats: {', '.join(FORMATS)}."
        )
    written = import_module(f"specllama.formats.{module}").write(decision)
    assert isinstance(written, Written)
    return written


__all__ = ["FORMATS", "Decision", "Unsayable", "Written", "write"]
