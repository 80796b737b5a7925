"""Workload profiles: what a user does with the model, as data.

`NAME.toml` holds the settings, `prompts/NAME.txt` the prompts, parted by lines of `=====`, or
`prompts/NAME.jsonl`, one by line as for --prompts. The shipped ones lie in `profiles/`; a
user's, in the folder `profiles` beside their config file, come before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specllama import config
from specllama.config import read_toml
from specllama.engine.client import Prompt
from specllama.engine.settings import NgramSizes
from specllama.errors import UsageError
from specllama.prompts import read_prompts
from specllama.resources import profiles_dir

METHODS = (
    "draft-mtp draft-simple draft-eagle3 draft-dflash draft-dspark "
    "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
).split()
_KEYS = {"title", "methods", "sampling", "ngram", "draft", "thinking", "answer"}
ANSWER = 192  # tokens: from there on, an answer's steps repeat what was seen


@dataclass(frozen=True)
class Workload:
    """One profile, or a mix of several. `methods` in the order they are tried; `sampling`: what
    a request says besides its prompt; `n_max` tokens per draft; `answer`: the most tokens of an
    answer that is measured. `mixed`: of a mix, what is the first one's, in words."""

    name: str
    title: str
    methods: tuple[str, ...]
    sampling: Mapping[str, Any]
    ngram: NgramSizes
    n_max: int
    p_min: float
    prompts: tuple[Prompt, ...]
    answer: int = ANSWER
    mixed: str = ""


def own_dir() -> Path:
    """The folder of the user's own profiles, whether it exists or not."""
    return config.path().parent / "profiles"


def names() -> list[str]:
    """All profiles, the user's own too."""
    return sorted({p.stem for folder in (profiles_dir(), own_dir()) for p in folder.glob("*.toml")})


def file_of(name: str) -> Path:
    """Where the settings of a profile lie. Raises UsageError when there is none of that name."""
    if name in (known := names()):
        own = own_dir() / f"{name}.toml"
        return own if own.is_file() else profiles_dir() / f"{name}.toml"
    raise UsageError(f"no workload called {name!r}", f"Workloads: {', '.join(known)}")


def load(name: str) -> Workload:
    """The profile `name`; of several by comma, their mix. Raises UsageError for one that is not
    there or is broken."""
    parts = list(dict.fromkeys(p.strip() for p in name.split(",")))
    if len(parts) > 1 and "" in parts:
        side = "before" if name.lstrip().startswith(",") else "after"
        raise UsageError(f"--workload {name}: the name {side} the comma is empty")
    return mix([_load(p) for p in parts]) if len(parts) > 1 else _load(parts[0])


def mix(each: Sequence[Workload]) -> Workload:
    """One workload of several: their prompts in turn. A server has one set of settings and a
    search one temperature: those are the first one's. What only the others use is tried last."""
    first = each[0]
    turns = zip_longest(*(w.prompts for w in each))
    prompts = tuple(p for turn in turns for p in turn if p is not None)
    hot = first.sampling.get("temperature")
    said = f"temperature {hot:g}" if hot is not None else "temperature"
    return Workload(
        name=",".join(w.name for w in each),
        title="; ".join(w.title for w in each),
        methods=tuple(dict.fromkeys(m for w in each for m in w.methods)),
        sampling=first.sampling,
        ngram=first.ngram,
        n_max=first.n_max,
        p_min=first.p_min,
        prompts=prompts,
        answer=max(w.answer for w in each),
        mixed=f"their prompts in turn; {said}, K={first.n_max} and n-grams of {first.ngram.n} and "
        f"{first.ngram.m} tokens, to begin with, are those of {first.name}",
    )


def _load(name: str) -> Workload:
    file = file_of(name)
    data = read_toml(file)
    if unknown := sorted(set(data) - _KEYS):
        raise UsageError(f"{file}: unknown setting {unknown[0]!r}")
    try:
        return _workload(name, data, _prompts(file.parent / "prompts", name))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise UsageError(f"{file}: {e!r} is missing or not usable") from None


def _workload(name: str, data: Mapping[str, Any], prompts: tuple[Prompt, ...]) -> Workload:
    methods = tuple(str(m) for m in data["methods"])
    if bad := [m for m in methods if m not in METHODS]:
        raise ValueError(f"methods: {bad[0]}")
    if not prompts:
        raise ValueError("prompts")
    sampling: dict[str, Any] = {str(k): float(v) for k, v in data["sampling"].items()}
    if not 0 <= sampling.get("temperature", 0) <= 2:
        raise ValueError("temperature")
    if (thinking := data.get("thinking")) is not None:
        if not isinstance(thinking, bool):
            raise TypeError("thinking")
        sampling["chat_template_kwargs"] = {"enable_thinking": thinking}
    answer = int(data.get("answer", ANSWER))
    if answer < 1:
        raise ValueError("answer")
    return Workload(
        name=name,
        title=str(data["title"]),
        methods=methods,
        sampling=sampling,
        ngram=NgramSizes(
            int(data["ngram"]["n"]), int(data["ngram"]["m"]), int(data["ngram"].get("min_hits", 1))
        ),
        n_max=int(data["draft"]["n_max"]),
        p_min=float(data["draft"]["p_min"]),
        prompts=prompts,
        answer=answer,
    )


def _prompts(folder: Path, name: str) -> tuple[Prompt, ...]:
    lines = folder / f"{name}.jsonl"
    if lines.is_file():
        return read_prompts(lines, "prompts in")
    file = folder / f"{name}.txt"
    if not file.is_file() and (shipped := profiles_dir() / "prompts" / file.name).is_file():
        file = shipped  # a built-in profile of which only the settings were changed
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{file}: cannot be read ({reason})") from None
    return tuple(p.strip("\n") for p in text.split("\n=====\n") if p.strip())
