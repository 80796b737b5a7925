"""What the user asked of speculation and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SpeculationOptions:
    """What the user asked of speculation; None where they left it to specllama. `vram`:
    sizes to plan for. `prefer`: speed or context. `exact`: an unknown memory is an error."""

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
