"""Environment files of a server: systemd's EnvironmentFile=, compose's env_file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from specllama.formats.found_command import EnvVariable

# The text of a file, relative to the one that names it; None if it is missing.
Files = Callable[[str], str | None]

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[ \t]*(.*?)[ \t\r]*$", re.M)


def no_files(name: str) -> str | None:
    """Every file is missing."""
    return None


def variables(name: str, files: Files) -> tuple[EnvVariable, ...] | None:
    """The variables of a file; None if it is missing."""
    text = files(name)
    return None if text is None else tuple(_read(text, name))


def _read(text: str, source: str) -> Iterator[EnvVariable]:
    """NAME=value, the value in quotes or not; nothing is expanded."""
    for m in _LINE.finditer(text):
        value = m[2]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        yield EnvVariable(m[1], value, source=source)
