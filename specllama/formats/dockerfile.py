"""The server that a Dockerfile's image starts: ENTRYPOINT and CMD, with ENV and ARG."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace

from specllama.formats.found_command import FLOW, EnvVariable, FoundCommand
from specllama.formats.shell_commands import (
    ASSIGNMENT,
    image,
    nested,
    quoted_assignment,
    server,
    styles,
)
from specllama.formats.shell_variables import UNKNOWN, Bindings, ShellValue, assigned, expanded
from specllama.formats.shell_words import SimpleCommand, Word, split_words
from specllama.formats.yaml_scalars import items

_INSTRUCTION = re.compile(
    r"^[ \t]*(FROM|ARG|ENV|ENTRYPOINT|CMD)[ \t]+"
    r"((?:[^\n]*\\[ \t]*\r?\n(?:[ \t]*#[^\n]*\n)*)*[^\n]*)",
    re.M | re.I,
)


def read(text: str) -> Iterator[FoundCommand]:
    """The server of the last stage. ARG is known only while building, ENV to the server too."""
    kind, build = "", None
    args: dict[str, ShellValue] = {}
    env: dict[str, ShellValue] = {}
    known = ChainMap(env, args)
    variables: list[EnvVariable] = []
    words: list[Word] = []
    written: list[str] = []
    begin = 0
    for m in _INSTRUCTION.finditer(text):
        word, start, end = m[1].upper(), m.start(2), m.end(2)
        if word in ("FROM", "ARG", "ENV"):
            line = [
                w for part in split_words(text, start, end, lines=False, plain=True) for w in part
            ]
        if word == "FROM":
            named = (w.text for w in expanded(line, args) if not w.text.startswith("--"))
            kind, build = image(next(named, ""))
            variables, words, written = [], [], []
            env.clear()
        elif word == "ARG":
            args.update({w.text: UNKNOWN for w in line if "=" not in w.text})
            args.update(assigned(text, SimpleCommand(line), args))
        elif word == "ENV":
            old = not ASSIGNMENT.match(line[0].text) if line else False
            variables += _old_way(line) if old else _set(text, line, known)
            env.update(() if old else list(assigned(text, SimpleCommand(line), known)))
        else:
            begin = begin or start
            if word == "ENTRYPOINT":
                words, written = [], []
            if m[2].lstrip().startswith("["):
                given = items(text, start, end)
                written += [FLOW] * len(given)
            else:  # a shell reads it
                parts = split_words(text, start, end, lines=False)
                given = expanded([w for part in parts for w in part], env)
                written += styles(given)
            words += given
    found = server(words)
    if found is not None:
        own = tuple(written[len(words) - len(found.words) :])
        yield replace(found, styles=own, variables=tuple(variables), build=build)
    elif scripts := tuple(nested(text, words)):
        for c in scripts:
            yield replace(c, variables=(*variables, *c.variables), build=c.build or build)
    elif kind and words:
        yield FoundCommand(
            kind, tuple(words), tuple(written), begin, variables=tuple(variables), build=build
        )


def _set(text: str, line: list[Word], known: Bindings) -> Iterator[EnvVariable]:
    for word in expanded(line, known):
        yield from quoted_assignment(text, word)


def _old_way(line: list[Word]) -> Iterator[EnvVariable]:
    """ENV NAME value."""
    if len(line) > 1:
        name, value = line[0], line[1]
        yield EnvVariable(name.text, value.text, name.start, name.end, value.fixed)
