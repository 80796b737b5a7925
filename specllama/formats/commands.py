"""Finds the servers that a text starts: a shell script or one command, YAML (llama-swap, compose,
Kubernetes), a preset INI, a systemd unit, a launchd property list, a Dockerfile. Runs nothing."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from specllama.formats import (
    dockerfile,
    env_files,
    preset_file,
    property_list,
    systemd_unit,
    yaml_commands,
)
from specllama.formats.found_command import LLAMA, SHELL, FoundCommand
from specllama.formats.shell_commands import shell
from specllama.formats.shell_words import split_words

SCRIPT, WINDOWS, YAML, PRESET = "script", "windows", "yaml", "preset"
UNIT, DOCKERFILE, PLIST = "unit", "dockerfile", "property list"


def kind_of(name: str, text: str) -> str:
    """The kind of a file, by its name, otherwise by its content."""
    path = Path(name.lower())
    if path.suffix in (".yaml", ".yml"):
        return YAML
    if path.suffix in (".ps1", ".bat", ".cmd"):
        return WINDOWS
    if path.suffix == ".service":
        return UNIT
    if path.suffix == ".plist" or re.match(r"\s*<(\?xml|!DOCTYPE plist|plist)", text):
        return PLIST
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


def read(
    text: str, kind: str = SCRIPT, files: env_files.Files = env_files.no_files
) -> tuple[FoundCommand, ...]:
    """Every server that the text starts, in order. `files`: reads environment files. Raises
    UsageError for a text that cannot be parsed."""
    readers: dict[str, Callable[[str], Iterator[FoundCommand]]] = {
        SCRIPT: shell,
        WINDOWS: _windows,
        YAML: partial(yaml_commands.read, files=files),
        PRESET: preset_file.read,
        UNIT: partial(systemd_unit.read, files=files),
        DOCKERFILE: dockerfile.read,
        PLIST: property_list.read,
    }
    found = readers[kind](text)
    line_ends = [m.start() for m in re.finditer("\n", text)]
    return tuple(replace(c, line=bisect_left(line_ends, _position(c)) + 1) for c in found)


def _position(command: FoundCommand) -> int:
    scalar = command.scalar
    if scalar is not None and scalar.inner is None:
        return scalar.start
    return command.place[0]


def _windows(text: str) -> Iterator[FoundCommand]:
    """PowerShell and batch files: ` and ^ continue lines, \\ is part of paths. Parsed as shell text
    of the same length, so that positions stay."""
    same = re.sub(r"(?im)^[ \t]*(?:::|rem\b)[^\n]*", lambda m: " " * len(m[0]), text)
    yield from shell(re.sub(r"[`^](?=\r?\n)", r"\\", same.replace("\\", "/")))


def bare(text: str) -> tuple[FoundCommand, ...]:
    """llama-server's arguments without the program."""
    words = next(iter(split_words(text, lines=False)), [])
    if not words or not words[0].text.startswith("-"):
        return ()
    return (FoundCommand(LLAMA, tuple(words), (SHELL,) * len(words), 0),)
