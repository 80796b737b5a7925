"""Values of shell variables and arrays, expanded where a script uses them: ARGS=(-m x …), then
"${ARGS[@]}". Words keep the positions where they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specllama.errors import UsageError
from specllama.formats.shell_words import SimpleCommand, Word, WordOrigin, split_words

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
# a name with hyphens is a macro of llama-swap
_USE = re.compile(r"\$(?:\{([\w-]+|@)(\[[@*]\])?\}|(\w+|@))")
_DECLARE = ("export", "local", "readonly", "declare", "typeset")
# Words that may come before an assignment.
KEYWORDS = ("if", "then", "elif", "else", "while", "until", "do", "{", "!")
# A variable may double itself repeatedly.
_MAX_WORDS = 2_000
_MAX_TEXT = 100_000
POSITIONAL = "@"  # what `set --` sets


@dataclass(frozen=True)
class ShellValue:
    """The value of a variable. `words`: the items of an array, or the words of a text; None:
    unknown. `text`: all of it, None for an array or if unknown. `start`: position of the name in
    the assignment."""

    words: tuple[Word, ...] | None
    text: str | None = None
    array: bool = False
    start: int = -1


UNKNOWN = ShellValue(None)
Bindings = Mapping[str, ShellValue]


def assigned(
    source: str, simple: SimpleCommand, known: Bindings
) -> Iterator[tuple[str, ShellValue]]:
    """The variables that a simple command sets."""
    words = simple.words
    first = next((i for i, w in enumerate(words) if w.text not in KEYWORDS), len(words))
    name = words[first].text if first < len(words) else ""
    if name in ("for", "select"):
        yield from ((w.text, UNKNOWN) for w in words[first + 1 : first + 2])
    elif name in ("read", "unset", "getopts", "mapfile", "readarray"):
        now = ShellValue((), "") if name == "unset" else UNKNOWN
        yield from ((w.text, now) for w in words[first + 1 :] if w.text.isidentifier())
    elif name == "set" and [w.text for w in words[first + 1 : first + 2]] == ["--"]:
        given = _homed(expanded(words[first + 2 :], known), WordOrigin("@", text=False))
        yield POSITIONAL, ShellValue(given, array=True)
    elif name == "shift":
        yield POSITIONAL, UNKNOWN
    declares = name in _DECLARE
    own = range(first + declares, len(words))
    if declares or all(_ASSIGNMENT.match(words[i].text) for i in own):
        for i in own:
            m = _ASSIGNMENT.match(words[i].text)
            if m is not None:
                old = known.get(m[1], ShellValue((), "")) if m[2] else None
                yield m[1], _value(source, words[i], m, simple.arrays.get(i), known, old)
            elif re.match(r"\w+\[", words[i].text):  # one element
                yield words[i].text.partition("[")[0], UNKNOWN


def _value(
    source: str,
    word: Word,
    m: re.Match[str],
    bracketed: Sequence[Word] | None,
    known: Bindings,
    old: ShellValue | None,
) -> ShellValue:
    """`old`: the value that += appends to."""
    if bracketed is not None:
        words = _homed(expanded(bracketed, known), WordOrigin(m[1], text=False))
        if old is not None and old.words is None:
            return UNKNOWN
        before = old.words or () if old is not None else ()
        return sane(ShellValue((*before, *words), array=True, start=word.start))
    value = word.text[m.end() :]
    text = _text(value, known)
    new = ShellValue(_parts(source, word, m, known), text, start=word.start)
    if old is None:
        return sane(new)
    if old.array:
        return UNKNOWN  # appends to its first element
    apart = not old.text or not text or old.text[-1:].isspace() or text[:1].isspace()
    both = old.words is not None and new.words is not None and apart
    return sane(
        ShellValue(
            (*(old.words or ()), *(new.words or ())) if both else None,
            old.text + text if old.text is not None and text is not None else None,
            start=word.start,
        )
    )


def _parts(source: str, word: Word, m: re.Match[str], known: Bindings) -> tuple[Word, ...] | None:
    """The words of a text when it is used unquoted."""
    value = word.text[m.end() :]
    start = word.start + m.end()
    raw = source[start : word.end]
    if not value:
        return ()
    if (
        len(raw) > 1
        and raw[0] == raw[-1]
        and raw[0] in "\"'"
        and raw[1:-1].replace("\\\n", "") == value
    ):
        try:
            inner = split_words(source, start + 1, word.end - 1, lines=False, plain=True)
        except UsageError:
            return None
        words = [w for line in inner for w in line]
        if raw[0] == "'":
            words = [replace(w, fixed=True) for w in words]
        return _homed(expanded(words, known), WordOrigin(m[1], text=True))
    if raw != value:
        return None
    whole = Word(value, start, word.end, word.fixed)
    return _homed(expanded([whole], known), WordOrigin(m[1], text=True))


def _homed(words: Sequence[Word], origin: WordOrigin) -> tuple[Word, ...]:
    return tuple(w if w.origin is not None else replace(w, origin=origin) for w in words)


def sane(value: ShellValue) -> ShellValue:
    """The value; unknown if it has absurdly many words."""
    return UNKNOWN if value.words is not None and len(value.words) > _MAX_WORDS else value


def expanded(words: Sequence[Word], known: Bindings) -> list[Word]:
    """The words with known variables expanded; unknown ones stay."""
    out: list[Word] = []
    for word in words:
        out += [word] if word.fixed else _expand(word, known)
    return out


def _expand(word: Word, known: Bindings) -> list[Word]:
    whole = _USE.fullmatch(word.text)
    value = known.get(whole[1] or whole[3], UNKNOWN) if whole else UNKNOWN
    if value.array and value.words is not None:
        return list(value.words)
    if value.words is not None and not word.quoted:
        text = value.text or ""
        if len(value.words) != 1 or text != text.strip():
            return list(value.words)
    result = _text(word.text, known) if _USE.search(word.text) else None
    return [word] if result is None else [replace(word, text=result, fixed=True)]


def _text(text: str, known: Bindings) -> str | None:
    """The text with variables expanded; None if one is unknown."""
    values = {m[0]: known.get(m[1] or m[3], UNKNOWN).text for m in _USE.finditer(text)}
    if None in values.values() or "$(" in text or "`" in text:
        return None
    if sum(len(values[m[0]] or "") for m in _USE.finditer(text)) > _MAX_TEXT:
        return None
    result = _USE.sub(lambda m: values[m[0]] or "", text)
    return None if "$" in _USE.sub("", text) and re.search(r"\$[\w{@*#?]", result) else result
