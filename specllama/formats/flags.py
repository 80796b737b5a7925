"""Flags that were removed, renamed, invented, or are another program's: flags.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specllama.config import read_toml

REMOVED, INVENTED, FOREIGN = "removed", "invented", "foreign"


@dataclass(frozen=True)
class WrongFlag:
    """A flag that llama-server does not have, or no longer has. `means`: see flags.toml; `pair`: it
    takes two values."""

    kind: str
    takes_value: bool
    means: str
    reason: str
    pair: bool = False


@dataclass(frozen=True)
class BadBuild:
    """A bug in the builds [first, last], for methods whose names begin with one of `types`.
    `slots`: only with several."""

    first: int
    last: int
    types: tuple[str, ...]
    reason: str
    slots: bool = False


@dataclass(frozen=True)
class OtherEngine:
    """`removed` and `foreign`: flag → its equivalent today, "" = none. `methods`: names of methods in
    other engines → its own."""

    removed: Mapping[str, str]
    foreign: Mapping[str, str]
    methods: Mapping[str, str]


@cache
def wrong_flags() -> Mapping[str, WrongFlag]:
    """Spelling → the flag."""
    return {
        name: WrongFlag(r["kind"], r["value"], r["means"], r["why"], r.get("pair", False))
        for r in _data()["llama"]
        for name in r["names"]
    }


def synthetic() -> tuple[Sequence[str], str]:
    """Options that bypass verification, and the effect."""
    table = _data()["synthetic"]
    return table["names"], table["why"]


@cache
def bad_builds() -> tuple[BadBuild, ...]:
    return tuple(
        BadBuild(r["first"], r["last"], tuple(r["types"].split()), r["why"], r.get("slots", False))
        for r in _data()["bad_build"]
    )


def type_aliases() -> Mapping[str, str]:
    """Values of --spec-type that llama.cpp does not know → the intended one."""
    found: Mapping[str, str] = _data()["type_aliases"]
    return found


def renamed_variables() -> Mapping[str, str]:
    """Variables renamed in b8943 → their new names."""
    found: Mapping[str, str] = _data()["renamed_variables"]
    return found


@cache
def removed_variables() -> Mapping[str, tuple[int, str]]:
    """Variable → (first build that ignores it, what to do)."""
    return {name: (build, fix) for name, (build, fix) in _data()["removed_variables"].items()}


@cache
def other_engine(name: str) -> OtherEngine:
    """`name`: vllm or sglang."""
    table = _data()[name]
    return OtherEngine(table["removed"], table["foreign"], table["methods"])


@cache
def _data() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("flags.toml"))
