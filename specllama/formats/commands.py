"""The servers that a text starts: a shell script or one command, YAML (llama-swap, compose,
Kubernetes), a preset INI, a systemd unit, a Dockerfile. Read only; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from specllama.formats import preset_file, yaml_commands
from specllama.formats.command_lines import ASSIGNMENT, image, server, shell
from specllama.formats.found import FLOW, LLAMA, SHELL, Command, Variable
from specllama.formats.words import Word, split

SCRIPT, WINDOWS, YAML, PRESET = "script", "windows", "yaml", "preset"
UNIT, DOCKERFILE = "unit", "dockerfile"


def kind_of(name: str, text: str) -> str:
    """What a file is, by its name, else by how it begins."""
    path = Path(name.lower())
    if path.suffix in (".yaml", ".yml"):
        return YAML
    if path.suffix in (".ps1", ".bat", ".cmd"):
        return WINDOWS
    if path.suffix == ".service":
        return UNIT
    if path.stem in ("dockerfile", "containerfile") or path.suffix in (".dockerfile",):
        return DOCKERFILE
    if path.suffix in (".ini", ".conf", ".cfg"):
        return UNIT if re.search(r"^ExecStart\s*=", text, re.M) else PRESET
    if text.startswith("#!"):
        return SCRIPT
    if re.search(r"^(services|models):\s*$", text, re.M):
        return YAML
    if re.search(r"^\[[^\]\s]+\][ \t]*$", text, re.M) and re.search(r"^[\w.-]+[ \t]*=", text, re.M):
        return UNIT if re.search(r"^ExecStart\s*=", text, re.M) else PRESET
    return SCRIPT


def read(text: str, kind: str = SCRIPT) -> tuple[Command, ...]:
    """Every server that the text starts, in order. Raises UsageError for what cannot be read."""
    readers = {
        SCRIPT: _script,
        WINDOWS: _windows,
        YAML: _yaml,
        PRESET: preset_file.read,
        UNIT: _unit,
        DOCKERFILE: _dockerfile,
    }
    found = readers[kind](text)
    return tuple(replace(c, line=_line(text, c)) for c in found)


def _line(text: str, command: Command) -> int:
    scalar = command.scalar
    at = scalar.start if scalar is not None and scalar.inner is None else command.place[0]
    return text.count("\n", 0, at) + 1


def _script(text: str) -> Iterator[Command]:
    yield from shell(text)


def _windows(text: str) -> Iterator[Command]:
    """PowerShell and batch files: ` and ^ continue lines, \\ is part of paths. Read as shell text
    of the same length, so that places stay."""
    same = re.sub(r"(?im)^[ \t]*(?:::|rem\b)[^\n]*", lambda m: " " * len(m[0]), text)
    yield from shell(re.sub(r"[`^](?=\r?\n)", r"\\", same.replace("\\", "/")))


def bare(text: str) -> tuple[Command, ...]:
    """Arguments alone, without the program: llama-server's."""
    words = next(iter(split(text, lines=False)), [])
    if not words or not words[0].text.startswith("-"):
        return ()
    return (Command(LLAMA, tuple(words), (SHELL,) * len(words), 0),)


def _yaml(text: str) -> Iterator[Command]:
    yield from yaml_commands.read(text)


def _unit(text: str) -> Iterator[Command]:
    variables: list[Variable] = []
    found: list[Command] = []
    for m in re.finditer(
        r"^(Environment|ExecStart)[ \t]*=[ \t]*((?:[^\n]*\\\n)*[^\n]*)", text, re.M
    ):
        for words in split(text, m.start(2), m.end(2), lines=False):
            if m[1] == "ExecStart":
                found += filter(None, [server(words)])
            else:
                variables += (v for w in words for v in _quoted_assignment(text, w))
    yield from (replace(c, variables=tuple(variables)) for c in found)


def _quoted_assignment(text: str, word: Word) -> Iterator[Variable]:
    """Environment="NAME=value": the name begins behind the quote."""
    m = ASSIGNMENT.match(word.text)
    start = text.find(m[1], word.start, word.end) if m else -1
    if m and start >= 0:  # a name that is written with escapes is not found
        yield Variable(m[1], word.text[m.end() :], start, start + len(m[1]), word.fixed)


def _dockerfile(text: str) -> Iterator[Command]:
    kind, build = "", None
    variables: list[Variable] = []
    words: list[Word] = []
    styles: list[str] = []
    begin = 0
    for m in re.finditer(
        r"^[ \t]*(FROM|ENV|ENTRYPOINT|CMD)[ \t]+((?:[^\n]*\\[ \t]*\n)*[^\n]*)", text, re.M | re.I
    ):
        word, start, end = m[1].upper(), m.start(2), m.end(2)
        if word == "FROM":
            named = (w for w in m[2].split() if not w.startswith("--"))  # --platform=…
            kind, build = image(next(named, ""))
            variables, words, styles = [], [], []
            continue
        if word == "ENV":
            for line in split(text, start, end, lines=False):
                variables += (v for w in line for v in _quoted_assignment(text, w))
                if not ASSIGNMENT.match(line[0].text) and len(line) > 1:  # ENV NAME value
                    a, b = line[0], line[1]
                    variables.append(Variable(a.text, b.text, a.start, a.end, b.fixed))
            continue
        begin = begin or start
        listed = m[2].lstrip().startswith("[")
        parts = (
            yaml_commands.items(text, start, end)
            if listed
            else [w for line in split(text, start, end, lines=False) for w in line]
        )
        if word == "ENTRYPOINT":
            words, styles = [], []
        words += parts
        styles += [FLOW if listed else SHELL] * len(parts)
    found = server(words)
    if found is not None:
        at = len(words) - len(found.words)
        yield replace(found, styles=tuple(styles[at:]), variables=tuple(variables), build=build)
    elif kind and words:
        yield Command(
            kind, tuple(words), tuple(styles), begin, variables=tuple(variables), build=build
        )
