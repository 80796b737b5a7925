"""Acceptance for every K where requests say their K: answers whose steps are not seen."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.tuning.by_request import LengthRequest, own_ms, rows_of
from specllama.tuning.costs import VerifyCosts, drafted_gain
from specllama.tuning.measure import Response
from specllama.tuning.speedup import StepCost

COSTS = VerifyCosts(StepCost(10.0, 0.1, 9), {b: 9.5 + 0.5 * b for b in (1, 2, 3, 5, 9, 17)})
OWN = 0.8


def answered(k: int, p: float, tokens: int = 400, n_max: int = 8, seed: int = 1) -> LengthRequest:
    """An answer by a draft whose guesses are right with probability p."""
    chance = random.Random(seed * 100 + k)
    made, drafted, accepted, ms = 1, 0, 0, 0.0
    while made < tokens:
        d = min(k, tokens - made - 1)
        right = next((i for i in range(d) if chance.random() > p), d)
        drafted, accepted, made = drafted + d, accepted + right, made + right + 1
        ms += (COSTS.of(k + 1) or 0.0) + OWN * (n_max + 1)
    return LengthRequest(k, Response(20, 5.0, 5.0, tokens, ms, drafted, accepted, "x", ()))


def test_what_the_draft_takes_is_what_verifying_leaves_over() -> None:
    found = [answered(k, 0.7) for k in (8, 2, 4)]
    assert own_ms(found, COSTS, 8, one_pass=False) == pytest.approx(OWN, rel=0.02)
    assert own_ms(found, COSTS, 8, one_pass=True) == pytest.approx(OWN * 9 / 2, rel=0.02)
    assert own_ms(found, VerifyCosts(COSTS.plain), 8, one_pass=False) is None
    assert own_ms([], COSTS, 8, one_pass=False) is None


@pytest.mark.parametrize("p", [0.3, 0.6, 0.85])
def test_every_length_is_predicted_from_three_that_were_asked(p: float) -> None:
    found = [answered(k, p, seed=s) for k in (8, 2, 4) for s in range(4)]
    rows = rows_of(found, COSTS, OWN, 8, one_pass=False)
    assert sorted(rows) == list(range(1, 9))
    for k, row in rows.items():
        true = drafted_gain(COSTS, p, k, OWN)
        assert true is not None
        assert len(row) == len(found)
        assert row.value == pytest.approx(true, rel=0.08)


def test_acceptance_that_falls_with_the_length_is_kept_for_each() -> None:
    """A head that guesses worse the deeper it is: what K=8 shows says too little of K=1."""
    found = [answered(1, 0.8, seed=s) for s in range(4)]
    found += [answered(8, 0.5, seed=s) for s in range(4)]
    rows = rows_of(found, COSTS, OWN, 8, one_pass=False)
    one = drafted_gain(COSTS, 0.8, 1, OWN)
    assert one is not None
    assert rows[1].value == pytest.approx(one, rel=0.08)


def test_lengths_without_a_cost_are_left_out() -> None:
    short = VerifyCosts(COSTS.plain, {1: 10.0, 2: 10.5, 3: 11.0})
    assert sorted(rows_of([answered(4, 0.7)], short, OWN, 8, one_pass=False)) == [1, 2]
    assert rows_of([], COSTS, OWN, 8, one_pass=False) == {}


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 400), st.integers(0, 400), st.floats(0, 1e6)),
        max_size=6,
    )
)
def test_counters_that_cannot_be_do_not_break_it(raw: list[tuple[int, int, int, float]]) -> None:
    found = [
        LengthRequest(k, Response(5, 1.0, 1.0, tokens, ms, accepted, accepted, "", ()))
        for k, tokens, accepted, ms in raw
    ]
    own = own_ms(found, COSTS, 8, one_pass=False)
    assert own is None or own >= 0
    for row in rows_of(found, COSTS, OWN, 8, one_pass=False).values():
        assert all(math.isfinite(x) for x in row.logs)
