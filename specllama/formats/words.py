"""Command lines cut into words, each with its place in the text. Nothing is run or expanded.

The rules are those of a POSIX shell as shlex.split has them, with what it lacks: places, line
continuations, comments, and operators that end a command. Windows paths keep their backslashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from specllama.errors import UsageError

_BLANK = " \t\r"
_OPERATORS = ";&|()\n"
_REDIRECTION = re.compile(r"\d*(>>?|<<<|<)[&|]?")
_HERE = re.compile(r"""\d*<<[-~]?[ \t]*(['"\\]?)(\w+)['"]?""")
# POSIX takes the backslashes out of such a path, which nobody means who writes one.
_WINDOWS_PATH = re.compile(r"(?:--?[\w-]+=)?(?:[A-Za-z]:|\.\.?)\\(?!\r?\n)")
_ESCAPED = (" ", "\t", "'", '"')  # what begins no folder's name
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_DYNAMIC = re.compile(r"\$[\w{(@*#?]|`|%[A-Za-z]")


@dataclass(frozen=True)
class Home:
    """The shell variable that a word is written in. `text`: between quotes that close behind all
    of it, so that no word in it can have its own."""

    name: str
    text: bool


@dataclass(frozen=True)
class Word:
    """`text` without its quotes; text[start:end] of the source is how it is written. Not `fixed`:
    it holds a variable or a substitution, so that what it will be is unknown. `quoted`: it begins
    with a double quote. `home`: where it is written, when that is not the command itself."""

    text: str
    start: int
    end: int
    fixed: bool = True
    quoted: bool = False
    home: Home | None = None


@dataclass(frozen=True)
class SimpleCommand:
    """A simple command. `before`: the operators that part it from the one before. `arrays`:
    number of a word NAME= → the words in its brackets."""

    words: list[Word]
    before: str = ""
    arrays: dict[int, list[Word]] = field(default_factory=dict)


def split(
    source: str, start: int = 0, end: int | None = None, *, lines: bool = True, plain: bool = False
) -> list[list[Word]]:
    """The words of each simple command in source[start:end]. `lines`: a line's end ends a command
    (else it is a blank). `plain`: no shell reads it, so that operators are letters as others.
    Redirections are left out. Raises UsageError for an open quote."""
    return [s.words for s in simples(source, start, end, lines=lines, plain=plain)]


def simples(
    source: str, start: int = 0, end: int | None = None, *, lines: bool = True, plain: bool = False
) -> list[SimpleCommand]:
    """The same with what stands between the commands."""
    at, end = start, len(source) if end is None else end
    found = [SimpleCommand([])]
    between = ""
    redirected = False
    documents: list[str] = []  # ends of the here-documents that begin behind this line
    while at < end:
        c = source[at]
        if c == "\n" and documents:
            at = _behind(source, at, end, documents.pop(0)) if lines else at
        words = found[-1].words
        if source.startswith(("\\\n", "\\\r\n"), at):
            at = source.index("\n", at) + 1
        elif c in _BLANK or (c == "\n" and (plain or not lines)):
            at += 1
        elif c == "#":
            at = _line_end(source, at, end)
        elif c == "(" and words and words[-1].end == at and _ARRAY.fullmatch(words[-1].text):
            inside, at = _bracketed(source, at + 1, end)
            found[-1].arrays[len(words) - 1] = inside
        elif c in _OPERATORS and not plain:
            between += c
            if words:
                found.append(SimpleCommand([]))
            redirected = False
            at += 1
        elif not plain and (here := _HERE.match(source, at, end)):
            documents.append(here[2])
            at = here.end()
        elif not plain and (arrow := _REDIRECTION.match(source, at, end)):
            redirected = True
            at = arrow.end()
        else:
            word = _word(source, at, end, plain)
            at = word.end
            if not redirected:
                if not words:
                    found[-1], between = SimpleCommand([], between), ""
                found[-1].words.append(word)
            redirected = False
    return [s for s in found if s.words]


def _bracketed(source: str, at: int, end: int) -> tuple[list[Word], int]:
    """The words of an array, and the place behind its closing bracket."""
    words: list[Word] = []
    while at < end and source[at] != ")":
        if source.startswith(("\\\n", "\\\r\n"), at):
            at = source.index("\n", at) + 1
        elif source[at] == "#":
            at = _line_end(source, at, end)
        elif source[at] in _BLANK + _OPERATORS + "<>":
            at += 1
        else:
            words.append(_word(source, at, end))
            at = words[-1].end
    return words, min(at + 1, end)


def _behind(source: str, at: int, end: int, last: str) -> int:
    """The end of the line that ends a here-document which begins behind `at`."""
    found = re.compile(rf"^[ \t]*{last}[ \t]*$", re.M).search(source, at + 1, end)
    return found.end() if found else end


def _line_end(source: str, at: int, end: int) -> int:
    found = source.find("\n", at, end)
    return end if found < 0 else found


def _word(source: str, start: int, end: int, plain: bool = False) -> Word:
    at, text, fixed = start, "", True
    stops = _BLANK + "\n" if plain else _BLANK + _OPERATORS + "<>"
    windows = _WINDOWS_PATH.match(source, start, end) is not None
    while at < end and source[at] not in stops:
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
    return Word(text, start, min(at, end), fixed, source[start] == '"')


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
