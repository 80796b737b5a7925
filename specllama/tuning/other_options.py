"""The options of saved results in the user's words, and the saved result that comes closest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specllama.drafts.ollama import shown_name
from specllama.tuning.results import Result, Subject, all_results

_HASH = re.compile(r"[0-9a-f]{16}")  # of prompts and sampling settings
_DEFAULTS = ("-c 0", "-np 1")


def option_text(word: str, prompts: str) -> str:
    """One of `Subject.options` as the user typed it; `prompts` as in Subject."""
    name, _, rest = word.partition(" ")
    if name == "named":
        methods, _, method_set = rest.rpartition(" ")
        return f"--method {methods}" if method_set == "True" else "--draft"
    if word == "everything":
        return "--all"
    if is_hash(word):
        return "own prompts" if prompts == "yours" else "the profile's prompts"
    return word


def is_hash(word: str) -> bool:
    """Whether it stands for the prompts and sampling settings."""
    return _HASH.fullmatch(word) is not None


def closest_result_line(subject: Subject) -> Iterator[str]:
    """Where nothing was measured for `subject`: the saved result that differs in the fewest options
    and files, and how. Those of another engine or other devices would not be used anyway."""
    found = [r for r in all_results() if _alike(r, subject)]
    if found:
        r = min(found, key=lambda r: len(_unshared(r, subject)))
        theirs = [*_options(r.options or (), subject.options, r.prompts), *_drafts(r, subject)]
        mine = list(_options(subject.options, r.options or (), subject.prompts))
        parts = [f"with {', '.join(theirs)}"] if theirs else []
        parts += [f"without {', '.join(mine)}"] if mine else []
        how = " and ".join(parts) or "before a model file changed"
        yield f"a saved result ({r.label}) is not used: it was measured {how}"


def _alike(r: Result, subject: Subject) -> bool:
    same = (r.target, r.workload, r.engine, r.devices)
    wanted = (subject.target, subject.workload, subject.engine, subject.devices)
    return same == wanted and r.options is not None and r.file.stem != subject.key


def _unshared(r: Result, subject: Subject) -> set[object]:
    options, files = r.options or (), set(r.files) ^ set(subject.files)
    return {*(set(options) ^ set(subject.options)), *files}


def _options(words: tuple[str, ...], others: tuple[str, ...], prompts: str) -> Iterator[str]:
    for word in words:
        if word not in others and word not in _DEFAULTS:
            yield option_text(word, prompts)


def _drafts(r: Result, subject: Subject) -> Iterator[str]:
    known = {path for path, *_ in subject.files}
    yield from (shown_name(Path(path)) for path, *_ in r.files if path not in known)
