"""A finding of lint about one command line, and its fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specllama.engine.capabilities import Capabilities
from specllama.formats.found_command import EnvVariable, SpanEdit, WordEdit
from specllama.formats.parsed_command import OptionUse, ParsedCommand

# Effects: the server does not start, or exits later; nothing drafts, or the option does nothing;
# it serves, but slower, with more memory, or with wrong results.
ENDS, NOTHING, WORSE = "ends", "does nothing", "worse"
Edits = tuple[WordEdit | SpanEdit, ...]

_SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
# Purpose of an option → its spellings, newest first. Per n-gram type: {} is the type.
_DRAFT_NAMES = {
    "draft-length": ("--spec-draft-n-max", "--draft-max"),
    "draft-minimum": ("--spec-draft-n-min", "--draft-min"),
    "draft-file": ("-md",),
    "draft-repo": ("-hfd",),
}
_NGRAM_NAMES = {
    "draft-length": ("--spec-{}-size-m", "--spec-ngram-size-m"),
    "ngram-length": ("--spec-{}-size-m", "--spec-ngram-size-m"),
    "lookup": ("--spec-{}-size-n", "--spec-ngram-size-n"),
    "min-hits": ("--spec-{}-min-hits", "--spec-ngram-min-hits"),
}
_MOD_NAMES = {
    "draft-length": ("--spec-ngram-mod-n-max", "--draft-max"),
    "ngram-length": ("--spec-ngram-mod-n-max", "--draft-max"),
    "draft-minimum": ("--spec-ngram-mod-n-min", "--draft-min"),
    "lookup": ("--spec-ngram-mod-n-match", "--spec-ngram-size-n"),
}


@dataclass(frozen=True)
class Finding:
    """`rule`: its name; `effect`: one of the three above; `words`: the words as written; `happens`
    and `fix`: messages. `edits`: the fix as changes of the text, () = the user has to make it."""

    rule: str
    effect: str
    words: str
    happens: str
    fix: str
    edits: Edits = ()


def remove_option(use: OptionUse) -> WordEdit:
    return WordEdit(use.index, use.count)


def replace_option(use: OptionUse, *new: str | int) -> WordEdit:
    return WordEdit(use.index, use.count, new)


def set_variable(variable: EnvVariable | None, value: str) -> Edits:
    """A new value for a variable, if its value is in the text and needs no quotes."""
    if variable is None or variable.value_at < 0 or not re.fullmatch(r"[\w.,-]+", value):
        return ()
    at = variable.value_at
    return (SpanEdit(at, at + len(variable.value), value),)


def insert_after(use: OptionUse, *new: str | int) -> WordEdit:
    """New words after an option."""
    return WordEdit(use.index + use.count, 0, new)


def spellings(means: str, parsed: ParsedCommand) -> tuple[str, ...]:
    """The options for the purpose `means`, for this command's methods and build."""
    if means.startswith("-"):
        found = parsed.caps.spelling(means)
        return (found,) if found else ()
    out: list[str | None] = []
    if not parsed.only_ngrams:
        out.append(parsed.caps.spelling(*_DRAFT_NAMES.get(means, ())))
    # with a draft method the length is the draft's; n-gram sizes go to all n-gram types
    if parsed.only_ngrams or means not in _DRAFT_NAMES:
        types = parsed.ngram_types or ("ngram-simple",)
        for t in types:
            out.append(parsed.caps.spelling(*ngram_names(means, t)))
    return tuple(dict.fromkeys(n for n in out if n))


def ngram_names(means: str, method: str) -> Sequence[str]:
    """The spellings of an n-gram method's size, newest first."""
    if method == "ngram-mod":
        return _MOD_NAMES.get(means, ())
    if method not in _SIZED:
        return ()
    if means == "min-hits" and method != "ngram-map-k4v":
        return ()  # the others ignore it (ngram-map.cpp)
    return [n.format(method) for n in _NGRAM_NAMES.get(means, ())]


def spec_type(types: Sequence[str], caps: Capabilities) -> tuple[str, ...]:
    """--spec-type for these methods as the build spells them; () if it knows none of them."""
    known = [
        "draft" if t == "draft-simple" and "draft" in caps.spec_types else t
        for t in types
        if t in caps.spec_types or (t == "draft-simple" and "draft" in caps.spec_types)
    ]
    return ("--spec-type", ",".join(known)) if known else ()
