"""What probe's figures and terminal plots show: which settings were confirmed at each draft length and
n-gram size, and the best sizes of an n-gram type."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specllama.engine.settings import NgramSizes, Speculation
    from specllama.tuning.confidence import Interval
    from specllama.tuning.records import Confirmation, NgramSpeedups, Trial


def measured_lengths(trial: Trial, confirmations: Sequence[Confirmation]) -> dict[int, Interval]:
    """K → speed-up of the confirmed settings with the trial's method at that length."""
    spec = trial.speculation
    return {
        a.speculation.n_max: a.speedup
        for a in confirmations
        if (a.speculation.methods, a.speculation.draft) == (spec.methods, spec.draft)
        and not a.speculation.p_min
    }


def measured_sizes(
    m: NgramSpeedups, confirmations: Sequence[Confirmation]
) -> dict[tuple[int, int], Interval]:
    """(n, m) → speed-up of the confirmed settings of this map's type, alone or with its draft."""
    found = {}
    for a in confirmations:
        spec = a.speculation
        if spec.ngram is not None and m.method in spec.methods and _draft_of(spec) == m.draft:
            found[spec.ngram.n, spec.ngram.m] = a.speedup
    return found


def _draft_of(s: Speculation) -> str:
    """The name of a setting without its n-grams; "" when nothing is left."""
    from specllama.tuning.records import setting_label

    methods = tuple(m for m in s.methods if not m.startswith("ngram-"))
    return setting_label(replace(s, methods=methods, ngram=None)) if methods else ""


_SHOWN_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def few_sizes(sizes: Iterable[int], always: Collection[int]) -> list[int]:
    """As many sizes as fit a terminal or figure, `always` among them."""
    return [x for x in sizes if x in _SHOWN_SIZES or x in always]


def best_sizes(m: NgramSpeedups) -> NgramSizes:
    """The sizes with the highest speed-up, the smallest draft of equals."""
    return max(m.speedups, key=lambda s: (m.speedups[s], -s.m, -s.n))


def map_name(m: NgramSpeedups) -> str:
    return f"{m.method} with {m.draft}" if m.draft else m.method


def speedup_grid(m: NgramSpeedups) -> tuple[list[int], list[int], dict[tuple[int, int], float]]:
    """Its n, its m, and the highest speed-up of each pair (ngram-map-k4v has several)."""
    cells: dict[tuple[int, int], float] = {}
    for s, v in m.speedups.items():
        cells[s.n, s.m] = max(v, cells.get((s.n, s.m), 0.0))
    return sorted({n for n, _ in cells}), sorted({m for _, m in cells}), cells
