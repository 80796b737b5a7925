"""Shell variables and arrays that a script sets once, put in where it uses them: ARGS=(-m x …),
then "${ARGS[@]}". Words keep the places where they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specllama.errors import UsageError
from specllama.formats.words import Word, split

_ARRAY = re.compile(r"(?m)^[ \t]*(?:local |declare -a |readonly )?(\w+)(\+?)=\(([^)]*)\)")
_USE = re.compile(r"\$(?:\{(\w+)(\[[@*]\])?\}|(\w+))")


@dataclass(frozen=True)
class Assigned:
    """The words of an array, or the text of a variable and (quoted) the words in it."""

    words: tuple[Word, ...]
    text: str | None = None


def assigned(source: str, commands: Sequence[Sequence[Word]]) -> Mapping[str, Assigned]:
    """What is set exactly once, by name."""
    found: dict[str, list[Assigned]] = {}
    for name, value in (*_arrays(source), *_texts(source, commands)):
        found.setdefault(name, []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _arrays(source: str) -> Iterator[tuple[str, Assigned]]:
    for m in _ARRAY.finditer(source):
        yield m[1], Assigned(_inside(source, m.start(3), m.end(3)))


def _texts(source: str, commands: Sequence[Sequence[Word]]) -> Iterator[tuple[str, Assigned]]:
    """NAME=value on a line of its own."""
    for words in commands:
        for word in words:
            m = re.match(r"(\w+)(\+?)=", word.text)
            if m is None:
                if word.text in ("export", "local", "readonly"):
                    continue
                break
            if word.end < len(source) and source[word.end] == "(":
                continue  # an array
            value = word.text[m.end() :]
            raw = source[word.start + m.end() : word.end]
            quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'" and raw[1:-1] == value
            at = word.start + m.end() + quoted
            inner = _inside(source, at, at + len(value)) if quoted else ()
            yield m[1], Assigned(inner, value if word.fixed and not m[2] else None)


def _inside(source: str, start: int, end: int) -> tuple[Word, ...]:
    try:
        return tuple(w for line in split(source, start, end, lines=False) for w in line)
    except UsageError:
        return ()


def expanded(words: Sequence[Word], known: Mapping[str, Assigned]) -> list[Word]:
    """The words with what is known put in; what is not stays as it is."""
    out: list[Word] = []
    for word in words:
        out += [word] if word.fixed else _expand(word, known)
    return out


def _expand(word: Word, known: Mapping[str, Assigned]) -> list[Word]:
    whole = _USE.fullmatch(word.text)
    value = known.get(whole[1] or whole[3] or "") if whole else None
    if whole and value is not None and value.words and (whole[2] or _blanks(value)):
        name = whole[1] or whole[3]
        return expanded(value.words, {k: v for k, v in known.items() if k != name})
    names = [m[1] or m[3] for m in _USE.finditer(word.text)]
    values = [known[n].text if n in known else None for n in names]
    if not names or None in values or "$(" in word.text or "`" in word.text:
        return [word]
    text = _USE.sub(lambda m: known[m[1] or m[3]].text or "", word.text)
    return [word] if "$" in text else [replace(word, text=text, fixed=True)]


def _blanks(value: Assigned) -> bool:
    return value.text is None or len(value.words) > 1
