"""probe's curves in text: speed-up by draft length, by n-gram sizes, the cost of verifying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specllama.cli.measured_settings import (
    best_sizes,
    few_sizes,
    map_name,
    measured_lengths,
    speedup_grid,
)

if TYPE_CHECKING:
    from specllama.tuning.confidence import Interval
    from specllama.tuning.costs import VerifyCosts
    from specllama.tuning.records import Confirmation, NgramSpeedups, Trial

_BAR = 40  # characters for the largest speed-up shown
_VERIFIED = (2, 4, 8, 16)


def speed_plot(trial: Trial, confirmations: Sequence[Confirmation]) -> Iterator[str]:
    """Speed-up against K: a bar for what is predicted, a mark for what was measured."""
    from specllama.tuning.records import method_label

    measured = measured_lengths(trial, confirmations)
    if not trial.curve and not measured:
        return
    yield f"speed-up by draft length K, {method_label(trial.speculation)} (│ = plain, ● = measured)"
    values = {k: i.value for k, i in measured.items()}
    most = max([v.value for v in trial.curve.values()] + list(values.values()) + [1.2])
    for k in sorted(set(trial.curve) | set(values)):
        yield _bar(k, trial.curve.get(k), values.get(k), most)


def _bar(k: int, predicted: Interval | None, measured: float | None, most: float) -> str:
    def at(value: float) -> int:
        return min(_BAR - 1, max(0, round(value / most * (_BAR - 1))))

    cells = ["█" if predicted and i <= at(predicted.value) else " " for i in range(_BAR)]
    cells[at(1.0)] = "│"
    if measured is not None:
        cells[at(measured)] = "●"
    text = f"{predicted.value:.2f}x predicted" if predicted else ""
    if measured is not None:
        text += f"{', ' if text else ''}{measured:.2f}x measured"
    return f"  K={k:<2} {''.join(cells)} {text}"


def ngram_table(maps: Sequence[NgramSpeedups]) -> Iterator[str]:
    """The map that predicts most, as a table; the best sizes of each other one. Not cross-validated,
    as the predictions that are confirmed are."""
    found = [m for m in maps if m.speedups]
    paying = [m for m in found if m.speedups[best_sizes(m)] > 1]
    if found and not paying:
        yield "speed-up by n-gram sizes: no size of any type is predicted to be over 1.00x"
    if not paying:
        return
    first = max(paying, key=lambda m: m.speedups[best_sizes(m)])
    best = best_sizes(first)
    yield f"speed-up by n-gram sizes, {map_name(first)} (predicted from all texts; [ ] = highest)"
    ns, ms, cells = speedup_grid(first)
    ns, ms = few_sizes(ns, (best.n,)), few_sizes(ms, (best.m,))
    yield f"  n\\m {''.join(f'{m:>6}' for m in ms)}"
    for n in ns:
        found_n = [(cells.get((n, m)), (n, m) == (best.n, best.m)) for m in ms]
        yield f"  {n:>3} {''.join(_cell(v, mark) for v, mark in found_n)}".rstrip()
    for other in paying:
        if other is not first:
            s = best_sizes(other)
            yield f"  {map_name(other)}: {other.speedups[s]:.2f}x at n={s.n} m={s.m}"


def _cell(value: float | None, best: bool) -> str:
    if value is None:
        return " " * 6
    return f"[{value:.2f}]" if best else f" {value:.2f} "


def verify_line(costs: VerifyCosts) -> str:
    """What verifying some tokens at once costs; "" when it is not known."""
    known = [(b, ms / costs.step) for b in _VERIFIED if (ms := costs.of(b)) is not None]
    if not costs.known or not known:
        return ""
    (b, x), *others = known
    more = "".join(f", {b} take {x:.1f}" for b, x in others)
    return f"{b} tokens take as long as {x:.1f} plain steps{more}"
