"""Tuning results built by hand, for tests of how they are displayed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Measurement, Response
from specllama.tuning.records import (
    Baseline,
    Confirmation,
    DroppedSetting,
    LongPromptResult,
    NgramSpeedups,
    Prediction,
    Trial,
    TuningResult,
)
from specllama.tuning.speedup import Step, StepCost, StepLog
from specllama.tuning.statistics import MethodTime, TimeSplit

DRAFT = Path("/models/d2.gguf")
DRAFTED = Speculation(("draft-simple",), DRAFT, n_max=3)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(4, 8))
COSTS = VerifyCosts(
    StepCost(90.0, 0.4, 20),
    {1: 90.0, 2: 121.0, 3: 128.0, 5: 160.0, 9: 220.0, 17: 339.0, 33: 577.0, 49: 833.0},
)
REASON = "draft-simple d2.gguf K=3 is 1.12x plain decoding (1.05 to 1.21)"


def ratios(value: float, n: int = 8, spread: float = 0.08) -> Ratios:
    """`n` texts around a speed-up."""
    logs = (math.log(value) + spread * math.sin(2.4 * i) for i in range(n))
    return Ratios(tuple(logs), (63.0,) * n)


def answer(steps: tuple[Step, ...], ms: float = 5000.0, prompt: int = 120) -> Response:
    drafted, accepted = sum(s.drafted for s in steps), sum(s.accepted for s in steps)
    tokens = 64
    return Response(prompt, 900.0, 950.0, tokens, ms, drafted, accepted, "word", steps)


def steps(k: int, n: int = 12) -> tuple[Step, ...]:
    """Steps that draft k tokens each, of which fewer and fewer are accepted."""
    return tuple(Step(k, (i * 5 + i // 3) % (k + 1), 114.0 + 33.0 * k + i % 4) for i in range(n))


def plain() -> Baseline:
    answers = tuple(answer((), 90.0 * 63, 80 + 40 * i) for i in range(8))
    return Baseline(Measurement(answers), COSTS, load_s=2.0)


def trial(spec: Speculation = DRAFTED, top: int = 8, best: float = 1.18) -> Trial:
    log = StepLog(tuple(s for k in range(top + 1) for s in steps(k, 3)))
    answers = tuple(answer(steps(top, 14 + i)) for i in range(8))
    curve = {k: ratios(best / (1 + 0.02 * (k - 3) ** 2)).interval() for k in range(1, top + 1)}
    return Trial(
        replace(spec, n_max=top),
        Measurement(answers),
        log,
        11.0,
        StepCost(91.0, 0.5, 8),
        curve,
        TimeSplit(1000.0, {"draft-simple": MethodTime(160.0, 100, 50)}),
    )


def sizes_map(method: str = "ngram-simple", best: float = 1.4, draft: str = "") -> NgramSpeedups:
    ns, ms = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24), (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48)

    def speed(n: int, m: int) -> float:
        distance = abs(math.log2(n / 4)) / 2 + abs(math.log2(m / 6)) / 3
        return round(best - 0.25 * distance, 3)

    return NgramSpeedups(
        method, {NgramSizes(n, m): speed(n, m) for n in ns for m in ms if m >= n}, draft
    )


def confirmation(spec: Speculation = DRAFTED, value: float = 1.12, n: int = 9) -> Confirmation:
    own = ratios(value, n)
    k = spec.n_max if spec.uses_draft else 8
    return Confirmation(
        spec,
        Measurement(tuple(answer(steps(k, 16 + i), 5000.0, 60 + 50 * i) for i in range(n))),
        own,
        own,
        own.interval(),
        own.chance_below(1.0),
        90.5,
        ratios(value + 0.05).interval(),
        TimeSplit(1000.0, {"draft-simple": MethodTime(120.0, 100, 50)}),
        same_text=0.5,
        deep=LongPromptResult(2048, 0.41, 0.98),
    )


def tuned(state: str = "decided", best: bool = True) -> TuningResult:
    """A confirmed draft, an n-gram setting that also pays off, and a method that crashed."""
    draft_arm, ngram_arm = confirmation(), confirmation(NGRAM, 1.08, 7)
    slow = Prediction(
        replace(NGRAM, methods=("ngram-mod",)), ratios(1.0), "replayed over 8 plain answers"
    )
    return TuningResult(
        "code",
        plain(),
        (trial(),),
        (
            sizes_map(),
            sizes_map("ngram-mod", 1.0),
            sizes_map("ngram-map-k", 1.2, "draft-simple d2.gguf K=3"),
        ),
        (
            Prediction(DRAFTED, ratios(1.18), "one launch at K=8, 8 answers"),
            Prediction(NGRAM, ratios(1.4, spread=0.3), "replayed over 8 plain answers"),
            slow,
        ),
        (draft_arm, ngram_arm),
        draft_arm if best else None,
        REASON,
        (
            DroppedSetting(
                "ngram-mod n=4 m=8",
                f"{slow.ratios.value:.2f}x predicted (replayed over 8 plain answers)",
            ),
            DroppedSetting("draft-mtp", "llama-server exited: it crashed (SIGSEGV)", True),
        ),
        4,
        57.3,
        state,
    )
