"""A script for PowerShell."""

from __future__ import annotations

import re

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented

# Each of these opens or closes a text in single quotes (PowerShell's tokenizer).
_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")


def write(decision: Decision) -> WrittenFiles:
    """The command, one option a line."""
    cmd = server.command(decision)
    lines = [f"& {_joined(cmd.program)}", *(_joined(o.words) for o in cmd.options)]
    unset = "".join(
        f"Remove-Item Env:{name} -ErrorAction Ignore\n" for name in decision.plan.user.ignored
    )
    notes: tuple[str, ...] = ()
    if decision.plan.settings.api_key and not cmd.value(server.KEY_FILE):
        notes = ("llama-server takes the API key from the variable LLAMA_API_KEY",)
    # before 7.3 PowerShell loses the double quotes inside an argument
    needs = "#requires -Version 7.3\n" if any('"' in w for w in cmd.argv) else ""
    text = needs + commented((*decision.comments, *notes)) + unset + " `\n  ".join(lines) + "\n"
    # Windows' own PowerShell reads a file without this mark in the old code page
    mark = "" if text.isascii() else "\ufeff"
    return WrittenFiles(mark + text, notes)


def _joined(words: tuple[str, ...]) -> str:
    return " ".join(
        word if re.fullmatch(r"-{1,2}[a-z][\w-]*|\d+", word) else quoted(word) for word in words
    )


def quoted(word: str) -> str:
    """A text as PowerShell takes it literally."""
    return "'" + _QUOTES.sub(lambda m: m[0] * 2, word) + "'"
