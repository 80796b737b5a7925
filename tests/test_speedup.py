"""The arithmetic: by hand, against simulation, and for any input."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.tuning.speedup import (
    Cost,
    Step,
    StepLog,
    agreement,
    break_even,
    combined,
    conditional,
    constant_acceptance,
    effective_acceptance,
    fit_cost,
    lengths_from_acceptance,
    oracle,
    paired_ratio,
    predict,
    replayed_lengths,
    tau,
    tau_constant,
)

CURVE = {k: Cost(10 + 2 * k, 0.01, 50) for k in range(1, 6)}
PLAIN = Cost(10.0, 0.01, 100)


def test_the_guides_example() -> None:
    """2 of 5 accepted gives 3 tokens in one cycle."""
    log = StepLog((Step(5, 2, 20.0),))
    assert (log.tokens, log.tokens_per_step, log.alpha) == (3, 3.0, 0.4)
    assert effective_acceptance(0.4, 5) == 2.0


def test_tau_by_hand() -> None:
    assert tau([0.8, 0.5, 0.2]) == pytest.approx(2.5)
    assert tau_constant(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert tau_constant(1.0, 4) == 5.0
    assert tau_constant(0.0, 4) == 1.0
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx((0.8, 0.5, 0.25))
    assert conditional([0.5, 0.0, 0.0]) == (0.5, 0.0, 0.0)


@given(st.floats(0, 1), st.integers(1, 16))
def test_tau_and_back(p: float, k: int) -> None:
    assert constant_acceptance(tau_constant(p, k), k) == pytest.approx(p, abs=1e-6)


def test_acceptance_by_position_by_hand() -> None:
    # four drafts of 3 (accepted 3, 1, 0, 2) and one of 1, cut short by the end of a request
    steps = [Step(3, a, 1.0) for a in (3, 1, 0, 2)] + [Step(1, 1, 1.0), Step(0, 0, 1.0)]
    assert StepLog(tuple(steps)).acceptance == pytest.approx((4 / 5, 2 / 4, 1 / 4))


def test_prediction_by_hand() -> None:
    found = predict(lengths_from_acceptance([0.8, 0.5, 0.2], 1000), CURVE, PLAIN)
    assert set(found) == {1, 2, 3}  # never past what was measured
    assert found[1].value == pytest.approx(1.8 / 12 * 10)
    assert found[2].value == pytest.approx(2.3 / 14 * 10)
    assert found[2].low < found[2].value < found[2].high


def test_agreement_by_hand() -> None:
    # drafts of 3: two right, then a wrong one; nothing right; all right and one unknown
    log = StepLog((Step(3, 2, 1.0), Step(3, 0, 1.0), Step(3, 3, 1.0), Step(0, 0, 1.0)))
    assert agreement(log) == [True, True, False, False, True, True, True, True, False]


def test_shorter_drafts_begin_elsewhere() -> None:
    """Text of four easy tokens and a hard one: a long draft begins every step on an easy one;
    one of a single token begins one step in three on the hard one."""
    rng = random.Random(1)
    bits = [[(i % 5) < 4 and rng.random() < 0.97 for i in range(600)] for _ in range(5)]

    def steps(answer: list[bool], k: int) -> StepLog:
        out, at = [], 0
        while at + k + 1 <= len(answer):
            kept = 0
            while kept < k and answer[at + kept]:
                kept += 1
            out.append(Step(k, kept, 1.0))
            at += kept + 1
        return StepLog(tuple(out))

    seen = [steps(answer, 8) for answer in bits]
    found = replayed_lengths(seen)
    for k in (1, 2, 4, 8):
        truth = [s for answer in bits for s in steps(answer, k).steps]
        tokens = sum(s.accepted + 1 for s in truth) / len(truth)
        assert found[k][0] == pytest.approx(tokens, rel=0.03)
    naive = 1 + sum(log.acceptance[0] for log in seen) / len(seen)
    assert abs(naive - found[1][0]) > 0.1


def test_break_even_by_hand() -> None:
    # one token for 12 ms: p = 0.2; longer drafts need more
    assert break_even({1: Cost(12, 0, 9)}, 10.0) == pytest.approx(0.2, abs=1e-6)
    assert break_even({1: Cost(25, 0, 9)}, 10.0) is None  # two tokens for 2.5
    assert break_even(CURVE, 10.0) == pytest.approx(0.2, abs=1e-3)


def test_a_straight_line_is_found() -> None:
    log = StepLog(tuple(Step(k, 0, 10 + 2.5 * k) for k in (0, 1, 2, 4, 8) for _ in range(3)))
    assert fit_cost(log) == pytest.approx((10.0, 2.5, 0.0), abs=1e-9)
    assert fit_cost(StepLog(())) == (0.0, 0.0, 0.0)


def test_a_combination_lies_between() -> None:
    copies, drafts = (9.0, 20.0), (2.0, 12.0)
    assert combined(0.0, copies, drafts) == pytest.approx(2 / 12)
    assert combined(1.0, copies, drafts) == pytest.approx(9 / 20)
    assert combined(0.5, copies, drafts) == pytest.approx(11 / 32)


def test_the_oracle_takes_the_best_of_each_prompt() -> None:
    assert oracle([[10, 10, 10], [5, 20, 10], [20, 5, 20]]) == pytest.approx(30 / 20)
    assert oracle([]) == 1.0


@pytest.mark.parametrize(("p", "k"), [(0.3, 3), (0.7, 4), (0.9, 8)])
def test_simulation_agrees(p: float, k: int) -> None:
    rng = random.Random(4)

    def step() -> Step:
        kept = 0
        while kept < k and rng.random() < p:
            kept += 1
        return Step(k, kept, (10 + k) * rng.gauss(1, 0.05))

    log = StepLog(tuple(step() for _ in range(4000)))
    assert log.tokens_per_step == pytest.approx(tau_constant(p, k), rel=0.03)
    for i, a in enumerate(log.acceptance, 1):
        assert a == pytest.approx(p**i, abs=0.03)
    found = predict(lengths_from_acceptance(log.acceptance, 4000), log.curve(), PLAIN)[k]
    true = tau_constant(p, k) / (10 + k) * 10
    assert found.low <= true <= found.high
    assert (found.high - found.low) / found.value < 0.1


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    hits = 0
    for seed in range(200):
        rng = random.Random(seed)
        base = [rng.gauss(10, 1) for _ in range(12)]
        other = [rng.gauss(8, 1) for _ in range(12)]
        i = paired_ratio(base, other, rounds=300, seed=seed)
        hits += i.low <= 1.25 <= i.high
    assert hits >= 176  # bootstrap over a dozen is a little short of 95 %


def test_one_pair_says_nothing() -> None:
    i = paired_ratio([10.0], [5.0])
    assert (i.value, i.low, i.high) == (2.0, 0.0, math.inf)
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


def test_pairs_without_a_speed_are_left_out() -> None:
    assert paired_ratio([10.0, 0.0, 10.0, 12.0], [5.0, 5.0, 0.0, 6.0]).value == 2
    with pytest.raises(ValueError, match="show a speed"):
        paired_ratio([0.0, 2.0], [1.0, 0.0])


def test_a_single_hiccup_does_not_shift_the_cost() -> None:
    log = StepLog((*(Step(2, 1, 10 + 0.1 * (i % 3)) for i in range(9)), Step(2, 1, 300.0)))
    cost = log.cost(2)
    assert cost is not None
    assert cost.ms == pytest.approx(10.1, abs=0.05)
    assert log.cost(3) is None


steps = st.lists(
    st.integers(0, 16).flatmap(
        lambda k: st.builds(Step, st.just(k), st.integers(0, k), st.floats(0.01, 1e4))
    ),
    max_size=40,
)


@given(steps)
def test_any_log(found: list[Step]) -> None:
    log = StepLog(tuple(found))
    a = log.acceptance
    assert all(0 <= x <= 1 for x in a)
    assert all(x >= y for x, y in pairwise(a))
    for k, i in predict(replayed_lengths([log]), log.curve(), PLAIN).items():
        assert 1 <= k <= len(a)
        assert i.low <= i.value <= i.high
    fixed, slope, error = fit_cost(log)
    assert math.isfinite(fixed + slope + error)
