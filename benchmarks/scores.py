"""Evaluates the tuner for benchmarks/real.py: rows, verdicts, whether the goals are met. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specllama.engine.settings import Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.records import TuningResult

FALSE_ON, FALSE_OFF = 0.98, 1.05
KEPT_MEDIAN, KEPT_WORST = 0.97, 0.93
_COLUMNS = (
    ("case", 11),
    ("tuner chose", 28),
    ("÷ plain", 7),
    ("best of the grid", 20),
    ("its ÷ plain", 11),
    ("kept", 11),
    ("÷ default", 9),
    ("verdict", 9),
    ("loads", 5),
    ("s", 3),
)


@dataclass(frozen=True)
class Row:
    """One case, once. `plain`, `kept`, `by_default`: what the tuner chose ÷ plain decoding, ÷
    the best of the grid, ÷ the better of the defaults; `best_gain`: the best of the grid ÷
    plain, measured anew. `grid`: name → (÷ plain, as the tuner predicted it); `own`: the
    tuner's prediction of its choice; `swing`: slowest ÷ fastest machine meanwhile."""

    case: str
    chosen: str
    on: bool
    plain: Ratios
    kept: Ratios
    best: str
    best_gain: Ratios
    default: str
    by_default: Ratios
    loads: int
    load_s: float
    seconds: float
    swing: float = 1.0
    grid: Mapping[str, tuple[Ratios, float | None]] = field(default_factory=dict)
    reason: str = ""
    own: float | None = None

    @property
    def speedup(self) -> float:
        return self.plain.value if self.on else 1.0

    @property
    def share(self) -> float:
        """Speed kept: 1 where the grid knows nothing better."""
        if self.chosen == self.best:
            return 1.0
        return self.kept.value if self.on else min(1.0, self.kept.value)

    @property
    def verdict(self) -> str:
        if self.on and self.speedup < FALSE_ON:
            return "false on"
        if not self.on and self.chosen != self.best and self.best_gain.value >= FALSE_OFF:
            return "false off"
        return "right" if self.share >= KEPT_WORST else "slow"

    def line(self) -> str:
        known_best = self.share == 1.0
        cells = (
            self.case,
            self.chosen,
            f"{self.speedup:.2f}",
            self.best,
            f"{self.best_gain.value:.2f}",
            "1" if known_best else _with_error(self.kept),
            f"{self.by_default.value:.2f}",
            self.verdict,
            str(self.loads),
            f"{self.seconds:.0f}",
        )
        return _joined(cells)

    def details(self) -> str:
        """The grid beside the predictions, and the tuner's own words."""
        cells = [f"{name} {_beside(r, guess)}" for name, (r, guess) in self.grid.items()]
        return (
            f"- {self.case}: {self.chosen} {_beside(self.plain, self.own)}; the better default is "
            f"{self.default}; one load {self.load_s:.1f} s; the machine's slowest ÷ fastest "
            f"{self.swing:.2f}. {'; '.join(cells)}. Tuner: {self.reason}"
        )


def _beside(measured: Ratios, guess: float | None) -> str:
    said = _with_error(measured) if len(measured) else "not measured"
    return said + (f" ({guess:.2f})" if guess is not None else "")


def _with_error(r: Ratios) -> str:
    return f"{r.value:.2f} ±{r.error * r.value:.2f}" if len(r) > 1 else f"{r.value:.2f}"


def header() -> str:
    return f"{_joined([n for n, _ in _COLUMNS])}\n{_joined(['-' * w for _, w in _COLUMNS])}"


def _joined(cells: Sequence[str]) -> str:
    padded = (c.ljust(width) for c, (_, width) in zip(cells, _COLUMNS, strict=True))
    return f"| {' | '.join(padded)} |"


def summary(rows: Sequence[Row], budget: float) -> str:
    """The goals of the tuner, and whether these rows meet them."""
    if not rows:
        return "nothing was measured"
    shares = [r.share for r in rows]
    slowest = min(r.speedup for r in rows)
    late = max(r.seconds - r.load_s for r in rows)
    wrong = [sum(r.verdict == v for r in rows) for v in ("false on", "false off")]
    defaults = [r.by_default.value for r in rows]
    return "\n".join(
        (
            f"- speed kept: median {statistics.median(shares):.2f} (goal {KEPT_MEDIAN}), worst "
            f"{min(shares):.2f} (goal {KEPT_WORST}): "
            + _met(statistics.median(shares) >= KEPT_MEDIAN and min(shares) >= KEPT_WORST),
            f"- ÷ plain: median {statistics.median(r.speedup for r in rows):.2f}, worst "
            f"{slowest:.2f} (goal {FALSE_ON}): {_met(slowest >= FALSE_ON)}",
            f"- ÷ the better default: median {statistics.median(defaults):.2f}, worst "
            f"{min(defaults):.2f}",
            f"- false on {wrong[0]}, false off {wrong[1]} of {len(rows)}; loads: "
            f"{min(r.loads for r in rows)} to {max(r.loads for r in rows)}",
            f"- seconds less one load: worst {late:.1f} (goal {budget:.0f}): {_met(late <= budget)}",
        )
    )


def _met(yes: bool) -> str:
    return "met" if yes else "MISSED"


def predicted(found: TuningResult | None, spec: Speculation | None) -> float | None:
    """The speed-up that the tuner predicted for a setting, where it did."""
    if found is None or spec is None:
        return None
    if spec.uses_draft and not spec.uses_ngram:
        for t in found.trials:
            if t.speculation.methods == spec.methods and spec.n_max in t.curve:
                return t.curve[spec.n_max].value
    if spec.ngram is not None and not spec.uses_draft:
        for m in found.ngrams:
            if not m.draft and (m.method,) == spec.methods and spec.ngram in m.speedups:
                return m.speedups[spec.ngram]
    known = (p.ratios for p in found.predictions if p.speculation == spec and len(p.ratios))
    return next((k.value for k in known), None)
