"""Verification costs and the upper bound of a draft's gain: worked examples, and any input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.tuning.costs import (
    VerifyCosts,
    best_length,
    drafted_gain,
    needed_acceptance,
    verify_costs,
    why_no_draft,
)
from specllama.tuning.speedup import StepCost

PLAIN = StepCost(90.0, 0.5, 20)
# measured on one thread (shared/tuner.md)
MEASURED = {
    1: [85.0, 91.0, 88.0],
    2: [121.0],
    3: [128.0],
    5: [160.0],
    9: [220.0, 230.0],
    17: [339.0],
}


def test_verify_costs_are_interpolated_but_not_extrapolated() -> None:
    costs = VerifyCosts(PLAIN, {1: 90.0, 2: 121.0, 5: 160.0})
    assert costs.of(1) == 90.0
    assert costs.of(3) == pytest.approx(134)
    assert costs.of(5) == 160.0
    assert costs.of(6) is None
    assert costs.of(0) is None
    assert costs.longest == 5
    assert costs.step == 90.0


def test_without_measurements_only_the_plain_step_is_known() -> None:
    costs = VerifyCosts(PLAIN)
    assert not costs.known
    assert (costs.of(1), costs.of(2), costs.longest, costs.step) == (90.0, None, 1, 90.0)
    assert why_no_draft(costs, 1e9, 8, 1.03) == ""
    assert best_length(costs, 0.8, 9.0, 7) == 7, "the longest, where V is not known"


def test_several_slots_share_one_pass() -> None:
    costs = VerifyCosts(StepCost(40.0, 0.1, 9), {1: 40.0, 4: 50.0, 8: 70.0, 17: 200.0}, slots=4)
    assert costs.step == 50.0
    assert costs.of(2) == 70.0
    assert costs.longest == 4
    assert costs.of(5) is None
    too_short = VerifyCosts(StepCost(40.0, 0.1, 9), {1: 40.0, 4: 50.0}, slots=4)
    assert why_no_draft(too_short, 1.0, 8, 1.03) == "", "nothing is known about a drafted token"


def test_costs_are_medians_relative_to_a_batch_of_one() -> None:
    costs = verify_costs(MEASURED, PLAIN, 0.0)
    # a batch of one takes 88 ms and a step 90 ms: neither includes a request's overhead
    assert costs.of(2) == pytest.approx(90 + 121 - 88)
    assert costs.of(9) == pytest.approx(90 + 225 - 88)
    assert costs.of(1) == 90.0
    assert not verify_costs({}, PLAIN, 0.2).known


def test_the_output_matrix_is_added_for_all_rows_but_one() -> None:
    """It is 6.8% of the weights; at 17 ms per token, each further row costs 1.24 ms. Measured: 232 ms
    with 8 drafted tokens and 374 ms with 16. This gives 230 and 363."""
    line = {b: [88 + 16.5 * (b - 1)] for b in (1, 2, 9, 17)}
    costs = verify_costs(line, StepCost(88.0, 0.5, 9), 0.068)
    assert costs.of(9) == pytest.approx(88 + 16.5 * 8 / 0.932)
    assert costs.of(17) == pytest.approx(88 + 16.5 * 16 / 0.932)


def test_a_model_that_is_almost_only_an_output_matrix_has_a_limited_cost() -> None:
    line = {1: [10.0], 2: [12.0], 3: [4.0]}
    costs = verify_costs(line, StepCost(10.0, 0.1, 9), 1.0)
    assert costs.of(2) == pytest.approx(10 + 2 * 10), "a share of nine tenths at most"
    assert costs.of(3) == 5.0, "half a plain step at least"


def test_the_slowest_costs_are_two_standard_errors_above() -> None:
    slow = VerifyCosts(StepCost(90.0, 0.5, 20), {1: 90.0, 2: 121.0}).at_slowest
    assert slow == VerifyCosts(StepCost(91.0, 0.5, 20), {1: 91.0, 2: 122.0})


def test_costs_without_the_short_batches_that_a_sliding_window_prevents() -> None:
    costs = verify_costs({5: [160.0], 9: [225.0]}, PLAIN, 0.0)
    assert costs.of(5) == pytest.approx(160)
    assert costs.of(3) == pytest.approx(125)


def test_gain_of_a_hand_worked_example() -> None:
    costs = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 2: 12.0, 3: 14.0})
    # 1 + 0.5 + 0.25 tokens for V(3) and three passes of 1 ms
    assert drafted_gain(costs, 0.5, 2, 1.0) == pytest.approx(1.75 * 10 / 17)
    assert drafted_gain(costs, 0.5, 2, 1.0, one_pass=True) == pytest.approx(1.75 * 10 / 16)
    assert drafted_gain(costs, 0.5, 3, 1.0) is None
    assert best_length(costs, 0.3, 1.0, 8) == 1
    assert best_length(costs, 0.95, 1.0, 8) == 2


def test_needed_acceptance() -> None:
    costs = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 2: 12.0})
    # (1 + p)·10 / (12 + 2·1) = 1.03
    assert needed_acceptance(costs, 1.0, 1, 1.03) == pytest.approx(1.03 * 1.4 - 1)
    assert needed_acceptance(costs, 5.0, 1, 1.03) is None


def test_reasons_why_no_draft_can_pay_off() -> None:
    expensive = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 2: 22.0, 3: 34.0})
    assert why_no_draft(expensive, 0.0, 8, 1.03) == (
        "no draft can pay off here: verifying 2 tokens takes as long as 2.2 plain steps, so even "
        "a free draft at 100% acceptance gives 0.91x"
    )
    cheap = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 2: 10.5})
    assert why_no_draft(cheap, 9.0, 8, 1.03) == (
        "drafting takes 9.0 ms per token, plain decoding 10.0 ms: not even 100% acceptance would "
        "pay off"
    )
    assert why_no_draft(cheap, 4.4, 8, 1.03) == (
        "1.03x would need 99% acceptance per token here; more than 95% has never been observed"
    )
    assert why_no_draft(cheap, 1.0, 8, 1.03) == ""


curves = st.dictionaries(st.integers(2, 65), st.floats(1, 1e4), max_size=8).map(
    lambda d: VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, **d} if d else {})
)


@given(curves, st.floats(0, 1), st.floats(0, 100), st.integers(1, 20), st.booleans())
def test_the_bounds_hold_for_any_costs(
    costs: VerifyCosts, p: float, draft_ms: float, longest: int, one_pass: bool
) -> None:
    k = best_length(costs, p, draft_ms, longest, one_pass)
    assert 1 <= k <= longest
    needed = needed_acceptance(costs, draft_ms, longest, 1.03, one_pass)
    if needed is not None:
        best = max(
            drafted_gain(costs, needed, k, draft_ms, one_pass) or 0 for k in range(1, longest + 1)
        )
        assert best >= 1.03
    why_no_draft(costs, draft_ms, longest, 1.03, one_pass)
    for b in range(1, 70):
        ms = costs.of(b)
        assert ms is None or min(costs.verify.values(), default=10) <= ms <= max(
            costs.verify.values(), default=10
        )


@given(
    st.dictionaries(st.integers(1, 65), st.lists(st.floats(0.01, 1e4), max_size=4)),
    st.floats(-1, 2),
    st.integers(1, 8),
)
def test_any_samples_give_positive_costs(
    samples: dict[int, list[float]], share: float, slots: int
) -> None:
    costs = verify_costs(samples, PLAIN, share, slots)
    assert all(ms > 0 for ms in costs.verify.values())
    assert costs.step > 0
