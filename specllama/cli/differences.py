"""What saved results of one model and workload differ in: options, files, the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.drafts.ollama import shown_name

if TYPE_CHECKING:
    from specllama.tuning.results import Result

_ENGINE_FILE = re.compile(r" \([^()]*\)$")  # its size and time


def differences(found: Sequence[Result]) -> Sequence[str]:
    """For each result, what it does not share with the others of its model and workload; "" if
    there are no others."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for r in found:
        groups.setdefault(_name(r), []).append(r)
    return [", ".join(_difference(r, groups[_name(r)])) for r in found]


def _name(r: Result) -> tuple[str, str]:
    """What every row of the table shows."""
    return shown_name(Path(r.target)), r.workload


def _difference(r: Result, alike: Sequence[Result]) -> Iterator[str]:
    if len(alike) == 1:
        return
    if len({x.target for x in alike}) > 1:
        yield f"in {Path(r.target).parent}"
    known = [set(x.options) for x in alike if x.options is not None]
    shared = set.intersection(*known) if known else set()
    for word in r.options or ():
        if word not in shared:
            yield _option(word, r, alike)
    if r.options is None:
        yield "options unknown"  # saved by an older version
    yield from _files(r, [x for x in alike if x.target == r.target])
    if len({_engine(x) for x in alike}) > 1:
        yield _engine(r)


def _option(word: str, r: Result, alike: Sequence[Result]) -> str:
    """One of `Subject.options` in the user's words; prompts with their hash where several are the
    user's own, or of several versions of the profile."""
    from specllama.tuning.other_options import is_hash, option_text

    text = option_text(word, r.prompts)
    rivals = [x for x in alike if x.prompts == r.prompts and word not in (x.options or (word,))]
    return f"{text} {word[:6]}" if is_hash(word) and rivals else text


def _files(r: Result, alike: Sequence[Result]) -> Iterator[str]:
    """Drafts that not all have, and files that have changed."""
    from specllama.tuning.results import format_time

    known = [x.files for x in alike if x.files]
    for path, size, time_ns in r.files:
        name = shown_name(Path(path))
        if not all(path in {other[0] for other in files} for files in known):
            yield f"with {name}"
        elif not all((path, size, time_ns) in files for files in known):
            yield f"{name} of {format_time(time_ns / 1e9)}"


def _engine(r: Result) -> str:
    return _ENGINE_FILE.sub("", r.engine)
