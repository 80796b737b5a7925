"""Servers in shell text: which words start one, with which variables, in which image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from specllama.formats import known_builds
from specllama.formats.found_command import (
    ESCAPED,
    LLAMA,
    SGLANG,
    SHELL,
    TEXT,
    VLLM,
    EnvVariable,
    FoundCommand,
)
from specllama.formats.shell_branches import Paths, walk
from specllama.formats.shell_variables import Bindings, expanded
from specllama.formats.shell_words import SimpleCommand, Word, simples

_LLAMA_IMAGE = re.compile(r"(?:^|/)llama\.cpp:(?:server|full)[\w.-]*$")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai(?::|$|@)")
_SGLANG_IMAGE = re.compile(r"lmsysorg/sglang(?::|$|@)")
# Words before a program, and programs that mention one without starting it.
_PREFIXES = set(
    "env exec nohup sudo time then do else ! { if while until setsid & call start".split()
)
_NO_STARTERS = set(
    "cp mv ln rm ls cat which type command whereis echo printf grep pgrep pkill killall kill test [ [[ "
    "chmod chown install cmake make ninja git apt apt-get dnf brew pip curl wget tar strip file ldd "
    "systemctl journalctl cd alias function case".split()
)
_EMBEDDED = "specllama.engine.embedded"  # python -m …, as `specllama plan` writes it
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")


def shell(
    text: str,
    start: int = 0,
    end: int | None = None,
    *,
    lines: bool = True,
    plain: bool = False,
    known: Bindings | None = None,
) -> Iterator[FoundCommand]:
    """The servers in text[start:end], which is shell text (`plain`: a command line that no shell
    reads), in order; one whose variables depend on branches is yielded once for each path.
    `known`: variables set before."""
    commands = simples(text, start, end, lines=lines, plain=plain)
    for simple, paths in walk(text, commands, known or {}):
        found = list(dict.fromkeys(_started(simple, paths)))
        if not found:
            found = list(dict.fromkeys(nested(text, simple.words, paths)))
        yield from found


def _started(simple: SimpleCommand, paths: Paths) -> Iterator[FoundCommand]:
    for known in paths:
        found = server(expanded(simple.words, known))
        if found is not None:
            variables = (*_set(known), *assignments(simple.words))
            files = tuple(_files(simple.words))
            yield replace(found, variables=variables, site=simple.words[0].start, missing=files)


def _files(words: Sequence[Word]) -> Iterator[str]:
    """docker's environment files."""
    for before, word in pairwise(words):
        if before.text == "--env-file":
            yield f"--env-file {word.text}"


def _set(known: Bindings) -> Iterator[EnvVariable]:
    """Variables set before the server, as its environment; export is not required: it was
    intended."""
    for name, value in known.items():
        if value.start >= 0 and name.startswith("LLAMA_ARG_"):
            at = value.start
            yield EnvVariable(name, value.text or "", at, at + len(name), value.text is not None)


def server(words: Sequence[Word]) -> FoundCommand | None:
    """The server that these words start."""
    first = _first(words)
    if _starts_nothing(words):
        return None
    for i, word in enumerate(words):
        program, at, build = _program(words, i, word.text)
        argument = words[at] if at < len(words) else None
        if (
            program
            and not ASSIGNMENT.match(word.text)
            and (
                i == first
                or argument is None
                or not argument.fixed
                or argument.text.startswith("-")
            )
        ):
            rest = tuple(words[at:])
            begin = words[at - 1].end
            return FoundCommand(program, rest, tuple(styles(rest)), begin, build=build)
    return None


def styles(words: Sequence[Word]) -> list[str]:
    """How words of a command line are written, by where."""
    return [TEXT if w.origin is not None and w.origin.text else SHELL for w in words]


def _first(words: Sequence[Word]) -> int:
    """The index of the program's word."""
    return next((i for i, w in enumerate(words) if not _before(w.text)), len(words))


def _starts_nothing(words: Sequence[Word]) -> bool:
    return any(_name(w.text) in _NO_STARTERS for w in words[_first(words) :][:1])


