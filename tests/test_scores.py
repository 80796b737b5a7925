"""The scores that benchmarks/real.py computes from its measurements."""

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


def test_a_temporarily_slow_machine_changes_no_ratio() -> None:
    """The machine is twice as slow while the second prompt is answered."""
    shots = Shots(
        [
            Shot("plain", (0, 0), ms_per_token=100.0, tokens=41),
            Shot("plain", (1, 0), ms_per_token=200.0, tokens=41),
            Shot("plain", (2, 0), ms_per_token=100.0, tokens=41),
            Shot("K=2", (0, 0), ms_per_token=50.0, tokens=41),
            Shot("K=2", (1, 0), ms_per_token=100.0, tokens=41),
            Shot("K=2", (3, 0), ms_per_token=999.0, tokens=41),
        ]
    )
    found = shots.ratio("K=2", "plain")
    assert found.logs == pytest.approx([math.log(2.0)] * 2)  # only the rounds with both settings
    assert shots.ratio("K=2", "plain", rounds=[1]).value == pytest.approx(2.0)
    assert shots.swing("plain") == 2.0


def test_very_short_responses_are_ignored() -> None:
    long, short = (Shot("a", (0, i), 25.0, n) for i, n in ((0, 40), (1, 3)))
    faster = [replace(s, setting="b", ms_per_token=12.5) for s in (long, short)]
    shots = Shots([long, short, *faster])
    assert len(shots.ratio("b", "a")) == 1
    assert shots.ratio("b", "a").value == pytest.approx(2.0)


def test_each_verdict_has_its_condition() -> None:
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


def test_missed_goals_are_marked_in_the_summary() -> None:
    on_time = summary([RIGHT, replace(RIGHT, kept=_ratios(0.99))], 60.0)
    assert "MISSED" not in on_time
    late = summary([RIGHT, replace(RIGHT, kept=_ratios(0.9), seconds=63.0)], 60.0)
    assert late.count("MISSED") == 2  # the worst is under 0.93, and 61.5 s


def test_a_row_is_as_wide_as_its_header() -> None:
    assert {len(x) for x in header().splitlines()} == {len(RIGHT.line())}
    assert RIGHT.line().count("|") == header().splitlines()[0].count("|")


@pytest.mark.parametrize("workload", sorted({c.workload for c in CASES}))
def test_benchmark_prompts_are_not_in_the_profiles(workload: str) -> None:
    held_out = (PROMPTS / f"{workload}.txt").read_text(encoding="utf-8").split("\n=====\n")
    known = {as_text(p).strip() for p in workloads.load_workload(workload).prompts}
    assert len(held_out) >= 12
    assert not known & {p.strip() for p in held_out}
