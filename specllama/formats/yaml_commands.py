"""Servers in YAML: llama-swap's `cmd`, the `command`, `args` and `entrypoint` of compose and
Kubernetes, each word with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from specllama.errors import UsageError
from specllama.formats import command_lines
from specllama.formats.found import BLOCK, FLOW, LLAMA, SHELL, Command, Scalar, Variable
from specllama.formats.words import Word, split

_LINE = ("cmd",)  # of llama-swap: a command line, whatever its line ends
_LISTS = ("entrypoint", "command", "args")  # in the order in which they are joined
_SERVER = re.compile(r"(^|[\s/\\])(llama-server|vllm|sglang)\b")
_MOST_NODES = 100_000


def read(text: str) -> Iterator[Command]:
    """Raises UsageError for what is no YAML."""
    try:
        roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        why = getattr(e, "problem", None) or "it cannot be read"
        raise UsageError(f"{where}it is no YAML ({why})") from None
    macros = frozenset(name for root in roots for name in _macros(root))
    for root in roots:
        yield from _walk(text, root, "", macros, set())


def items(text: str, start: int, end: int) -> list[Word]:
    """The words of a JSON list in text[start:end]. Raises UsageError when it is none."""
    source = re.sub(r"\\[ \t]*\n", lambda m: " " * (len(m[0]) - 1) + "\n", text[start:end])
    try:
        node = yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode):
        line = text.count("\n", 0, start) + 1
        raise UsageError(f"line {line}: {source.strip()[:60]} is no list of words")
    words = _words(node)
    return [replace(w, start=w.start + start, end=w.end + start) for w in words]


def _macros(root: yaml.Node | None) -> Iterator[str]:
    """llama-swap's macros that start a server."""
    for key, child in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "macros" and isinstance(child, yaml.MappingNode):
            yield from (
                k.value
                for k, v in child.value
                if isinstance(k, yaml.ScalarNode)
                and isinstance(v, yaml.ScalarNode)
                and _SERVER.search(v.value)
            )


