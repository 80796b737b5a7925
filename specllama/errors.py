"""Errors shown to the user.

Every package has one subclass. `message` says what is wrong and where; `hint` says
what to do next. `exit_code`: 2 for usage and input, 1 for a run that failed,
3 for speculation that is off under `--strict`, 130 for Ctrl-C.
"""

from __future__ import annotations


class SpecllamaError(Exception):
    """An error shown to the user as one or two lines, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def install_hint(package: str) -> str:
    """For a missing optional package, however specllama was installed (pip, uv tool, pipx)."""
    return f"Install {package} into specllama's environment, e.g. `pip install {package}`."


class UsageError(SpecllamaError):
    """The command line is invalid."""

    exit_code = 2


class StrictError(SpecllamaError):
    """Speculation is off and the user asked to stop in that case."""

    exit_code = 3
