"""docs/builds.md: what each llama.cpp build can do, from the tables that specllama decides by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specllama.engine.capabilities import (
    FACTS,
    HOOKED_ARCHITECTURES,
    LAST_OUTPUT_FOR_DFLASH,
    LAST_OUTPUT_FOR_EAGLE3,
    MTP_ARCHITECTURES,
    SPEC_TYPE_SINCE,
)
from specllama.formats import known_builds
from specllama.workloads import METHODS

_HEAD = """\
<!-- Made by `python -m docs.made` from specllama's own tables: not to be edited. -->

# What each llama.cpp build can do

What specllama knows of mainline llama.cpp, by build number (`llama-server --version`), read from
its source up to b{newest}. A real llama-server is asked first (`--help`): these tables hold what
help does not tell, and serve `specllama lint --build N`. A build without a number (made without
git history) is judged by the options that it lists. ik_llama.cpp has its own options and no place
in these tables.
"""


def page() -> str:
    return _HEAD.format(newest=known_builds.NEWEST) + "\n".join(_sections())


def _sections() -> Iterator[str]:
    yield "\n## Methods\n"
    yield "The values of `--spec-type`, and the first build in which each really drafts.\n"
    yield "| method | from |\n|---|---|"
    yield from (f"| `{name}` | b{first} |" for name, first in SPEC_TYPE_SINCE.items())
    ngrams = ", ".join(f"`{name}`" for name in METHODS if name.startswith("ngram-"))
    yield f"| {ngrams} | every build that lists them |"
    yield "\n## Spellings\n"
    yield "Options that have to do with drafting, and the builds that take them.\n"
    yield "| option | builds |\n|---|---|"
    yield from (f"| `{name}` | {span} |" for name, span in sorted(_spellings().items()))
    yield "\n## Faults and habits\n"
    yield "| builds | what | source |\n|---|---|---|"
    for name, fact in sorted(FACTS.items(), key=lambda x: x[1].first):
        what = name.replace("_", " ")
        yield f"| {_span(fact.first, fact.last)} | {what} | {fact.source} |"
    yield "\n## MTP heads\n"
    yield "Architectures whose MTP head runs (`draft-mtp`), and from which build.\n"
    yield "| architecture | from |\n|---|---|"
    yield from (f"| `{name}` | b{first} |" for name, first in MTP_ARCHITECTURES.items())
    yield "\n## Targets of EAGLE-3, DFlash and DSpark\n"
    shown = _listed(HOOKED_ARCHITECTURES)
    yield f"These drafters read layers of the target, which llama.cpp shows for: {shown}.\n"
    yield (
        "A drafter that reads what leaves the last layer too (an id equal to the number of layers): "
        f"EAGLE-3 for {_listed(LAST_OUTPUT_FOR_EAGLE3)}; DFlash and DSpark for "
        f"{_listed(LAST_OUTPUT_FOR_DFLASH)}.\n"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _spellings() -> dict[str, str]:
    """Name → builds, of every long option about drafts."""
    out = {}
    for spellings, _, _ in known_builds._rows():
        if not any("draft" in n or "-spec-" in n for n, _, _ in spellings):
            continue
        for name, first, last in spellings:
            if name.startswith("--"):
                out[name] = _span(first, None if last >= known_builds.NEWEST else last)
    return out


def _span(first: int, last: int | None) -> str:
    """0 = from the oldest build that was read."""
    if last is None:
        return f"b{first} and later" if first else "all"
    return f"b{first} to b{last}" if first else f"up to b{last}"
