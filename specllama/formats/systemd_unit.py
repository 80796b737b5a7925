"""The servers that a systemd unit starts, with variables set or read from files
(systemd.service(5), systemd.exec(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specllama.formats import env_files
from specllama.formats.found_command import EnvVariable, FoundCommand
from specllama.formats.shell_commands import assignments, nested, quoted_assignment, server
from specllama.formats.shell_variables import ShellValue, expanded
from specllama.formats.shell_words import Word, WordOrigin, split_words

# A backslash continues a line; comments may come between.
_SETTING = re.compile(
    r"^[ \t]*(Environment|EnvironmentFile|ExecStart)[ \t]*=[ \t]*"
    r"((?:[^\n]*\\[ \t]*\r?\n(?:[ \t]*[#;][^\n]*\n)*)*[^\n]*)",
    re.M,
)


def read(text: str, files: env_files.Files) -> Iterator[FoundCommand]:
    """Lines in any order; one without a value resets those before it."""
    # ; in the first column begins a comment, also between continued lines
    source = re.sub(r"(?m)^[ \t]*;[^\n]*", lambda m: "#" + " " * (len(m[0]) - 1), text)
    given: dict[str, list[list[Word]]] = {}
    for m in _SETTING.finditer(source):
        lines = given.setdefault(m[1], [])
        if not m[2].strip():
            lines.clear()
        lines += split_words(source, m.start(2), m.end(2), lines=False, plain=True)
    variables = [
        v for line in given.get("Environment", ()) for w in line for v in quoted_assignment(text, w)
    ]
    known = {v.name: _value(text, v) for v in variables}
    missing: list[str] = []
    for name in (w.text.lstrip("-") for line in given.get("EnvironmentFile", ()) for w in line[:1]):
        found = env_files.variables(name, files)  # it overrides Environment=
        missing += [f"EnvironmentFile={name}"] if found is None else []
        variables += found or ()
        known.update({v.name: _unplaced(v) for v in found or ()})
    # of several assignments of one name the last one counts
    effective = tuple({(v.name, v.source): v for v in variables}.values())
    for line in given.get("ExecStart", ()):
        yield from _started(text, line, known, effective, tuple(dict.fromkeys(missing)))


def _started(
    text: str,
    line: Sequence[Word],
    known: Mapping[str, ShellValue],
    variables: tuple[EnvVariable, ...],
    missing: tuple[str, ...],
) -> Iterator[FoundCommand]:
    # ${NAME} is always one argument, $NAME is split at spaces
    words = expanded([replace(w, quoted=w.text.startswith("${")) for w in line], known)
    found = server(words)
    if found is not None:
        own = tuple(assignments(words))
        # the same tuple for all, so that it is checked once (lint.py)
        variables = (*variables, *own) if own else variables
        yield replace(found, variables=variables, site=line[0].start, missing=missing)
        return
    for c in nested(text, line):
        yield replace(c, variables=(*variables, *c.variables), missing=missing)


def _value(text: str, variable: EnvVariable) -> ShellValue:
    """Its words, with their positions if it is written without escapes."""
    start = variable.end + 1
    start += text[start : start + 1] in ("'", '"')
    end = start + len(variable.value)
    if not variable.fixed or text[start:end] != variable.value:
        return _unplaced(variable)
    origin = WordOrigin(variable.name, text=True)
    words = [w for line in split_words(text, start, end, plain=True) for w in line]
    return ShellValue(tuple(replace(w, origin=origin) for w in words), variable.value)


def _unplaced(variable: EnvVariable) -> ShellValue:
    name = f"{variable.name} of {variable.source}" if variable.source else variable.name
    origin = WordOrigin(name, text=True)
    words = (Word(w, -1, -1, variable.fixed, origin=origin) for w in variable.value.split())
    return ShellValue(tuple(words), variable.value if variable.fixed else None)
