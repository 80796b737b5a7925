"""Whether a server's counters of drafted tokens can be right, whatever the engine."""

from __future__ import annotations

import math


def contradiction(drafted: float, accepted: float, steps: float | None = None) -> str:
    """What cannot be true of these counts, "" when they can be. `steps`: verify steps, None
    where they are not counted. A counter that fell (a restart in between) is negative here."""
    counts = (drafted, accepted, 0 if steps is None else steps)
    if not all(math.isfinite(n) for n in counts):
        return "the counters are no numbers"
    said = "the counters contradict themselves"
    if accepted > drafted or min(drafted, accepted) < 0:
        return f"{said}: {accepted:,.0f} of {drafted:,.0f} drafted tokens accepted"
    if steps is not None and steps < 0:
        return f"{said}: {steps:,.0f} verify steps"
    return ""