def _before(text: str) -> bool:
    """Words that may come before a program."""
    return bool(ASSIGNMENT.match(text)) or text in _PREFIXES or _name(text) == "env"


def _name(text: str) -> str:
    return re.split(r"[/\\]", text)[-1].lower().removesuffix(".exe")


def image(name: str) -> tuple[str, int | None]:
    """(the program of a container image, its build); "" for an unknown image."""
    if _LLAMA_IMAGE.search(name):
        return LLAMA, known_builds.of_image(name)
    if _VLLM_IMAGE.search(name):
        return VLLM, None
    return (SGLANG, None) if _SGLANG_IMAGE.search(name) else ("", None)


def _program(words: Sequence[Word], i: int, text: str) -> tuple[str, int, int | None]:
    """(program, index of its first argument, build) of what the word `i` names."""
    name = _name(text)
    after = words[i + 1].text if i + 1 < len(words) else ""
    if name == "llama-server" or (name == "llama" and after == "serve"):
        return LLAMA, i + 1 + (name == "llama"), None
    if name in ("vllm", "sglang") and after == "serve":
        return (VLLM if name == "vllm" else SGLANG), i + 2, None
    if text == _EMBEDDED:
        return LLAMA, i + 1, None
    if text.startswith("vllm.entrypoints."):
        return VLLM, i + 1, None
    if text == "sglang.launch_server":
        return SGLANG, i + 1, None
    kind, build = image(text)
    # an image after docker's own options; `full` images take the tool's name first
    skip = after in ("--server", "-s") and ":full" in text
    return (kind, i + 1 + skip, build) if kind and i else ("", 0, None)


def assignments(words: Sequence[Word]) -> Iterator[EnvVariable]:
    """NAME=value before a program, after `export` and `env`, and after docker's -e."""
    leading = True
    for i, word in enumerate(words):
        before = words[i - 1].text if i else ""
        leading = leading and bool(
            not before
            or ASSIGNMENT.match(before)
            or before in ("export", "exec", "sudo")
            or _name(before) == "env"
        )
        docker = before in ("-e", "--env")
        if (m := ASSIGNMENT.match(word.text)) and (leading or docker):
            name = m[1]
            yield EnvVariable(
                name, word.text[m.end() :], word.start, word.start + len(name), word.fixed
            )


def quoted_assignment(text: str, word: Word) -> Iterator[EnvVariable]:
    """ "NAME=value": the name begins after the quote."""
    m = ASSIGNMENT.match(word.text)
    start = text.find(m[1], word.start, word.end) if m else -1
    if m and start >= 0:  # a name that is written with escapes is not found
        yield EnvVariable(m[1], word.text[m.end() :], start, start + len(m[1]), word.fixed)


def nested(text: str, words: Sequence[Word], paths: Paths = ({},)) -> Iterator[FoundCommand]:
    """Servers in a quoted word of a command: sh -c '…'."""
    own = tuple(assignments(words))
    for word in () if _starts_nothing(words) else words:
        for c in _in_quotes(text, word):
            for known in paths:
                yield replace(c, variables=(*_set(known), *own, *c.variables))


def _in_quotes(text: str, word: Word) -> Iterator[FoundCommand]:
    if not re.search(r"(llama-server|vllm|sglang|specllama\.engine)\S*\s", word.text):
        return
    inside = text[word.start + 1 : word.end - 1]
    if word.text in (inside, inside.replace("\\\n", "")):  # double quotes join continued lines
        yield from shell(text, word.start + 1, word.end - 1)
    elif word.text == re.sub(r'\\(["\\$`])', r"\1", inside) and word.quoted:
        for c in shell(word.text):
            if c.words:
                yield _escaped(c, word.start)


def _escaped(command: FoundCommand, at: int) -> FoundCommand:
    """A command written with escaped quotes, at `at`: its words have no place in the file."""
    words = tuple(replace(w, start=-1, end=-1, origin=ESCAPED) for w in command.words)
    variables = tuple(EnvVariable(v.name, v.value) for v in command.variables)
    return replace(command, words=words, variables=variables, begin=at, site=at)
