"""Splits command lines into words with their positions. Nothing is run or expanded.

The rules of a POSIX shell as in shlex.split, plus positions, line continuations, comments, and
operators that end a command. Windows paths keep their backslashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from specllama.errors import UsageError

_BLANK = " \t\r"
_OPERATORS = ";&|()\n"
_REDIRECTION = re.compile(r"\d*(>>?|<<<|<)[&|]?")
_HERE = re.compile(r"""\d*<<[-~]?[ \t]*(['"\\]?)(\w+)['"]?""")
# POSIX would remove the backslashes of such a path, which nobody intends.
_WINDOWS_PATH = re.compile(r"(?:--?[\w-]+=)?(?:[A-Za-z]:|\.\.?)\\(?!\r?\n)")
_ESCAPED = (" ", "\t", "'", '"')  # no folder name begins with these
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_DYNAMIC = re.compile(r"\$[\w{(@*#?]|`|%[A-Za-z]")


@dataclass(frozen=True)
class WordOrigin:
    """The shell variable that a word is written in. `text`: inside one pair of quotes, so that its
    words cannot be quoted themselves."""

    name: str
    text: bool


@dataclass(frozen=True)
class Word:
    """`text` without its quotes; text[start:end] of the source is how it is written. Not `fixed`:
    it holds a variable or a substitution, so that what it will be is unknown. `quoted`: it begins
    with a double quote. `origin`: the variable it is written in, None = the
    command itself."""

    text: str
    start: int
    end: int
    fixed: bool = True
    quoted: bool = False
    origin: WordOrigin | None = None


@dataclass(frozen=True)
class SimpleCommand:
    """A simple command. `before`: the operators between it and the previous one. `arrays`: index of
    a word NAME= → the words in its parentheses."""

    words: list[Word]
    before: str = ""
    arrays: dict[int, list[Word]] = field(default_factory=dict)


def split_words(
    source: str, start: int = 0, end: int | None = None, *, lines: bool = True, plain: bool = False
) -> list[list[Word]]:
    """The words of each simple command in source[start:end]. `lines`: a line end ends a command
    (otherwise it counts as a space). `plain`: no shell reads it, so operators are ordinary characters.
    Redirections are left out. Raises UsageError for an unclosed quote."""
    return [s.words for s in simples(source, start, end, lines=lines, plain=plain)]


def simples(
    source: str, start: int = 0, end: int | None = None, *, lines: bool = True, plain: bool = False
) -> list[SimpleCommand]:
    """The same, with the operators between the commands."""
    pos, end = start, len(source) if end is None else end
    found = [SimpleCommand([])]
    between = ""
    redirected = False
    documents: list[str] = []  # delimiters of the here-documents that begin after this line
    while pos < end:
        c = source[pos]
        if c == "\n" and documents:
            for last in documents if lines else ():
                pos = _heredoc_end(source, pos, end, last)
            documents.clear()
        words = found[-1].words
        if source.startswith(("\\\n", "\\\r\n"), pos):
            pos = source.index("\n", pos) + 1
        elif c in _BLANK or (c == "\n" and (plain or not lines)):
            pos += 1
        elif c == "#":
            pos = _line_end(source, pos, end)
        elif c == "(" and words and words[-1].end == pos and _ARRAY.fullmatch(words[-1].text):
            inside, pos = _array_words(source, pos + 1, end)
            found[-1].arrays[len(words) - 1] = inside
        elif c in _OPERATORS and not plain:
            between += c
            if words:
                found.append(SimpleCommand([]))
            redirected = False
            pos += 1
        elif not plain and (here := _HERE.match(source, pos, end)):
            documents.append(here[2])
            pos = here.end()
        elif not plain and (arrow := _REDIRECTION.match(source, pos, end)):
            redirected = True
            pos = arrow.end()
        else:
            word = _word(source, pos, end, plain)
            pos = word.end
            if not redirected:
                if not words:
                    found[-1], between = SimpleCommand([], between), ""
                found[-1].words.append(word)
            redirected = False
    return [s for s in found if s.words]


def _array_words(source: str, pos: int, end: int) -> tuple[list[Word], int]:
    """The words of an array, and the position after its closing parenthesis."""
    words: list[Word] = []
    while pos < end and source[pos] != ")":
        if source.startswith(("\\\n", "\\\r\n"), pos):
            pos = source.index("\n", pos) + 1
        elif source[pos] == "#":
            pos = _line_end(source, pos, end)
        elif source[pos] in _BLANK + _OPERATORS + "<>":
            pos += 1
        else:
            words.append(_word(source, pos, end))
            pos = words[-1].end
    return words, min(pos + 1, end)


def _heredoc_end(source: str, pos: int, end: int, last: str) -> int:
    """The end of the line that closes a here-document which begins after `pos`."""
    found = re.compile(rf"^[ \t]*{last}[ \t]*$", re.M).search(source, pos + 1, end)
    return found.end() if found else end


def _line_end(source: str, pos: int, end: int) -> int:
    found = source.find("\n", pos, end)
    return end if found < 0 else found


def _word(source: str, start: int, end: int, plain: bool = False) -> Word:
    pos, text, fixed = start, "", True
    stops = _BLANK + "\n" if plain else _BLANK + _OPERATORS + "<>"
    windows = _WINDOWS_PATH.match(source, start, end) is not None
    while pos < end and source[pos] not in stops:
        c = source[pos]
        if source.startswith(("\\\n", "\\\r\n"), pos):  # a line continuation
            pos = source.index("\n", pos) + 1
        elif c == "\\" and windows and source[pos + 1 : pos + 2] not in _ESCAPED:
            text += c
            pos += 2 if source.startswith("\\\\", pos) else 1
        elif c == "\\":
            text += source[pos + 1 : pos + 2] if pos + 1 < end else ""
            pos += 2
        elif c == "'":
            close = source.find("'", pos + 1, end)
            if close < 0:
                raise _open_quote(source, pos)
            text += source[pos + 1 : close]
            pos = close + 1
        elif c == '"':
            inside, pos = _double_quoted(source, pos, end)
            fixed = fixed and not _DYNAMIC.search(inside.replace("\\$", ""))
            text += re.sub(r'\\(["\\$`])', r"\1", inside.replace("\\\n", ""))
        elif source.startswith(("${", "$("), pos):
            close = _closing(source, pos + 1, end)
            text, pos, fixed = text + source[pos:close], close, False
        else:
            fixed = fixed and not _DYNAMIC.match(source, pos)
            text += c
            pos += 1
    return Word(text, start, min(pos, end), fixed, source[start] == '"')


def _double_quoted(source: str, pos: int, end: int) -> tuple[str, int]:
    close = pos + 1
    while close < end and source[close] != '"':
        close += 2 if source[close] == "\\" else 1
    if close >= end:
        raise _open_quote(source, pos)
    return source[pos + 1 : close], close + 1


def _closing(source: str, pos: int, end: int) -> int:
    """The position after the bracket that closes the one at `pos`; the end if nothing does."""
    opening, closing = source[pos], {"{": "}", "(": ")"}[source[pos]]
    depth = 0
    for i in range(pos, end):
        depth += (source[i] == opening) - (source[i] == closing)
        if not depth:
            return i + 1
    return end


def _open_quote(source: str, pos: int) -> UsageError:
    line = source.count("\n", 0, pos) + 1
    shown = " ".join(source[pos : pos + 30].split())
    return UsageError(f"line {line}: unclosed quote before {shown}")
