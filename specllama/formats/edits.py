"""Writes the fix of a finding into a text: quoted as its neighbours are, the rest unchanged."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from xml.sax.saxutils import escape

from specllama.formats.found_command import (
    BLOCK,
    ESCAPED,
    FLOW,
    INI,
    SHELL,
    TEXT,
    XML,
    EnvVariable,
    FoundCommand,
    SpanEdit,
    WordEdit,
    YamlScalar,
)
from specllama.formats.shell_words import Word

# Between the name of a variable and its value.
_TO_VALUE = re.compile(
    r"""["']?(?:[ \t]*[=:][ \t]*|</key>\s*<string>|["']?\s*,?\s*["']?value["']?:[ \t]*|[ \t]+)["']?"""
)
_BETWEEN = re.compile(r"(?:\s|\\\r?\n|#[^\n]*\n)*")  # two words of one variable
_COMMA = re.compile(r"\s*,\s*")
_INDENT = re.compile(r"[ \t]*")
_LINE_END = re.compile(r"\r?\n")
_ENDS_A_SCALAR = re.compile(r"""[:#"'\\{}\[\]]""")


@dataclass(frozen=True)
class Replacement:
    """text[start:end] becomes `new`. `scalar`: the positions count in its value instead, and all
    of it is quoted again."""

    start: int
    end: int
    new: str
    scalar: YamlScalar | None = None

    @property
    def span(self) -> tuple[int, int]:
        """What it replaces of the file."""
        return (self.scalar.start, self.scalar.end) if self.scalar else (self.start, self.end)


def replacements(
    text: str, command: FoundCommand, changes: Sequence[WordEdit | SpanEdit]
) -> tuple[Replacement, ...]:
    """The changes as replacements in the file's text, the last one first. They are small, and
    equal where two commands ask for the same."""
    scalar = command.scalar
    whole = scalar if scalar is not None and _needs_quoting(command, scalar, changes) else None
    source = whole.value if whole is not None else text
    offset = (whole.inner or 0) if whole is not None else 0
    out: list[Replacement] = []
    for change in sorted(changes, key=lambda c: _position(command, c), reverse=True):
        out.append(_replacement(source, offset, command, change, out))
    return tuple(replace(r, scalar=whole) for r in out) if whole is not None else tuple(out)


def applied(text: str, changes: Sequence[Replacement]) -> str:
    """The text with all replacements made; they do not overlap."""
    scalars: dict[YamlScalar, list[Replacement]] = {}
    plain: list[Replacement] = []
    for r in changes:
        if r.scalar is None:
            plain.append(r)
        else:
            scalars.setdefault(r.scalar, []).append(replace(r, scalar=None))
    for scalar, inner in scalars.items():
        quoted = json.dumps(applied(scalar.value, inner), ensure_ascii=False)
        plain.append(Replacement(scalar.start, scalar.end, quoted))
    parts, position = [], 0
    # of two insertions at one position, the later one goes first
    ordered = sorted(plain, key=lambda r: (r.start, r.end), reverse=True)
    for r in reversed(ordered):
        parts += [text[position : r.start], r.new]
        position = r.end
    return "".join([*parts, text[position:]])


def _position(command: FoundCommand, change: WordEdit | SpanEdit) -> int:
    if isinstance(change, SpanEdit):
        return change.start
    if change.count:
        return command.words[change.index].start
    return command.words[change.index - 1].end if change.index else command.begin


def _needs_quoting(
    command: FoundCommand, scalar: YamlScalar, changes: Sequence[WordEdit | SpanEdit]
) -> bool:
    """Whether the whole YAML scalar must be quoted again: its words have no place in the file, or
    a new word would end it. Words of a macro are in another scalar."""
    if any(w.origin is not None for w in touched(command, changes)):
        return False
    new = [w for c in changes if isinstance(c, WordEdit) for w in c.new if isinstance(w, str)]
    if scalar.inner is None:
        return any(isinstance(c, WordEdit) for c in changes)
    return any(_ENDS_A_SCALAR.search(w) for w in new)


def _replacement(
    source: str,
    offset: int,
    command: FoundCommand,
    change: WordEdit | SpanEdit,
    later: Sequence[Replacement],
) -> Replacement:
    """One change. `offset`: of the source in the file; `later`: the changes after it in the source."""
    if isinstance(change, SpanEdit):
        return Replacement(change.start - offset, change.end - offset, change.new)
    style = _style(command, change)
    words = command.words
    new = [
        source[words[n].start - offset : words[n].end - offset] if isinstance(n, int) else n
        for n in change.new
    ]
    if style == INI:
        return _ini(source, command, change, new, later)
    written = [
        t if isinstance(n, int) else _quoted(t, style) for t, n in zip(new, change.new, strict=True)
    ]
    if not change.count:
        at = (words[change.index - 1].end if change.index else command.begin) - offset
        glue = _glue(source, at, style)
        return Replacement(at, at, "".join(glue + w for w in written))
    start = words[change.index].start - offset
    end = words[change.index + change.count - 1].end - offset
    if not written:
        return Replacement(*_with_separator(source, start, end, style, later), "")
    return Replacement(start, end, _glue(source, start, style).join(written))


