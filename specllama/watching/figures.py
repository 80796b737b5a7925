"""A summary of real requests as data, the same in all output."""

from __future__ import annotations

from typing import Any

from specllama.watching.summary import TrafficSummary
from specllama.watching.verdict import TrafficVerdict


def summary_data(p: TrafficSummary) -> dict[str, Any]:
    """The figures of a summary, for JSON."""
    c = p.counts
    return {
        "alpha": c.alpha,
        "tau": c.tau,
        "acceptance_by_position": list(c.acceptance),
        "drafted": c.drafted,
        "accepted": c.accepted,
        "tokens": c.tokens,
        "tokens_per_second": c.tokens_per_second,
        "drafted_per_second": c.drafted_per_second,
        "speedup": p.speedup,
        "chance_slower": p.slower,
        "speedup_by_length": {str(k): x for k, x in p.by_length.items()},
    }


def verdict_data(v: TrafficVerdict) -> dict[str, Any]:
    """The verdict, for JSON."""
    return {"verdict": v.kind, "better_n_max": v.better}
