"""How a change is written into somebody's text: as the words there are, and the rest as it was."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from xml.sax.saxutils import escape

from specllama.formats.found_command import (
    BLOCK,
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

# What may stand between two words of one variable.
_TO_VALUE = r"""["']?(?:[ \t]*[=:][ \t]*|</key>\s*<string>|["']?\s*,?\s*["']?value["']?:[ \t]*|[ \t]+)["']?"""
_BETWEEN = re.compile(r"(?:\s|\\\r?\n|#[^\n]*\n)*")


def edited(text: str, command: FoundCommand, changes: tuple[WordEdit | SpanEdit, ...]) -> str:
    """The file's text with all changes made, the last one in it first, so that the places of
    the others stay."""
    scalar = command.scalar
    if scalar is not None and _anew(command, scalar, changes):
        value = edited(scalar.value, _within(command, scalar.inner or 0), changes)
        quoted = json.dumps(value, ensure_ascii=False)
        return text[: scalar.start] + quoted + text[scalar.end :]

    source = text
    for change in sorted(changes, key=lambda c: _place(command, c), reverse=True):
        text = _applied(text, source, command, change)
    return text


def _place(command: FoundCommand, change: WordEdit | SpanEdit) -> int:
    if isinstance(change, SpanEdit):
        return change.start
    if change.count:
        return command.words[change.index].start
    return command.words[change.index - 1].end if change.index else command.begin


def _anew(
    command: FoundCommand, scalar: YamlScalar, changes: tuple[WordEdit | SpanEdit, ...]
) -> bool:
    """Whether the whole YAML text is written anew: it must be, or a new word holds what would
    end it. Words of a macro stand in another."""
    if any(w.origin is not None for w in touched(command, changes)):
        return False
    new = [w for c in changes if isinstance(c, WordEdit) for w in c.new if isinstance(w, str)]
    if scalar.inner is None:
        return any(isinstance(c, WordEdit) for c in changes)
    return any(re.search(r"""[:#"'\\{}\[\]]""", w) for w in new)


def _within(command: FoundCommand, start: int) -> FoundCommand:
    """The same with places that count from `start`."""
    words = tuple(replace(w, start=w.start - start, end=w.end - start) for w in command.words)
    return replace(command, words=words, begin=command.begin - start, scalar=None)


def _applied(text: str, source: str, command: FoundCommand, change: WordEdit | SpanEdit) -> str:
    """One change. `source`: the text before any of them."""
    if isinstance(change, SpanEdit):
        return text[: change.start] + change.new + text[change.end :]
    style = _style(command, change)
    new = [
        source[command.words[n].start : command.words[n].end] if isinstance(n, int) else n
        for n in change.new
    ]
    written = [
        t if isinstance(n, int) else _quoted(t, style) for t, n in zip(new, change.new, strict=True)
    ]
    if style == INI:
        return _ini(text, command, change, new)
    if not change.count:
        at = command.words[change.index - 1].end if change.index else command.begin
        glue = _glue(text, at, style, command)
        return text[:at] + "".join(glue + w for w in written) + text[at:]
    start = command.words[change.index].start
    end = command.words[change.index + change.count - 1].end
    if not written:
        start, end = _whole(text, start, end, style)
        return text[:start] + text[end:]
    glue = _glue(text, command.words[change.index].start, style, command)
    return text[:start] + glue.join(written) + text[end:]


def _style(command: FoundCommand, change: WordEdit) -> str:
    """How the words of a change are written: as those they replace or follow."""
    at = change.index if change.count else max(change.index - 1, 0)
    if not change.count and not change.index:
        return SHELL if command.styles[:1] == (TEXT,) else next(iter(command.styles), SHELL)
    return command.styles[at] if at < len(command.styles) else SHELL


def valued(text: str, variable: EnvVariable) -> EnvVariable:
    """With the place of its value: NAME=value, NAME: value, NAME value, or on a line of its own in a
    property list and in Kubernetes."""
    if not (variable.in_text and variable.fixed and variable.value):
        return variable
    found = re.compile(_TO_VALUE + re.escape(variable.value) + r"(?![\w.,|-])").match(
        text, variable.end
    )
    return (
        variable if found is None else replace(variable, value_at=found.end() - len(variable.value))
    )


def touched(command: FoundCommand, changes: Sequence[WordEdit | SpanEdit]) -> tuple[Word, ...]:
    """The words that changes replace, and those behind which they put others."""
    found: list[Word] = []
    for change in changes:
        if isinstance(change, WordEdit):
            first = change.index if change.count else max(change.index - 1, 0)
            last = change.index + change.count
            found += command.words[first:last]
    return tuple(found)


def obstacle(text: str, command: FoundCommand, changes: Sequence[WordEdit | SpanEdit]) -> str:
    """Why changes cannot be written where the words stand, "" = they can: words that come from
    shell variables may stand apart, or in a text that takes no quotes."""
    for change in changes:
        if isinstance(change, SpanEdit):
            continue
        words = command.words[change.index : change.index + change.count]
        if away := next((w for w in touched(command, (change,)) if w.start < 0), None):
            return f"{away.origin.name if away.origin else away.text} is not written here word for word"
        for before, after in pairwise(words):
            between = text[before.end : after.start]
            if (before.origin or after.origin) and not _BETWEEN.fullmatch(between):
                return f"{before.text} and {after.text} stand apart"
        if _style(command, change) == TEXT:
            new = [
                text[command.words[w].start : command.words[w].end] if isinstance(w, int) else w
                for w in change.new
            ]
            if any(shlex.quote(w) != w and not w.startswith("$") for w in new):
                return "no quotes can stand inside that text"
    return ""


def _quoted(word: str, style: str) -> str:
    if style in (SHELL, TEXT):
        return shlex.quote(word)
    if style == XML:
        return f"<string>{escape(word)}</string>"
    return word if style == INI else json.dumps(word, ensure_ascii=False)


def _glue(text: str, at: int, style: str, command: FoundCommand) -> str:
    """What stands between two words here."""
    if style == FLOW:
        return ", "
    if style in (BLOCK, XML):
        begin = text.rfind("\n", 0, at) + 1
        indent = re.match(r"[ \t]*", text[begin:])
        return "\n" + (indent[0] if indent else "") + ("- " if style == BLOCK else "")
    return " "


def _whole(text: str, start: int, end: int, style: str) -> tuple[int, int]:
    """The span of words with the blanks, the comma or the line that goes with them."""
    if style in (SHELL, TEXT):
        before = re.search(r"(?:\s|[\\`^]\r?\n)*$", text[:start])
        return (before.start() if before else start), end
    if style == XML:
        before = re.search(r"\s*$", text[:start])
        return (before.start() if before else start), end
    if style == BLOCK:
        close = text.find("\n", end)
        return text.rfind("\n", 0, start) + 1, len(text) if close < 0 else close + 1
    behind = re.match(r"\s*,\s*", text[end:])
    if behind:
        return start, end + behind.end()
    before = re.search(r",\s*$", text[:start])
    return (before.start() if before else start), end


def _ini(text: str, command: FoundCommand, change: WordEdit, new: list[str]) -> str:
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
        written = "\n" + written
    return text[:start] + written + text[end:]
