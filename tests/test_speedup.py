"""The arithmetic: by hand, against simulation, and for any input."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafts.acceptance import constant_acceptance, constant_tau
from specllama.tuning.speedup import (
    Step,
    StepCost,
    StepLog,
    Trend,
    agreement,
    break_even,
    conditional,
    effective_acceptance,
    fit_cost,
    replayed_tau,
    trend,
)

CURVE = {k: StepCost(10 + 2 * k, 0.01, 50) for k in range(1, 6)}
LEVEL = Trend(0.7, 0.0, 0.7)


def test_the_guides_example() -> None:
    """2 of 5 accepted gives 3 tokens in one cycle."""
    log = StepLog((Step(5, 2, 20.0),))
    assert (log.tokens, log.tokens_per_step, log.alpha) == (3, 3.0, 0.4)
    assert effective_acceptance(0.4, 5) == 2.0


def test_tau_by_hand() -> None:
    assert constant_tau(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert constant_tau(1.0, 4) == 5.0
    assert constant_tau(0.0, 4) == 1.0
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx((0.8, 0.5, 0.25))
    assert conditional([0.5, 0.0, 0.0]) == (0.5, 0.0, 0.0)


@given(st.floats(0, 1), st.integers(1, 16))
def test_tau_and_back(p: float, k: int) -> None:
    assert constant_acceptance(constant_tau(p, k), k) == pytest.approx(p, abs=1e-6)


def test_acceptance_by_position_by_hand() -> None:
    # four drafts of 3 (accepted 3, 1, 0, 2) and one of 1, cut short by the end of a request
    steps = [Step(3, a, 1.0) for a in (3, 1, 0, 2)] + [Step(1, 1, 1.0), Step(0, 0, 1.0)]
    assert StepLog(tuple(steps)).acceptance == pytest.approx((4 / 5, 2 / 4, 1 / 4))


def test_agreement_by_hand() -> None:
    # drafts of 3: two right, then a wrong one; nothing right; all right and one unknown
    log = StepLog((Step(3, 2, 1.0), Step(3, 0, 1.0), Step(3, 3, 1.0), Step(0, 0, 1.0)))
    assert agreement(log) == [True, True, False, False, True, True, True, True, False]


# ---- other lengths, from one launch ----------------------------------------------


def answer(bits: list[bool], k: int) -> StepLog:
    """What a draft of k tokens makes of a text of which it guesses the tokens with a True."""
    out, at = [], 0
    while at + k + 1 <= len(bits):
        kept = 0
        while kept < k and bits[at + kept]:
            kept += 1
        out.append(Step(k, kept, 1.0))
        at += kept + 1
    return StepLog(tuple(out))


def launched(k: int, p: float, decline: float, seeds: range = range(40)) -> list[StepLog]:
    """Answers of a head that is right with probability p at its first token and less by
    `decline` at each further one."""
    out = []
    for seed in seeds:
        rng = random.Random(seed)
        u = [rng.random() for _ in range(400)]
        steps, at = [], 0
        while at + k + 1 <= len(u):
            kept = 0
            while kept < k and u[at + kept] < p - decline * kept:
                kept += 1
            steps.append(Step(k, kept, 1.0))
            at += kept + 1
        out.append(StepLog(tuple(steps)))
    return out


def seen(logs: list[StepLog]) -> float:
    """τ over all answers."""
    return sum(log.tokens for log in logs) / sum(len(log.steps) for log in logs)


def joined(logs: list[StepLog]) -> StepLog:
    return StepLog(tuple(s for log in logs for s in log.steps))


def replayed(logs: list[StepLog], k: int, by_depth: Trend) -> float:
    found = [replayed_tau(log, k, by_depth) for log in logs]
    return sum(log.tokens for log in logs) / sum(
        log.tokens / t for log, t in zip(logs, found, strict=True)
    )


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_head_that_declines_with_depth(k: int) -> None:
    """MTP: 85 % at the first token, 8 points less at each further one."""
    at_8 = launched(8, 0.85, 0.08)
    declines = trend(joined(at_8))
    assert declines.slope == pytest.approx(-0.08, abs=0.01)
    assert declines.at(1) == pytest.approx(0.85, abs=0.02)
    truth = seen(launched(k, 0.85, 0.08))
    assert replayed(at_8, k, declines) == pytest.approx(truth, rel=0.015)


def test_without_the_correction_a_short_draft_of_it_would_seem_worse() -> None:
    at_8, truth = launched(8, 0.85, 0.08), seen(launched(2, 0.85, 0.08))
    mean = trend(joined(at_8)).mean
    assert replayed(at_8, 2, Trend(mean, 0.0, mean)) < 0.97 * truth


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_draft_model_does_not_decline_and_is_not_changed(k: int) -> None:
    at_8 = launched(8, 0.7, 0.0)
    found = trend(joined(at_8))
    assert found.slope == 0.0
    assert replayed(at_8, k, found) == pytest.approx(seen(launched(k, 0.7, 0.0)), rel=0.015)


def test_chance_is_no_decline() -> None:
    """Of short looks at a draft that does not decline, few seem to."""
    declining = sum(
        trend(joined(launched(8, 0.7, 0.0, range(s, s + 1)))).slope < 0 for s in range(100)
    )
    assert declining <= 6


def test_the_length_it_was_launched_with_is_kept() -> None:
    log = StepLog((Step(2, 2, 1.0), Step(2, 0, 1.0), Step(2, 1, 1.0), Step(0, 0, 1.0)))
    assert replayed_tau(log, 2, LEVEL) == pytest.approx(7 / 4, rel=0.05)
    assert replayed_tau(StepLog(()), 4, LEVEL) == 1.0


def test_shorter_drafts_begin_elsewhere() -> None:
    """Text of four easy tokens and a hard one: a long draft begins every step on an easy one;
    one of a single token begins one step in three on the hard one."""
    rng = random.Random(1)
    bits = [[(i % 5) < 4 and rng.random() < 0.97 for i in range(600)] for _ in range(5)]
    logs = [answer(b, 8) for b in bits]
    for k in (1, 2, 4, 8):
        truth = seen([answer(b, k) for b in bits])
        found = replayed(logs, k, Trend(0.9, 0.0, 0.9))
        assert found == pytest.approx(truth, rel=0.03)
    naive = 1 + sum(log.acceptance[0] for log in logs) / len(logs)
    assert abs(naive - seen([answer(b, 1) for b in bits])) > 0.1


# ---- costs -----------------------------------------------------------------------


def test_break_even_by_hand() -> None:
    # one token for 12 ms: p = 0.2; longer drafts need more
    assert break_even({1: StepCost(12, 0, 9)}, 10.0) == pytest.approx(0.2, abs=1e-6)
    assert break_even({1: StepCost(25, 0, 9)}, 10.0) is None  # two tokens for 2.5
    assert break_even(CURVE, 10.0) == pytest.approx(0.2, abs=1e-3)


def test_a_straight_line_is_found() -> None:
    log = StepLog(tuple(Step(k, 0, 10 + 2.5 * k) for k in (0, 1, 2, 4, 8) for _ in range(3)))
    assert fit_cost(log) == pytest.approx((10.0, 2.5), abs=1e-9)
    assert fit_cost(StepLog(())) == (0.0, 0.0)


@pytest.mark.parametrize(("p", "k"), [(0.3, 3), (0.7, 4), (0.9, 8)])
def test_simulation_agrees(p: float, k: int) -> None:
    rng = random.Random(4)

    def step() -> Step:
        kept = 0
        while kept < k and rng.random() < p:
            kept += 1
        return Step(k, kept, (10 + k) * rng.gauss(1, 0.05))

    log = StepLog(tuple(step() for _ in range(4000)))
    assert log.tokens_per_step == pytest.approx(constant_tau(p, k), rel=0.03)
    for i, a in enumerate(log.acceptance, 1):
        assert a == pytest.approx(p**i, abs=0.03)
    cost = log.cost(k)
    assert cost is not None
    assert abs(cost.ms - (10 + k)) < 4 * cost.error


def test_a_single_hiccup_does_not_shift_the_cost() -> None:
    log = StepLog((*(Step(2, 1, 10 + 0.1 * (i % 3)) for i in range(9)), Step(2, 1, 300.0)))
    cost = log.cost(2)
    assert cost is not None
    assert cost.ms == pytest.approx(10.1, abs=0.05)
    assert log.cost(3) is None


@pytest.mark.parametrize(("odd", "left_out"), [(10.6, False), (10.7, True)])
def test_a_step_beyond_four_times_the_usual_distance_is_left_out(
    odd: float, left_out: bool
) -> None:
    usual = [9.8, 9.9, 10.0, 10.1, 10.2, 9.9, 10.1, 9.8, 10.2]  # 0.15 with the odd one
    cost = StepLog(tuple(Step(2, 1, ms) for ms in [*usual, odd])).cost(2)
    assert cost is not None
    assert cost.n == (9 if left_out else 10)


def test_equal_times_are_not_a_cost_without_an_error() -> None:
    cost = StepLog((Step(2, 1, 10.0),) * 4).cost(2)
    assert cost == StepCost(10.0, 0.01 * 10.0 / 2, 4)


steps = st.lists(
    st.integers(0, 16).flatmap(
        lambda k: st.builds(Step, st.just(k), st.integers(0, k), st.floats(0.01, 1e4))
    ),
    max_size=40,
)


@given(steps, st.integers(1, 16))
def test_any_log(found: list[Step], k: int) -> None:
    log = StepLog(tuple(found))
    a = log.acceptance
    assert all(0 <= x <= 1 for x in a)
    assert all(x >= y for x, y in pairwise(a))
    t = trend(log)
    assert t.slope <= 0
    assert all(0 < t.at(d) < 1 for d in range(1, 20))
    assert 1 - 1e-9 <= replayed_tau(log, k, t) <= k + 1 + 1e-9
    assert len(agreement(log)) == log.tokens
    fixed, slope = fit_cost(log)
    assert math.isfinite(fixed + slope)
