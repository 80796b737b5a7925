"""Families and α priors, from families.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specllama.config import read_toml
from specllama.gguf import ModelInfo


@dataclass(frozen=True)
class Suggestion:
    """Something to download for a family. `repo` "" when only a name is known; one
    that does not call itself GGUF has to be converted first."""

    method: str
    name: str
    repo: str
    source: str

    @property
    def where(self) -> str:
        """The repository, as a remark behind the name."""
        if not self.repo:
            return ""
        convert = "" if "gguf" in self.repo.lower() else ", to be converted to GGUF"
        return f" ({self.repo}{convert})"


@dataclass(frozen=True)
class Family:
    name: str
    note: str
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True)
class Prior:
    """Expected α before measuring, and the range that was reported."""

    alpha: float
    low: float
    high: float
    source: str


@cache
def _data() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("families.toml"))


def family_of(target: ModelInfo) -> Family | None:
    """The first family whose name pattern and token count fit. None when none does."""
    called = f"{target.names.name} {target.names.basename} {target.path.stem}"
    n_tokens = target.vocabulary.n_tokens if target.vocabulary else 0
    for row in _data()["family"]:
        if n_tokens in row["n_tokens"] and any(re.search(p, called, re.I) for p in row["match"]):
            return _family(row)
    return None


def _family(row: dict[str, Any]) -> Family:
    out = [
        Suggestion(s["method"], f"the drafter for {s['for']}", s["repo"], s["source"])
        for s in row.get("sidecars", [])
    ]
    if draft := row.get("draft"):
        out.append(
            Suggestion("draft-simple", draft["name"], draft.get("repo", ""), draft["source"])
        )
    return Family(row["name"], row.get("note", ""), tuple(out))


def prior(method: str, workload: str) -> Prior:
    """The prior of a draft method for a workload. Raises KeyError for an n-gram method:
    what repeats in a user's text cannot be known before."""
    rows = [r for r in _data()["prior"] if r["method"] == method]
    if not rows:
        raise KeyError(method)
    row = next((r for r in rows if r["workload"] == workload), rows[0])
    return Prior(row["alpha"], row["low"], row["high"], row["source"])
