"""Servers in YAML: llama-swap's `cmd`, the `command`, `args` and `entrypoint` of compose and
Kubernetes, each word with its position in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import yaml

from specllama.errors import UsageError
from specllama.formats import env_files, shell_commands, swap_macros
from specllama.formats.found_command import BLOCK, FLOW, EnvVariable, FoundCommand
from specllama.formats.shell_variables import Bindings, ShellValue
from specllama.formats.shell_words import Word
from specllama.formats.yaml_scalars import commands, keys, pairs, scalar_words, sequence_words

_LINE = ("cmd",)  # llama-swap's command line; line ends count as spaces
_LISTS = ("entrypoint", "command", "args")  # in the order in which they are joined
_SERVER = re.compile(r"(^|[\s/\\])(llama-server|vllm|sglang)\b")
_SCRIPT = re.compile(r"-[A-Za-z]*c[A-Za-z]*")  # sh -c: a script follows
_MAX_NODES = 100_000


@dataclass(frozen=True)
class _File:
    """What is the same for every node of a file. `macros`: llama-swap's for all models; `used`:
    names in ${…}."""

    text: str
    files: env_files.Files
    macros: Bindings
    used: frozenset[str]
    visited: set[int]  # nodes that were read: an anchor may hold itself
    scripts: set[int] = field(default_factory=set)  # items of lists that were read as scripts


def read(text: str, files: env_files.Files) -> Iterator[FoundCommand]:
    """Raises UsageError for invalid YAML."""
    try:
        roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        why = getattr(e, "problem", None) or "could not be read"
        raise UsageError(f"{where}invalid YAML ({why})") from None
    known: Bindings = {}
    for root in roots:
        known = swap_macros.macros(keys(root).get("macros"), known, lambda n: scalar_words(text, n))
    used = frozenset(re.findall(r"\$\{([^{}]*)\}", text))
    file = _File(text, files, known, used, set())
    for root in roots:
        yield from _walk(file, root, "")


def _walk(file: _File, node: yaml.Node | None, where: str) -> Iterator[FoundCommand]:
    if id(node) in file.visited or len(file.visited) > _MAX_NODES:
        return
    file.visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _walk(file, child, where)
    if not isinstance(node, yaml.MappingNode):
        return
    given = keys(node)
    yield from _of_mapping(file, given, where)
    for key, child in given.items():
        # an x-… extension in compose is not a service
        part = key.startswith("x-") and "services" in given
        if key not in (*_LINE, *_LISTS) and not part:
            yield from _walk(file, child, key)


def _of_mapping(file: _File, given: dict[str, yaml.Node], where: str) -> Iterator[FoundCommand]:
    set_here, missing = _variables(file, given)
    named = given.get("name")
    title = named.value if isinstance(named, yaml.ScalarNode) and where != "models" else where
    found: list[FoundCommand] = []
    if isinstance(cmd := given.get("cmd"), yaml.ScalarNode):
        known = {**file.macros, "MODEL_ID": ShellValue((Word(where, -1, -1),), where)}
        own = swap_macros.macros(given.get("macros"), known, lambda n: scalar_words(file.text, n))
        found += commands(file.text, cmd, plain=True, known=own)
    found += _listed(file, given, bool(set_here))
    for name, child in given.items() if where == "macros" else ():
        # one that is used is checked where it is used
        if (
            name not in file.used
            and isinstance(child, yaml.ScalarNode)
            and _SERVER.search(child.value)
        ):
            for c in commands(file.text, child, plain=True, known=file.macros):
                found.append(replace(c, where=f"macro {name}", partial=True))
    for c in found:
        variables = (*set_here, *c.variables)
        yield replace(c, variables=variables, where=c.where or title, missing=missing)


def _listed(file: _File, given: dict[str, yaml.Node], variables: bool) -> Iterator[FoundCommand]:
    """The server started by image, entrypoint, command and args together; it may be configured by
    variables alone."""
    named = given.get("image")
    kind, build = (
        shell_commands.image(named.value) if isinstance(named, yaml.ScalarNode) else ("", None)
    )
    parts: list[Word] = []
    nodes: list[yaml.Node] = []
    styles: list[str] = []
    begin = 0
    for name in _LISTS:
        node = given.get(name)
        if isinstance(node, yaml.SequenceNode):
            parts += sequence_words(node)
            nodes += node.value
            styles += [FLOW if node.flow_style else BLOCK] * len(node.value)
            begin = begin or node.start_mark.index
        elif isinstance(node, yaml.ScalarNode):
            script = bool(parts) and _SCRIPT.fullmatch(parts[-1].text) is not None
            yield from commands(file.text, node, plain=not script, kind=kind, build=build)
            return
    found = shell_commands.server(parts)
    if found is not None:
        rest = styles[len(parts) - len(found.words) :]
        yield replace(found, styles=tuple(rest), build=build, begin=begin)
    elif kind and parts and parts[0].text.startswith("-"):
        yield FoundCommand(kind, tuple(parts), tuple(styles), begin, build=build)
    elif kind and not parts and named is not None and variables:
        yield FoundCommand(kind, (), (), named.start_mark.index, build=build)
    if found is None:
        for node, style in zip(nodes[1:], styles[1:], strict=True):
            if id(node) not in file.scripts and _is_script(node):
                file.scripts.add(id(node))  # an anchor's items stand in many lists
                yield from commands(
                    file.text, node, plain=False, build=build, in_brackets=style == FLOW
                )


def _is_script(node: yaml.Node) -> TypeGuard[yaml.ScalarNode]:
    return isinstance(node, yaml.ScalarNode) and _SERVER.search(node.value) is not None


def _variables(
    file: _File, given: dict[str, yaml.Node]
) -> tuple[tuple[EnvVariable, ...], tuple[str, ...]]:
    """(variables of the server, sources of more that are not available here)."""
    out: list[EnvVariable] = []
    missing = ["envFrom"] if "envFrom" in given else []
    for name in _named_files(given.get("env_file")):
        found = env_files.variables(name, file.files)
        out += found or ()
        missing += [f"env_file {name}"] if found is None else []
    for name in ("environment", "env"):
        out += _environment(file.text, given.get(name))
    return tuple(out), tuple(missing)


def _named_files(node: yaml.Node | None) -> Iterator[str]:
    """FILE, [FILE, …] or [{path: FILE}, …]."""
    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        path = keys(item).get("path", item)
        if isinstance(path, yaml.ScalarNode):
            yield path.value


def _environment(text: str, node: yaml.Node | None) -> Iterator[EnvVariable]:
    """NAME: value, "NAME=value", and Kubernetes's {name: NAME, value: value}."""
    for name, (key, value) in pairs(node).items():
        if isinstance(value, yaml.ScalarNode):
            yield _variable(text, key, name, value.value)
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(item, yaml.ScalarNode):
            name, _, given = item.value.partition("=")
            yield _variable(text, item, name, given)
        named = keys(item)
        name_node, value_node = named.get("name"), named.get("value")
        if isinstance(name_node, yaml.ScalarNode) and value_node is not None:
            yield _variable(text, name_node, name_node.value, str(value_node.value))
        elif isinstance(name_node, yaml.ScalarNode) and "valueFrom" in named:
            yield replace(_variable(text, name_node, name_node.value, ""), fixed=False)


def _variable(text: str, node: yaml.Node, name: str, value: str) -> EnvVariable:
    start = text.find(name, node.start_mark.index)
    return EnvVariable(name, value, start, start + len(name), "${" not in value)