def _walk(
    text: str, node: yaml.Node | None, where: str, macros: frozenset[str], seen: set[int]
) -> Iterator[Command]:
    """`seen`: nodes that were looked at: an anchor may hold itself."""
    if id(node) in seen or len(seen) > _MOST_NODES:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _walk(text, child, where, macros, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    keys = {k.value: v for k, v in node.value if isinstance(k, yaml.ScalarNode)}
    yield from _of_mapping(text, keys, where, macros)
    for key, child in keys.items():
        if key not in (*_LINE, *_LISTS):
            yield from _walk(text, child, key if isinstance(key, str) else where, macros, seen)


def _of_mapping(
    text: str, keys: dict[str, yaml.Node], where: str, macros: frozenset[str]
) -> Iterator[Command]:
    variables = tuple(
        v for name in ("environment", "env") for v in _environment(text, keys.get(name))
    )
    named = keys.get("name")
    title = named.value if isinstance(named, yaml.ScalarNode) and where != "models" else where
    found: list[Command] = []
    if isinstance(cmd := keys.get("cmd"), yaml.ScalarNode):
        found += _scalar(text, cmd, lines=False, macros=macros)
    found += _listed(text, keys, variables)
    for name, child in keys.items():  # macros of llama-swap
        if where == "macros" and isinstance(child, yaml.ScalarNode) and _SERVER.search(child.value):
            for c in _scalar(text, child, lines=False):
                found.append(replace(c, where=f"macro {name}", partial=True))
    for c in found:
        yield replace(c, variables=(*variables, *c.variables), where=c.where or title)


def _listed(
    text: str, keys: dict[str, yaml.Node], variables: tuple[Variable, ...]
) -> Iterator[Command]:
    """The server that image, entrypoint, command and args make together; variables may be all
    that it is given."""
    given = keys.get("image")
    kind, build = (
        command_lines.image(given.value) if isinstance(given, yaml.ScalarNode) else ("", None)
    )
    words: list[Word] = []
    styles: list[str] = []
    begin = 0
    for name in _LISTS:
        node = keys.get(name)
        if isinstance(node, yaml.SequenceNode):
            words += _words(node)
            styles += [FLOW if node.flow_style else BLOCK] * len(node.value)
            begin = begin or node.start_mark.index
        elif isinstance(node, yaml.ScalarNode):
            yield from _scalar(text, node, lines=True, kind=kind, build=build)
            return
    found = command_lines.server(words)
    if found is not None:
        rest = styles[len(words) - len(found.words) :]
        yield replace(found, styles=tuple(rest), build=build, begin=begin)
    elif kind and words and words[0].text.startswith("-"):
        yield Command(kind, tuple(words), tuple(styles), begin, build=build)
    elif kind and not words and given is not None and variables:
        yield Command(kind, (), (), given.start_mark.index, build=build)
    for word in words:  # sh -c "…"
        inside = text[word.start + 1 : word.end - 1]
        if found is None and inside == word.text and _SERVER.search(inside):
            yield from command_lines.shell(text, word.start + 1, word.end - 1)


def _words(node: yaml.SequenceNode) -> list[Word]:
    return [
        Word(
            str(item.value),
            item.start_mark.index,
            item.end_mark.index,
            isinstance(item, yaml.ScalarNode) and not re.search(r"\$[({]", item.value),
        )
        for item in node.value
    ]


def _scalar(
    text: str,
    node: yaml.ScalarNode,
    *,
    lines: bool,
    kind: str = "",
    build: int | None = None,
    macros: frozenset[str] = frozenset(),
) -> Iterator[Command]:
    """A command line in one YAML text, with places in the file where they can be told."""
    start, end = node.start_mark.index, node.end_mark.index
    value = str(node.value)
    if node.style in ("|", ">"):
        start = text.find("\n", start, end) + 1 or start
    elif node.style:
        start, end = start + 1, end - 1
    lines = lines and node.style == "|"
    direct = _texts(text, start, end, lines) == _texts(value, 0, len(value), lines)
    source = text if direct else value
    span = (start, end) if direct else (0, len(value))
    scalar = Scalar(value, node.start_mark.index, node.end_mark.index)
    if direct:
        scalar = replace(scalar, value=text[start:end], inner=start)
    blocked = node.style in ("|", ">")  # nothing ends one but its indentation
    found = list(command_lines.shell(source, *span, lines=lines))
    words = [w for line in split(source, *span, lines=lines) for w in line]
    if not found and kind and words and words[0].text.startswith("-"):
        found = [Command(kind, tuple(words), (SHELL,) * len(words), span[0])]
    elif not found and words and words[0].text[2:-1] in macros:
        rest = tuple(words[1:])
        styles = (SHELL,) * len(rest)
        found = [Command(LLAMA, rest, styles, words[0].end, partial=True)]
    for c in found:
        own = c.variables if direct else tuple(Variable(v.name, v.value) for v in c.variables)
        yield replace(
            c, scalar=None if blocked and direct else scalar, build=c.build or build, variables=own
        )


def _texts(text: str, start: int, end: int, lines: bool) -> list[list[str]] | None:
    try:
        return [[w.text for w in line] for line in split(text, start, end, lines=lines)]
    except UsageError:
        return None


def _environment(text: str, node: yaml.Node | None) -> Iterator[Variable]:
    """NAME: value, "NAME=value", and Kubernetes's {name: NAME, value: value}."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                yield _variable(text, key, key.value, value.value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                name, _, value = item.value.partition("=")
                yield _variable(text, item, name, value)
            elif isinstance(item, yaml.MappingNode):
                keys = {k.value: v for k, v in item.value if isinstance(k, yaml.ScalarNode)}
                name_node, value_node = keys.get("name"), keys.get("value")
                if isinstance(name_node, yaml.ScalarNode) and value_node is not None:
                    yield _variable(text, name_node, name_node.value, str(value_node.value))


def _variable(text: str, node: yaml.Node, name: str, value: str) -> Variable:
    start = text.find(name, node.start_mark.index)
    return Variable(name, value, start, start + len(name), "${" not in value)
