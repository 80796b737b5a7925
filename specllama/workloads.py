"""Workload profiles: what a user does with the model, as data.

`profiles/NAME.toml` holds the settings, `profiles/prompts/NAME.txt` the prompts,
parted by lines of `=====`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.config import read_toml
from specllama.engine.settings import NgramSizes
from specllama.errors import UsageError
from specllama.resources import profiles_dir

METHODS = (
    "draft-mtp draft-simple draft-eagle3 draft-dflash draft-dspark "
    "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
).split()
_KEYS = {"title", "methods", "sampling", "ngram", "draft"}


@dataclass(frozen=True)
class Workload:
    """One profile. `methods` in the order they are tried; `n_max` tokens per draft."""

    name: str
    title: str
    methods: tuple[str, ...]
    sampling: Mapping[str, float]
    ngram: NgramSizes
    n_max: int
    p_min: float
    prompts: tuple[str, ...]


def names() -> list[str]:
    """The shipped profiles."""
    return sorted(p.stem for p in profiles_dir().glob("*.toml"))


def load(name: str) -> Workload:
    """The shipped profile `name`. Raises UsageError for one that is not there or is broken."""
    file = profiles_dir() / f"{name}.toml"
    if name not in names():
        raise UsageError(f"no workload called {name!r}", f"Workloads: {', '.join(names())}")
    data = read_toml(file)
    if unknown := sorted(set(data) - _KEYS):
        raise UsageError(f"{file}: unknown setting {unknown[0]!r}")
    try:
        return _workload(name, data, _prompts(file.parent / "prompts" / f"{name}.txt"))
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(f"{file}: {e!r} is missing or not usable") from None


def _workload(name: str, data: Mapping[str, Any], prompts: tuple[str, ...]) -> Workload:
    methods = tuple(str(m) for m in data["methods"])
    if bad := [m for m in methods if m not in METHODS]:
        raise ValueError(f"methods: {bad[0]}")
    if not prompts:
        raise ValueError("prompts")
    return Workload(
        name=name,
        title=str(data["title"]),
        methods=methods,
        sampling={str(k): float(v) for k, v in data["sampling"].items()},
        ngram=NgramSizes(
            int(data["ngram"]["n"]), int(data["ngram"]["m"]), int(data["ngram"].get("min_hits", 1))
        ),
        n_max=int(data["draft"]["n_max"]),
        p_min=float(data["draft"]["p_min"]),
        prompts=prompts,
    )


def _prompts(file: Path) -> tuple[str, ...]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{file}: cannot be read ({e.strerror})") from None
    return tuple(p.strip("\n") for p in text.split("\n=====\n") if p.strip())
