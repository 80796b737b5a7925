"""Presets of llama-server's router: an INI file parsed as llama.cpp does (common/preset.cpp,
b11434), with corrections of the lines that it rejects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from specllama.errors import UsageError
from specllama.formats import known_builds
from specllama.formats.found_command import INI, LLAMA, EnvVariable, FoundCommand
from specllama.formats.shell_words import Word

BOM = "\ufeff"
EVERYWHERE = "*"
_ROUTERS = ("version", "load-on-startup", "stop-timeout", "dedup-cache-models")  # not options
_SECTION = re.compile(r"\[([^\]]*)\][ \t]*(?:[#;].*)?$")
_PAIR = re.compile(r"([ \t]*)(-*)([A-Za-z_][\w.-]*)([ \t]*(=)?[ \t]*)([^#;]*?)[ \t]*([#;].*)?$")


@dataclass(frozen=True)
class PresetLine:
    """`key = value`; text[start:end] is the line without its end. `cut`: the rest of the line from
    # or ; on. `refused`: why the router rejects it, "" = it does not; `right`: the corrected
    line."""

    start: int
    end: int
    key: str
    key_at: int
    value: str
    value_at: int
    cut: str = ""
    refused: str = ""
    right: str = ""


@dataclass(frozen=True)
class PresetSection:
    """text[start:end]; `name` "" = the lines before the first header. `earlier`: ignored sections of
    the same name."""

    name: str
    start: int
    end: int
    lines: tuple[PresetLine, ...]
    earlier: tuple[PresetSection, ...] = ()

    @property
    def options(self) -> tuple[PresetLine, ...]:
        """The lines for the model, not the router."""
        return tuple(line for line in self.lines if line.key not in _ROUTERS)


def read(text: str) -> Iterator[FoundCommand]:
    """The models of a preset; [*] applies to all of them. Raises UsageError for a line that is
    neither `key = value` nor a header."""
    found = sections(text)
    shared = {
        _variable(line): line.value
        for section in found
        for line in section.lines
        if section.name == EVERYWHERE
    }
    for section in found:
        if not section.options:
            continue
        words = tuple(w for line in section.options for w in _words(line))
        own = {_variable(line) for line in section.options}
        inherited = tuple(EnvVariable(k, v) for k, v in shared.items() if k and k not in own)
        everywhere = section.name == EVERYWHERE
        yield FoundCommand(
            LLAMA,
            words,
            (INI,) * len(words),
            section.start,
            f"[{section.name}]" if section.name else "",
            variables=() if everywhere else inherited,
            partial=everywhere,
        )


@lru_cache(maxsize=2)  # for each of its models
def sections(text: str) -> tuple[PresetSection, ...]:
    """Those that count, in order."""
    last: dict[str, PresetSection] = {}
    for section in _all(text):
        before = last.pop(section.name, None)
        if before is not None:
            section = replace(section, earlier=(*before.earlier, replace(before, earlier=())))
        last[section.name] = section
    return tuple(last.values())


@lru_cache(maxsize=2)
def sections_by_start(text: str) -> dict[int, PresetSection]:
    """Those with options, in order."""
    return {s.start: s for s in sections(text) if s.options}


@lru_cache(maxsize=2)
def names_by_id(text: str) -> dict[str, list[str]]:
    """The names of sections that the router gives one id."""
    out: dict[str, list[str]] = {}
    for section in sections(text):
        out.setdefault(same_id(section.name), []).append(section.name)
    return out


def _all(text: str) -> Iterator[PresetSection]:
    name, start, lines = "", 0, list[PresetLine]()
    at = 0
    for number, whole in enumerate(text.splitlines(keepends=True), 1):
        line = whole.rstrip("\r\n")
        skip = len(BOM) if not at and line.startswith(BOM) else 0
        body, place = line[skip:], at + skip
        if header := _SECTION.match(body):
            if not header[1].strip(" \t"):
                raise UsageError(f"line {number}: [] names no model; the router exits")
            yield PresetSection(name, start, at, tuple(lines))
            name, start, lines = header[1].lstrip(" \t"), place, []
        elif body.strip() and body.strip()[0] not in "#;":
            found = _line(body, place)
            if found is None:
                raise UsageError(
                    f"line {number}: {body.strip()[:60]!r} is neither `key = value` nor [section]",
                    "Keys of a preset begin in the first column, without dashes.",
                )
            lines.append(found)
        at += len(whole)
    yield PresetSection(name, start, at, tuple(lines))


def _line(body: str, place: int) -> PresetLine | None:
    m = _PAIR.match(body)
    if m is None:
        return None
    indent, dashes, key, _, equals, value, rest = m.groups()
    value_at = place + m.start(6)
    refused = []
    if indent:
        refused.append("a key must begin in the first column")
    if dashes:
        refused.append("a key must have no dashes")
    if not equals:
        refused.append("a key needs = and a value")
        if not value and not _is_switch(key):
            return None
        value = value or "true"
    right = f"{key} = {value}{' ' + rest if rest else ''}" if refused else ""
    key_at = place + m.start(3)
    why = " and ".join(refused)
    return PresetLine(
        place, place + len(body), key, key_at, value, value_at, rest or "", why, right
    )


def _is_switch(key: str) -> bool:
    option = known_builds.capabilities().find(_dashed(key))
    return option is not None and not option.hint


def _words(line: PresetLine) -> tuple[Word, Word]:
    key = Word(_dashed(line.key), line.key_at, line.key_at + len(line.key))
    end = min(line.value_at + len(line.value), line.end)
    return key, Word(line.value, min(line.value_at, end), end)


def _variable(line: PresetLine) -> str:
    """The variable of an option; "" = none."""
    if line.key.startswith("LLAMA_ARG_"):
        return line.key
    option = known_builds.capabilities().find(_dashed(line.key).replace("_", "-"))
    return option.env if option is not None else ""


def _dashed(key: str) -> str:
    """The option that a key names: short ones have one dash."""
    if key.startswith("LLAMA_ARG_"):
        return key
    return f"-{key}" if f"-{key}" in _short_names() else f"--{key}"


@cache
def _short_names() -> set[str]:
    caps = known_builds.capabilities()
    return {n for o in caps.options for n in o.names if not n.startswith("--")} | {"-cd", "-dio"}


def same_id(name: str) -> str:
    """The id that the router derives from a section's name: the last part of a tag, upper-case."""
    head, colon, tag = name.rpartition(":")
    last = re.search(r"[-.]([A-Za-z0-9_]+)$", tag)
    return f"{head}:{(last[1] if last else tag).upper()}" if colon else name
