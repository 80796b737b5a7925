"""Step times with and without drafts from a tuning run; the speed-up of real requests is computed
from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

from specllama.tuning.judge import fastest
from specllama.tuning.records import TuningResult, method_label
from specllama.tuning.speedup import interpolated


@dataclass(frozen=True)
class StepTimes:
    """Step times measured at the same time. `plain_ms`: ms of a step without speculation (t_1);
    `drafted`: drafted tokens → ms of such a step, drafting included (t(k)); entry 0: a step
    without a draft on the same server."""

    plain_ms: float
    drafted: Mapping[int, float] = field(default_factory=dict)

    @property
    def without_draft(self) -> float:
        return self.drafted.get(0, self.plain_ms)

    def of(self, drafted: float) -> float | None:
        """ms of a step that drafts this many tokens on average, interpolated linearly; None beyond
        the longest measured draft: nothing is extrapolated."""
        known = {0: self.without_draft, **self.drafted}
        return interpolated(known, drafted) if len(known) > 1 else None


def never_less(samples: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Median time by drafted tokens, made monotonic: longer drafts never take less (pool adjacent
    violators)."""
    pools: list[tuple[list[int], list[float]]] = []
    for k in sorted(samples):
        pools.append(([k], list(samples[k])))
        while len(pools) > 1 and median(pools[-2][1]) > median(pools[-1][1]):
            ks, times = pools.pop()
            pools[-1] = (pools[-1][0] + ks, pools[-1][1] + times)
    return {k: median(times) for ks, times in pools for k in ks}


def step_times(tuned: TuningResult) -> StepTimes | None:
    """Step times of the served setting, else of the fastest measured one, else of plain decoding."""
    confirmation = tuned.best or fastest(tuned.confirmations)
    if confirmation is None:
        plain = tuned.baseline.costs.plain_step.ms if tuned.baseline is not None else 0.0
        return StepTimes(plain) if plain > 0 else None
    if confirmation.plain_ms <= 0:
        return None
    times: dict[int, float] = {}
    for trial in tuned.trials:  # from another launch: scaled by its plain step
        if (
            method_label(trial.speculation) == method_label(confirmation.speculation)
            and trial.plain_step.ms > 0
        ):
            scale = confirmation.plain_ms / trial.plain_step.ms
            times |= {k: c.ms * scale for k, c in trial.steps.curve().items()}
    if not confirmation.speculation.uses_draft and tuned.baseline is not None:
        costs = tuned.baseline.costs
        found = {d: costs.of(d + 1) for d in range(1, costs.longest)}
        scale = confirmation.plain_ms / costs.plain_step.ms if costs.plain_step.ms > 0 else 1.0
        times |= {d: ms * scale for d, ms in found.items() if ms is not None}
    times |= {k: c.ms for k, c in confirmation.measurement.log.curve().items()}
    return StepTimes(confirmation.plain_ms, times)


def times_data(times: StepTimes | None) -> dict[str, Any] | None:
    """As JSON, in ms with two decimals."""
    if times is None:
        return None
    drafted = {str(k): round(ms, 2) for k, ms in sorted(times.drafted.items())}
    return {"plain": round(times.plain_ms, 3), "drafted": drafted}


def read_times(data: Any) -> StepTimes | None:
    """What times_data wrote. Raises ValueError, TypeError or LookupError for anything else."""
    if not data:
        return None
    times = StepTimes(float(data["plain"]), {int(k): float(v) for k, v in data["drafted"].items()})
    if not all(0 < ms < inf for ms in (times.plain_ms, *times.drafted.values())):
        raise ValueError("no times")
    return times
