"""A PowerShell script."""

from __future__ import annotations

import re

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented

# All of these are single quotes to PowerShell's tokenizer.
_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")


def write(decision: Decision) -> WrittenFiles:
    """The command, one option per line."""
    cmd = server.command(decision)
    lines = [f"& {_joined(cmd.program)}", *(_joined(o.words) for o in cmd.options)]
    unset = "".join(
        f"Remove-Item Env:{name} -ErrorAction Ignore\n" for name in decision.plan.user.ignored
    )
    notes: tuple[str, ...] = ()
    if decision.plan.settings.api_key and not cmd.value(server.KEY_FILE):
        notes = ("set LLAMA_API_KEY before you run it: llama-server reads the API key from there",)
    # PowerShell before 7.3 drops double quotes inside an argument
    needs = "#requires -Version 7.3\n" if any('"' in w for w in cmd.argv) else ""
    text = needs + commented((*decision.comments, *notes)) + unset + " `\n  ".join(lines) + "\n"
    # without a BOM, Windows PowerShell assumes the ANSI code page
    mark = "" if text.isascii() else "\ufeff"
    return WrittenFiles(mark + text, notes)


def _joined(words: tuple[str, ...]) -> str:
    return " ".join(
        word if re.fullmatch(r"-{1,2}[a-z][\w-]*|\d+", word) else quoted(word) for word in words
    )


def quoted(word: str) -> str:
    """A PowerShell literal."""
    return "'" + _QUOTES.sub(lambda m: m[0] * 2, word) + "'"
