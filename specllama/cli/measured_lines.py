"""The measurements of `pick-draft --measure`, as lines and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specllama.cli.units import plural

if TYPE_CHECKING:
    from specllama.drafts.costs import DraftCosts
    from specllama.drafts.pick import Candidate, PickResult


def cost_lines(picked: PickResult) -> list[str]:
    """The step times behind each measured candidate's predicted speed-up."""
    steps, estimated = [], []
    costs: DraftCosts | None = None
    for c in picked.candidates:
        if (m := c.measured) is None:
            continue
        name = c.draft.title if c.draft else c.method
        if m.costs is None:
            estimated.append(
                f"cost     {name}: estimated from file sizes, not measured ({m.uncosted}); "
                "`specllama serve` measures it"
            )
            continue
        costs = m.costs
        steps.append(
            f"cost     {name} at K={m.k}: drafting {_ms(costs.drafting(m.k))} + verifying "
            f"{_ms(costs.target[m.k])}, for {m.tau:.2f} tokens"
        )
    if costs is not None:
        threads = plural(costs.threads, "thread")
        plain = _ms(costs.target[0])
        steps.insert(0, f"cost     measured in process, {threads}: a plain step takes {plain}")
    return steps + estimated


def measured_data(c: Candidate) -> dict[str, Any] | None:
    """One object; None if nothing was measured. Entry b-1 of the batch times is for a batch of b
    tokens."""
    m = c.measured
    if m is None:
        return None
    return {
        "source": m.source,
        "k": m.k,
        "alpha": m.alpha,
        "tau": m.tau,
        "tau_interval": [m.tau_low, m.tau_high],
        "acceptance_by_position": list(m.by_position),
        "tau_by_temperature": {str(t): v for t, v in m.tau_by_temperature.items()},
        "speedup": m.speedup,
        "speedup_interval": [m.speedup_low, m.speedup_high],
        "costs": _costs_data(m.costs),
        "costs_guessed_because": m.uncosted or None,
    }


def _costs_data(costs: DraftCosts | None) -> dict[str, Any] | None:
    if costs is None:
        return None
    return {
        "threads": costs.threads,
        "target_batch_ms": list(costs.target),
        "draft_batch_ms": list(costs.draft),
    }


def _ms(ms: float) -> str:
    """Up to three digits: a step of 0.3 ms must not read 0 ms."""
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"
