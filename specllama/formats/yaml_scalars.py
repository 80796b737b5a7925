"""Command lines in a YAML scalar or list of words, with their positions in the file where
possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from specllama.errors import UsageError
from specllama.formats import shell_commands
from specllama.formats.found_command import SHELL, EnvVariable, FoundCommand, YamlScalar
from specllama.formats.shell_variables import Bindings
from specllama.formats.shell_words import Word, split_words

_MERGE = "tag:yaml.org,2002:merge"
Pair = tuple[yaml.ScalarNode, yaml.Node]


def pairs(node: yaml.Node | None, merged_before: set[int] | None = None) -> dict[str, Pair]:
    """A mapping's keys and values by the keys' text, with those of `<<: *anchor` that it does not set
    itself. `merged_before`: mappings that were merged already: one may contain itself."""
    visited = set() if merged_before is None else merged_before
    if not isinstance(node, yaml.MappingNode) or id(node) in visited:
        return {}
    visited.add(id(node))
    merged: dict[str, Pair] = {}
    own: dict[str, Pair] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = {**pairs(source, visited), **merged}
        else:
            own[key.value] = (key, value)
    return {**merged, **own}


def keys(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {name: value for name, (_, value) in pairs(node).items()}


def items(text: str, start: int, end: int) -> list[Word]:
    """The words of a JSON list in text[start:end]. Raises UsageError if it is not a list."""
    source = re.sub(r"\\[ \t]*\n", lambda m: " " * (len(m[0]) - 1) + "\n", text[start:end])
    try:
        node = yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode):
        line = text.count("\n", 0, start) + 1
        raise UsageError(f"line {line}: {source.strip()[:60]} is not a list of strings")
    found = sequence_words(node)
    return [replace(w, start=w.start + start, end=w.end + start) for w in found]


def sequence_words(node: yaml.SequenceNode) -> list[Word]:
    """The words of a list."""
    return [
        Word(
            str(item.value),
            item.start_mark.index,
            item.end_mark.index,
            isinstance(item, yaml.ScalarNode) and not re.search(r"\$[({]", item.value),
        )
        for item in node.value
    ]


def scalar_words(text: str, node: yaml.ScalarNode) -> list[Word] | None:
    """The words of a scalar that no shell reads; None if escapes shift their positions."""
    start, end = _span(text, node)
    value = str(node.value)
    if _texts(text, start, end, plain=True) != _texts(value, 0, len(value), plain=True):
        return None
    try:
        return [w for line in split_words(text, start, end, plain=True) for w in line]
    except UsageError:
        return None


def commands(
    text: str,
    node: yaml.ScalarNode,
    *,
    plain: bool,
    kind: str = "",
    build: int | None = None,
    known: Bindings | None = None,
    in_brackets: bool = False,
) -> Iterator[FoundCommand]:
    """The servers of a command line (`plain`) or a script. `kind`: the program of the image, so that
    arguments are enough; `known`: values of ${name}; `in_brackets`: an item of [a, b], which a
    comma ends unless it is quoted."""
    start, end = _span(text, node)
    value = str(node.value)
    lines = node.style != ">"  # YAML has joined its lines
    direct = _same(
        _texts(text, start, end, plain, lines), _texts(value, 0, len(value), plain)
    ) and not (in_brackets and node.style is None)
    source = text if direct else value
    span = (start, end) if direct else (0, len(value))
    blocked = node.style in ("|", ">")  # only the indentation ends one
    begin, close = node.start_mark.index, node.end_mark.index
    if blocked:  # the line end belongs to what follows
        close = begin + len(text[begin:close].rstrip())
    scalar = YamlScalar(value, begin, close)
    if direct:
        scalar = replace(scalar, value=text[start:end], inner=start)
    lines = lines or not direct
    found = list(shell_commands.shell(source, *span, lines=lines, plain=plain, known=known))
    given = [w for line in split_words(source, *span, lines=lines, plain=plain) for w in line]
    if not found and kind and given and given[0].text.startswith("-"):
        found = [FoundCommand(kind, tuple(given), (SHELL,) * len(given), span[0])]
    for c in found:
        if not direct:
            c = _unplaced(c, node.start_mark.index)
        whole = None if blocked and direct else scalar
        yield replace(c, scalar=whole, build=c.build or build)


def _unplaced(command: FoundCommand, at: int) -> FoundCommand:
    """Variables have no position in the file then; `at`: of the scalar, for the command."""
    variables = tuple(EnvVariable(v.name, v.value) for v in command.variables)
    return replace(command, variables=variables, site=at + 1 + max(command.site, 0))


def _span(text: str, node: yaml.ScalarNode) -> tuple[int, int]:
    """The position of the text, without its quotes."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.style in ("|", ">"):
        return text.find("\n", start, end) + 1 or start, end
    return (start + 1, end - 1) if node.style else (start, end)


def _texts(
    text: str, start: int, end: int, plain: bool, lines: bool = True
) -> list[list[str]] | None:
    try:
        found = split_words(text, start, end, lines=lines, plain=plain)
    except UsageError:
        return None
    return [[w.text for w in line] for line in found]


def _same(written: list[list[str]] | None, value: list[list[str]] | None) -> bool:
    """Whether the words are equal, apart from the indentation that YAML removes inside a quoted
    word of several lines."""
    if written is None or value is None:
        return written is value

    def unindented(word: str) -> str:
        return "\n".join(" ".join(line.split()) for line in word.split("\n"))

    first, second = ([[unindented(w) for w in words] for words in x] for x in (written, value))
    return first == second
