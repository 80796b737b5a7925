"""Command lines cut into words, each with its place in the text. Nothing is run or expanded.

The rules are those of a POSIX shell as shlex.split has them, with what it lacks: places, line
continuations, comments, and operators that end a command. Windows paths keep their backslashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specllama.errors import UsageError

_BLANK = " \t\r"
_OPERATORS = ";&|()\n"
_REDIRECTION = re.compile(r"\d*(>>?|<<<|<)[&|]?")
_HERE = re.compile(r"""\d*<<[-~]?[ \t]*(['"\\]?)(\w+)['"]?""")
# POSIX takes the backslashes out of such a path, which nobody means who writes one.
_WINDOWS_PATH = re.compile(r"(?:--?[\w-]+=)?(?:[A-Za-z]:|\.\.?)\\(?!\r?\n)")
_ESCAPED = (" ", "\t", "'", '"')  # what begins no folder's name
_DYNAMIC = re.compile(r"\$[\w{(@*#?]|`|%[A-Za-z]")


@dataclass(frozen=True)
class Word:
    """`text` without its quotes; text[start:end] of the source is how it is written. Not `fixed`:
    it holds a variable or a substitution, so that what it will be is unknown."""

    text: str
    start: int
    end: int
    fixed: bool = True


def split(
    source: str, start: int = 0, end: int | None = None, *, lines: bool = True
) -> list[list[Word]]:
    """The words of each simple command in source[start:end]. `lines`: a line's end ends a command
    (else it is a blank). Redirections are left out. Raises UsageError for an open quote."""
    at, end = start, len(source) if end is None else end
    commands: list[list[Word]] = [[]]
    redirected = False
    documents: list[str] = []  # ends of the here-documents that begin behind this line
    while at < end:
        c = source[at]
        if c == "\n" and documents:
            at = _behind(source, at, end, documents.pop(0)) if lines else at
        if source.startswith(("\\\n", "\\\r\n"), at):
            at = source.index("\n", at) + 1
        elif c in _BLANK or (c == "\n" and not lines):
            at += 1
        elif c == "#":
            at = _line_end(source, at, end)
        elif c in _OPERATORS:
            commands.append([])
            redirected = False
            at += 1
        elif found := _HERE.match(source, at, end):
            documents.append(found[2])
            at = found.end()
        elif found := _REDIRECTION.match(source, at, end):
            redirected = True
            at = found.end()
        else:
            word = _word(source, at, end)
            at = word.end
            if not redirected:
                commands[-1].append(word)
            redirected = False
    return [c for c in commands if c]


def _behind(source: str, at: int, end: int, last: str) -> int:
    """The end of the line that ends a here-document which begins behind `at`."""
    found = re.compile(rf"^[ \t]*{last}[ \t]*$", re.M).search(source, at + 1, end)
    return found.end() if found else end


def _line_end(source: str, at: int, end: int) -> int:
    found = source.find("\n", at, end)
    return end if found < 0 else found


def _word(source: str, start: int, end: int) -> Word:
    at, text, fixed = start, "", True
    windows = _WINDOWS_PATH.match(source, start, end) is not None
    while at < end and source[at] not in _BLANK + _OPERATORS + "<>":
        c = source[at]
        if source.startswith(("\\\n", "\\\r\n"), at):  # a line's end joins
            at = source.index("\n", at) + 1
        elif c == "\\" and windows and source[at + 1 : at + 2] not in _ESCAPED:
            text += c
            at += 2 if source.startswith("\\\\", at) else 1
        elif c == "\\":
            text += source[at + 1 : at + 2] if at + 1 < end else ""
            at += 2
        elif c == "'":
            close = source.find("'", at + 1, end)
            if close < 0:
                raise _open_quote(source, at)
            text += source[at + 1 : close]
            at = close + 1
        elif c == '"':
            inside, at = _double_quoted(source, at, end)
            fixed = fixed and not _DYNAMIC.search(inside.replace("\\$", ""))
            text += re.sub(r'\\(["\\$`])', r"\1", inside.replace("\\\n", ""))
        elif source.startswith(("${", "$("), at):
            close = _closing(source, at + 1, end)
            text, at, fixed = text + source[at:close], close, False
        else:
            fixed = fixed and not _DYNAMIC.match(source, at)
            text += c
            at += 1
    return Word(text, start, min(at, end), fixed)


def _double_quoted(source: str, at: int, end: int) -> tuple[str, int]:
    close = at + 1
    while close < end and source[close] != '"':
        close += 2 if source[close] == "\\" else 1
    if close >= end:
        raise _open_quote(source, at)
    return source[at + 1 : close], close + 1


def _closing(source: str, at: int, end: int) -> int:
    """Behind the bracket that closes the one at `at`; the end where nothing does."""
    opening, closing = source[at], {"{": "}", "(": ")"}[source[at]]
    depth = 0
    for i in range(at, end):
        depth += (source[i] == opening) - (source[i] == closing)
        if not depth:
            return i + 1
    return end


def _open_quote(source: str, at: int) -> UsageError:
    line = source.count("\n", 0, at) + 1
    shown = " ".join(source[at : at + 30].split())
    return UsageError(f"line {line}: the quote before {shown} is never closed")
