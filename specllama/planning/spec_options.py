"""specllama's own options for speculation and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SpeculationOptions:
    """The user's options; None = specllama decides. `vram`: GPU sizes to plan for. `prefer`: speed
    or context. `exact`: unknown memory is an error."""

    workload: str
    draft: Path | None = None
    method: str | None = None
    n_max: int | None = None
    p_min: float | None = None
    draft_layers: str | None = None
    draft_cache: str | None = None
    vram: str | None = None
    prefer: str | None = None
    exact: bool = False
