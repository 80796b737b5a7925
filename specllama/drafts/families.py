"""Families and α priors, from families.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specllama.config import read_toml
from specllama.gguf import ModelInfo

_SIZE = re.compile(r"(?<![0-9a-z.])[ae]?\d+(?:\.\d+)?[bm](?![0-9a-z])", re.I)
_HALF = 0.5  # of the target's parameters: a draft that large does not pay off
_NEARLY = 0.1  # gpt-oss-120b has 117e9 parameters, Qwen3-32B 32.8e9


@dataclass(frozen=True)
class Suggestion:
    """A draft to download for a family. `repo` is "" if only a name is known; a repository without
    GGUF in its name needs conversion."""

    method: str
    name: str
    repo: str

    @property
    def where(self) -> str:
        """The repository in parentheses, to follow the name."""
        if not self.repo:
            return ""
        convert = "" if "gguf" in self.repo.lower() else ", needs conversion to GGUF"
        return f" ({self.repo}{convert})"


@dataclass(frozen=True)
class Family:
    """`suggestions`: drafts for the target, draft models first; none that is the target itself or
    more than half as large."""

    name: str
    note: str
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True)
class Prior:
    """Expected α before measuring, and the reported range."""

    alpha: float
    low: float
    high: float
    source: str


@cache
def _data() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("families.toml"))


def family_of(target: ModelInfo) -> Family | None:
    """The first family whose name pattern and token count match, or None."""
    called = f"{target.names.name} {target.names.basename} {target.path.stem}"
    n_tokens = target.vocabulary.n_tokens if target.vocabulary else 0
    for row in _data()["family"]:
        if n_tokens in row["n_tokens"] and any(re.search(p, called, re.I) for p in row["match"]):
            return _family(row, target)
    return None


def _family(row: dict[str, Any], target: ModelInfo) -> Family:
    drafts = [row[key] for key in ("draft", "smaller") if key in row]
    out = [
        Suggestion("draft-simple", d["name"], d.get("repo", ""))
        for d in drafts
        if not _too_large(d["name"], target)
    ]
    out += [
        Suggestion(s["method"], f"the drafter for {s['for']}", s["repo"])
        for s in row.get("sidecars", [])
        if _is_for(s["for"], target)
    ]
    return Family(row["name"], row.get("note", ""), tuple(out))


def _too_large(name: str, target: ModelInfo) -> bool:
    """Whether a suggested model is more than half as large as the target, by the sizes in their
    names; for a target without a size in its name, by its number of parameters."""
    names = target.names
    called = f"{names.name} {names.basename} {names.size_label} {target.path.stem}"
    sizes = [_parameters(s) for s in _SIZE.findall(called)]
    whole = max(sizes, default=0) or target.parameters
    return any(_parameters(s) > _HALF * whole for s in _SIZE.findall(name))


def _parameters(size: str) -> float:
    """The number of parameters for a size in a name: 0.6B, 270m, E4B."""
    return float(re.sub("[a-z]", "", size, flags=re.I)) * (1e6 if size[-1] in "mM" else 1e9)


def _is_for(sizes: str, target: ModelInfo) -> bool:
    """Whether a trained drafter is for this target: `sizes` is its target's size and version, such
    as 35B-A3B or 4.5-Air. A target without a size in its name is matched by parameters."""
    names = target.names
    called = f"{names.name} {names.basename} {names.size_label} {target.path.stem}"
    parts = sizes.split("-")
    if not _SIZE.search(called) and (size := next(filter(_SIZE.fullmatch, parts), "")):
        if not _nearly(target.parameters, size):
            return False
        parts = [p for p in parts if not _SIZE.fullmatch(p)]
    return all(_calls_itself(part, called) for part in parts)


def _nearly(parameters: int, size: str) -> bool:
    return abs(parameters / _parameters(size) - 1) < _NEARLY


def _calls_itself(part: str, called: str) -> bool:
    """Whether a name contains this size or version as a whole part: 4B is in neither E4B nor
    26B-A4B; 3.6 is in Qwen3.6."""
    before = r"(?<![0-9a-z.])" if _SIZE.fullmatch(part) else r"(?<![0-9.])"
    return bool(re.search(rf"{before}{re.escape(part)}(?![0-9a-z])", called, re.I))


def prior(method: str, workload: str) -> Prior:
    """The α prior of a draft method for a workload. Raises KeyError for an n-gram method, whose
    acceptance depends on the user's text."""
    rows = [r for r in _data()["prior"] if r["method"] == method]
    if not rows:
        raise KeyError(method)
    row = next((r for r in rows if r["workload"] == workload), rows[0])
    return Prior(row["alpha"], row["low"], row["high"], row["source"])
