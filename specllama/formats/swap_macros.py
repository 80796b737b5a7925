"""llama-swap's macros: ${name} in a command line is replaced with the text under `macros`, of the
file or of one model (internal/config/macros.go of v250)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import yaml

from specllama.formats.shell_variables import Bindings, ShellValue, expanded, sane
from specllama.formats.shell_words import Word, WordOrigin

Words = Callable[[yaml.ScalarNode], list[Word] | None]


def macros(node: yaml.Node | None, known: Bindings, words: Words) -> Mapping[str, ShellValue]:
    """The macros of `known` and of the mapping `node`, expanded. `words`: those of a scalar with their
    positions in the file; None if escapes shift them."""
    out = dict(known)
    for name, value in _given(node):
        origin = WordOrigin(f"macro {name}", text=True)
        found = words(value)
        text = str(value.value)
        if found is None:
            found = [Word(w, -1, -1, "$" not in w) for w in text.split()]
        expansion = expanded(found, out)
        expansion = [w if w.origin is not None else replace(w, origin=origin) for w in expansion]
        known_text = (
            " ".join(w.text for w in expansion) if all(w.fixed for w in expansion) else None
        )
        out[name] = sane(ShellValue(tuple(expansion), known_text))
    return out


def _given(node: yaml.Node | None) -> Iterator[tuple[str, yaml.ScalarNode]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
            yield key.value, value
