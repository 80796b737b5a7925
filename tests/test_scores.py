"""What benchmarks/real.py makes of its measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.grid import Shot, Shots
from benchmarks.real import CASES
from benchmarks.scores import Row, header, summary
from specllama import workloads
from specllama.prompts import as_text
from specllama.tuning.confidence import Ratios

PROMPTS = Path(__file__).parent.parent / "benchmarks" / "prompts"


def _ratios(value: float) -> Ratios:
    return Ratios((math.log(value),), (1.0,))


RIGHT = Row(
    case="code-draft",
    chosen="draft-simple K=2",
    on=True,
    plain=_ratios(1.2),
    kept=_ratios(0.98),
    best="draft-simple K=3",
    best_gain=_ratios(1.22),
    default="draft-simple K=4",
    by_default=_ratios(1.05),
    loads=3,
    load_s=1.5,
    seconds=60.5,
)


def test_a_slow_minute_changes_no_ratio() -> None:
    """Plain answers while the machine is twice as slow as when the draft's does."""
    shots = Shots(
        [
            Shot("plain", False, (0, 0), ms=4000, tokens=41, steps=(100.0,)),
            Shot("plain", False, (1, 0), ms=8000, tokens=41, steps=(200.0,)),
            Shot("plain", False, (2, 0), ms=4000, tokens=41, steps=(100.0,)),
            Shot("K=2", True, (0, 0), ms=2000, tokens=41, steps=(110.0,)),
            Shot("K=2", True, (1, 0), ms=2000, tokens=41, steps=(110.0,)),
            Shot("K=2", True, (3, 0), ms=9999, tokens=41, steps=(110.0,)),
        ]
    )
    found = shots.ratio("K=2", "plain")
    assert len(found) == 2  # only the rounds that both were in
    assert found.value == pytest.approx(2.0)
    assert shots.ratio("K=2", "plain", rounds=[1]).value == pytest.approx(2.0)


def test_answers_that_end_at_once_do_not_count() -> None:
    long, short = (Shot("a", False, (0, i), 1000, n, (100.0,)) for i, n in ((0, 40), (1, 3)))
    shots = Shots([long, short, *(replace(s, setting="b", ms=500) for s in (long, short))])
    assert len(shots.ratio("b", "a")) == 1
    assert shots.ratio("b", "a").value == pytest.approx(2.0)


def test_verdicts() -> None:
    off = replace(RIGHT, on=False, chosen="plain", kept=_ratios(0.9))
    cases = {
        "right": RIGHT,
        "slow": replace(RIGHT, kept=_ratios(0.9)),
        "false on": replace(RIGHT, plain=_ratios(0.97)),
        "false off": replace(off, best_gain=_ratios(1.06)),
    }
    assert {name: r.verdict for name, r in cases.items()} == {name: name for name in cases}
    assert replace(off, kept=_ratios(1.1)).share == 1.0  # the grid's best is slower than plain
    nothing_better = replace(off, best="plain", best_gain=Ratios(), kept=Ratios())
    assert (nothing_better.verdict, nothing_better.share) == ("right", 1.0)


def test_the_goals() -> None:
    said = summary([RIGHT, replace(RIGHT, kept=_ratios(0.99))], 60.0)
    assert "MISSED" not in said
    late = summary([RIGHT, replace(RIGHT, kept=_ratios(0.9), seconds=63.0)], 60.0)
    assert late.count("MISSED") == 2  # the worst is under 0.93, and 61.5 s


def test_a_row_is_as_wide_as_its_header() -> None:
    assert {len(x) for x in header().splitlines()} == {len(RIGHT.line())}
    assert RIGHT.line().count("|") == header().splitlines()[0].count("|")


@pytest.mark.parametrize("workload", sorted({c.workload for c in CASES}))
def test_prompts_are_held_out(workload: str) -> None:
    held_out = (PROMPTS / f"{workload}.txt").read_text(encoding="utf-8").split("\n=====\n")
    known = {as_text(p).strip() for p in workloads.load(workload).prompts}
    assert len(held_out) >= 12
    assert not known & {p.strip() for p in held_out}
