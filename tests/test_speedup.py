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


def test_counts_of_a_single_step() -> None:
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
def test_acceptance_is_recovered_from_tau(p: float, k: int) -> None:
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


def steps_over(bits: list[bool], k: int) -> StepLog:
    """The steps of a draft of k tokens over a text; True: the draft predicts this token."""
    out, at = [], 0
    while at + k + 1 <= len(bits):
        accepted = 0
        while accepted < k and bits[at + accepted]:
            accepted += 1
        out.append(Step(k, accepted, 1.0))
        at += accepted + 1
    return StepLog(tuple(out))


def simulated_responses(
    k: int, p: float, decline: float, seeds: range = range(40)
) -> list[StepLog]:
    """Responses of a head whose first token is right with probability p; `decline` is subtracted for
    each further position."""
    out = []
    for seed in seeds:
        rng = random.Random(seed)
        u = [rng.random() for _ in range(400)]
        steps, at = [], 0
        while at + k + 1 <= len(u):
            accepted = 0
            while accepted < k and u[at + accepted] < p - decline * accepted:
                accepted += 1
            steps.append(Step(k, accepted, 1.0))
            at += accepted + 1
        out.append(StepLog(tuple(steps)))
    return out


def observed_tau(logs: list[StepLog]) -> float:
    """τ over all responses."""
    return sum(log.tokens for log in logs) / sum(len(log.steps) for log in logs)


def joined_log(logs: list[StepLog]) -> StepLog:
    return StepLog(tuple(s for log in logs for s in log.steps))


def replayed(logs: list[StepLog], k: int, by_depth: Trend) -> float:
    found = [replayed_tau(log, k, by_depth) for log in logs]
    return sum(log.tokens for log in logs) / sum(
        log.tokens / t for log, t in zip(logs, found, strict=True)
    )


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_shorter_lengths_of_a_head_that_declines_with_depth(k: int) -> None:
    """MTP: 85 % at the first token, 8 points less at each further one."""
    at_8 = simulated_responses(8, 0.85, 0.08)
    declines = trend(joined_log(at_8))
    assert declines.slope == pytest.approx(-0.08, abs=0.01)
    assert declines.at(1) == pytest.approx(0.85, abs=0.02)
    truth = observed_tau(simulated_responses(k, 0.85, 0.08))
    assert replayed(at_8, k, declines) == pytest.approx(truth, rel=0.015)


def test_without_the_trend_a_short_draft_of_it_is_underestimated() -> None:
    at_8, truth = (
        simulated_responses(8, 0.85, 0.08),
        observed_tau(simulated_responses(2, 0.85, 0.08)),
    )
    mean = trend(joined_log(at_8)).mean
    assert replayed(at_8, 2, Trend(mean, 0.0, mean)) < 0.97 * truth


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_draft_model_without_decline_has_no_trend(k: int) -> None:
    at_8 = simulated_responses(8, 0.7, 0.0)
    found = trend(joined_log(at_8))
    assert found.slope == 0.0
    assert replayed(at_8, k, found) == pytest.approx(
        observed_tau(simulated_responses(k, 0.7, 0.0)), rel=0.015
    )


def test_random_variation_is_rarely_taken_for_a_decline() -> None:
    """Short logs of a draft without a decline rarely show one."""
    declining = sum(
        trend(joined_log(simulated_responses(8, 0.7, 0.0, range(s, s + 1)))).slope < 0
        for s in range(100)
    )
    assert declining <= 6


def test_the_replay_of_the_launched_length_is_the_measured_tau() -> None:
    log = StepLog((Step(2, 2, 1.0), Step(2, 0, 1.0), Step(2, 1, 1.0), Step(0, 0, 1.0)))
    assert replayed_tau(log, 2, LEVEL) == pytest.approx(7 / 4, rel=0.05)
    assert replayed_tau(StepLog(()), 4, LEVEL) == 1.0


def test_shorter_drafts_start_at_other_tokens() -> None:
    """Text of four easy tokens and a hard one: a long draft starts every step on an easy one; a draft
    of one token starts one step in three on the hard one."""
    rng = random.Random(1)
    bits = [[(i % 5) < 4 and rng.random() < 0.97 for i in range(600)] for _ in range(5)]
    logs = [steps_over(b, 8) for b in bits]
    for k in (1, 2, 4, 8):
        truth = observed_tau([steps_over(b, k) for b in bits])
        found = replayed(logs, k, Trend(0.9, 0.0, 0.9))
        assert found == pytest.approx(truth, rel=0.03)
    naive = 1 + sum(log.acceptance[0] for log in logs) / len(logs)
    assert abs(naive - observed_tau([steps_over(b, 1) for b in bits])) > 0.1


# ---- costs -----------------------------------------------------------------------


def test_break_even_by_hand() -> None:
    # one token for 12 ms: p = 0.2; longer drafts need more
    assert break_even({1: StepCost(12, 0, 9)}, 10.0) == pytest.approx(0.2, abs=1e-6)
    assert break_even({1: StepCost(25, 0, 9)}, 10.0) is None  # two tokens in the time of 2.5
    assert break_even(CURVE, 10.0) == pytest.approx(0.2, abs=1e-3)
    faster = {0: StepCost(9, 0, 9), 1: StepCost(25, 0, 9)}  # a step without a draft is none
    assert break_even(faster, 10.0) is None


def test_a_linear_cost_is_fitted_exactly() -> None:
    log = StepLog(tuple(Step(k, 0, 10 + 2.5 * k) for k in (0, 1, 2, 4, 8) for _ in range(3)))
    assert fit_cost(log) == pytest.approx((10.0, 2.5), abs=1e-9)
    assert fit_cost(StepLog(())) == (0.0, 0.0)


@pytest.mark.parametrize(("p", "k"), [(0.3, 3), (0.7, 4), (0.9, 8)])
def test_acceptance_and_cost_agree_with_a_simulation(p: float, k: int) -> None:
    rng = random.Random(4)

    def step() -> Step:
        accepted = 0
        while accepted < k and rng.random() < p:
            accepted += 1
        return Step(k, accepted, (10 + k) * rng.gauss(1, 0.05))

    log = StepLog(tuple(step() for _ in range(4000)))
    assert log.tokens_per_step == pytest.approx(constant_tau(p, k), rel=0.03)
    for i, a in enumerate(log.acceptance, 1):
        assert a == pytest.approx(p**i, abs=0.03)
    cost = log.cost(k)
    assert cost is not None
    assert abs(cost.ms - (10 + k)) < 4 * cost.error


def test_a_single_slow_step_does_not_change_the_cost() -> None:
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


def test_differences_within_two_percent_are_no_outliers() -> None:
    cost = StepLog(tuple(Step(2, 1, ms) for ms in (10.0, 10.0, 10.0, 10.1))).cost(2)
    assert cost is not None
    assert cost.n == 4
    assert cost.ms == pytest.approx(10.025)


def test_equal_times_still_have_an_error() -> None:
    cost = StepLog((Step(2, 1, 10.0),) * 4).cost(2)
    assert cost == StepCost(10.0, 0.01 * 10.0 / 2, 4)


steps = st.lists(
    st.integers(0, 16).flatmap(
        lambda k: st.builds(Step, st.just(k), st.integers(0, k), st.floats(0.01, 1e4))
    ),
    max_size=40,
)


@given(steps, st.integers(1, 16))
def test_any_log_gives_possible_values(found: list[Step], k: int) -> None:
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