def _style(command: FoundCommand, change: WordEdit) -> str:
    """How the new words are written: like those they replace or follow."""
    index = change.index if change.count else max(change.index - 1, 0)
    if not change.count and not change.index:
        return SHELL if command.styles[:1] == (TEXT,) else next(iter(command.styles), SHELL)
    return command.styles[index] if index < len(command.styles) else SHELL


def with_value_position(text: str, variable: EnvVariable) -> EnvVariable:
    """The variable with the position of its value: NAME=value, NAME: value, NAME value, or on a
    line of its own in a property list and in Kubernetes."""
    if not (variable.in_text and variable.fixed and variable.value):
        return variable
    before = _TO_VALUE.match(text, variable.end)
    position = before.end() if before else -1
    end = position + len(variable.value)
    if before is None or not text.startswith(variable.value, position):
        return variable
    if re.match(r"[\w.,|-]", text[end : end + 1]):
        return variable
    return replace(variable, value_at=position)


def touched(command: FoundCommand, changes: Sequence[WordEdit | SpanEdit]) -> tuple[Word, ...]:
    """The words that changes replace, and those after which they insert others."""
    found: list[Word] = []
    for change in changes:
        if isinstance(change, WordEdit):
            first = change.index if change.count else max(change.index - 1, 0)
            last = change.index + change.count
            found += command.words[first:last]
    return tuple(found)


def obstacle(text: str, command: FoundCommand, changes: Sequence[WordEdit | SpanEdit]) -> str:
    """Why changes cannot be written where the words are, "" = they can: words of shell variables
    may be apart, or inside quotes that cannot hold others."""
    for change in changes:
        if isinstance(change, SpanEdit):
            continue
        words = command.words[change.index : change.index + change.count]
        if away := next((w for w in touched(command, (change,)) if w.start < 0), None):
            if away.origin == ESCAPED:
                return "the quotes inside the quoted command are escaped"
            name = away.origin.name if away.origin else away.text
            return f"{name} is not spelled out in this file"
        for before, after in pairwise(words):
            between = text[before.end : after.start]
            if (before.origin or after.origin) and not _BETWEEN.fullmatch(between):
                return f"{before.text} and {after.text} are not next to each other"
        if _style(command, change) == TEXT:
            new = [
                text[command.words[w].start : command.words[w].end] if isinstance(w, int) else w
                for w in change.new
            ]
            if any(shlex.quote(w) != w and not w.startswith("$") for w in new):
                return "that text is quoted, and quotes cannot be nested in it"
    return ""


def _quoted(word: str, style: str) -> str:
    if style in (SHELL, TEXT):
        return shlex.quote(word)
    if style == XML:
        return f"<string>{escape(word)}</string>"
    return word if style == INI else json.dumps(word, ensure_ascii=False)


def _glue(text: str, at: int, style: str) -> str:
    """What separates two words here."""
    if style == FLOW:
        return ", "
    if style in (BLOCK, XML):
        indent = _INDENT.match(text, text.rfind("\n", 0, at) + 1)
        return "\n" + (indent[0] if indent else "") + ("- " if style == BLOCK else "")
    return " "


def _with_separator(
    text: str, start: int, end: int, style: str, later: Sequence[Replacement]
) -> tuple[int, int]:
    """The span of removed words with their spaces, comma or line."""
    if style == BLOCK:
        close = text.find("\n", end)
        return text.rfind("\n", 0, start) + 1, len(text) if close < 0 else close + 1
    if style != FLOW:
        return _spaces_before(text, start, continued=style != XML), end
    # the last items of a list go with the comma before them
    last = bool(later) and later[-1].start == end and not later[-1].new
    behind = None if last else _COMMA.match(text, end)
    if behind is not None:
        return start, behind.end()
    spaces = _spaces_before(text, start, continued=False)
    return (spaces - 1 if text[spaces - 1 : spaces] == "," else start), end


def _spaces_before(text: str, position: int, continued: bool) -> int:
    """Where the spaces before a position begin. `continued`: a mark that continues the line on the
    next one (sh, PowerShell, cmd) counts as one."""
    while position:
        c = text[position - 1]
        mark = continued and c in "\\`^" and _LINE_END.match(text, position) is not None
        if not (c.isspace() or mark):
            break
        position -= 1
    return position


def _ini(
    text: str, command: FoundCommand, change: WordEdit, new: list[str], later: Sequence[Replacement]
) -> Replacement:
    """Lines `key = value`: the words come in pairs, keys with their dashes."""
    lines: list[str] = []
    for given, word in zip(change.new, new, strict=True):
        name = isinstance(given, str) and re.match("-+[A-Za-z]", given)
        if name or (isinstance(given, int) and given % 2 == 0):
            lines.append(f"{word.lstrip('-')} = ")
        else:
            lines[-1] += word
    written = "".join(f"{line}{'true' if line.endswith('= ') else ''}\n" for line in lines)
    if change.count:
        start = text.rfind("\n", 0, command.words[change.index].start) + 1
        close = text.find("\n", command.words[change.index + change.count - 1].end)
    else:
        last = command.words[change.index - 1].end if change.index else command.begin
        close = text.find("\n", last)
        start = len(text) if close < 0 else close + 1
    end = len(text) if close < 0 else close + 1
    if start == len(text) and text and not text.endswith("\n"):
        # an appended line adds the line end itself
        written = "\n" + (written.removesuffix("\n") if later else written)
    return Replacement(start, end, written)
