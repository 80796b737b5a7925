"""Capabilities of a llama-server build by its number alone, without an engine: from
llama_server.txt and the table of builds in engine/build_facts.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from specllama.engine.build_facts import SPEC_TYPE_SINCE
from specllama.engine.capabilities import MAINLINE, Capabilities
from specllama.engine.helptext import HelpOption

NEWEST = 11434  # the last build whose source was read
# Builds at which the command line changed (llama.cpp PR 15434, 18471, 22397, 22838, 22964).
FLASH_ATTENTION_TAKES_A_VALUE = 6325  # by the date of its merge, 2025-08-30
SPEC_TYPES_FIRST = 6151  # no tree between b6151 and b8450 was read
DRAFT_FLAGS_REMOVED = 8943
SPEC_TYPES_ARE_A_LIST = 9113
_DRAFT_SIMPLE = 9180
_NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
# Removed options that are still listed, with their help text (arg.cpp).
_STUBS = {
    "--draft-max": "use --spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min": "use --spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "use the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "use the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "use the respective --spec-ngram-*-min-hits",
}


@cache
def capabilities(build: int = NEWEST) -> Capabilities:
    """A mainline build, as far as the table goes."""
    types = tuple(_spec_types(build))
    options = []
    for spellings, hint, env in _rows():
        names = tuple(n for n, first, last in spellings if first <= build <= last)
        stub = next((_STUBS[n] for n, _, last in spellings if n in _STUBS and build > last), "")
        if stub:
            names = tuple(n for n, _, _ in spellings)
        if not names:
            continue
        if "--spec-type" in names:
            hint = ",".join(types)
        if "--flash-attn" in names and build < FLASH_ATTENTION_TAKES_A_VALUE:
            hint = ""
        text = f"(env: {env})" if env else ""
        options.append(HelpOption(names, hint, None, bool(stub), stub, text))
    return Capabilities(build, "", MAINLINE, tuple(options), types)


def since(name: str) -> tuple[int, int] | None:
    """(first, last build) with this spelling; None if no build is known to have it."""
    return _spans().get(name)


def _spec_types(build: int) -> Iterator[str]:
    if build < SPEC_TYPES_FIRST:
        return
    yield "none"
    if SPEC_TYPES_ARE_A_LIST <= build < _DRAFT_SIMPLE:
        yield from ("draft", "eagle3")
    yield from (t for t, first in SPEC_TYPE_SINCE.items() if build >= first)
    yield from _NGRAMS


@cache
def _spans() -> dict[str, tuple[int, int]]:
    spellings = [spelling for row, _, _ in _rows() for spelling in row]
    return {name: (first, last) for name, first, last in reversed(spellings)}


@cache
def _rows() -> tuple[tuple[tuple[tuple[str, int, int], ...], str, str], ...]:
    """((spelling, first, last), …), hint, variable of each line."""
    text = files("specllama.formats").joinpath("llama_server.txt").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines():
        if line.startswith("-"):
            # a hint may contain a bar, but not after a space
            names, hint, env, *_ = [*line.split(" |"), "", ""]
            rows.append((tuple(map(_spelling, names.split())), hint.strip(), env.strip()))
    return tuple(rows)


def _spelling(word: str) -> tuple[str, int, int]:
    name, _, span = word.partition("@")
    first, _, last = span.partition("-")
    return name, int(first or 0), int(last or 10**9)


def of_image(tag: str) -> int | None:
    """The build that the tag of a llama.cpp image names, as `server-cuda-b11434`."""
    found = re.search(r"-b(\d{4,6})$", tag)
    return int(found[1]) if found else None
