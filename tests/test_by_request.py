"""Acceptance for every K on servers that take K per request and do not report single steps."""

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
DRAFT_MS = 0.8


def length_request(
    k: int, p: float, tokens: int = 400, n_max: int = 8, seed: int = 1
) -> LengthRequest:
    """A response by a draft whose tokens are accepted with probability p."""
    rng = random.Random(seed * 100 + k)
    generated, drafted, accepted, ms = 1, 0, 0, 0.0
    while generated < tokens:
        d = min(k, tokens - generated - 1)
        accepted_now = next((i for i in range(d) if rng.random() > p), d)
        drafted, accepted, generated = (
            drafted + d,
            accepted + accepted_now,
            generated + accepted_now + 1,
        )
        ms += (COSTS.of(k + 1) or 0.0) + DRAFT_MS * (n_max + 1)
    return LengthRequest(k, Response(20, 5.0, 5.0, tokens, ms, drafted, accepted, "x", ()))


def test_drafting_time_is_the_rest_of_the_step_time() -> None:
    requests = [length_request(k, 0.7) for k in (8, 2, 4)]
    assert own_ms(requests, COSTS, 8, one_pass=False) == pytest.approx(DRAFT_MS, rel=0.02)
    assert own_ms(requests, COSTS, 8, one_pass=True) == pytest.approx(DRAFT_MS * 9 / 2, rel=0.02)
    assert own_ms(requests, VerifyCosts(COSTS.plain_step), 8, one_pass=False) is None
    assert own_ms([], COSTS, 8, one_pass=False) is None


@pytest.mark.parametrize("p", [0.3, 0.6, 0.85])
def test_every_length_is_predicted_from_three_measured_ones(p: float) -> None:
    requests = [length_request(k, p, seed=s) for k in (8, 2, 4) for s in range(4)]
    rows = rows_of(requests, COSTS, DRAFT_MS, 8, one_pass=False)
    assert sorted(rows) == list(range(1, 9))
    for k, row in rows.items():
        expected = drafted_gain(COSTS, p, k, DRAFT_MS)
        assert expected is not None
        assert len(row) == len(requests)
        assert row.value == pytest.approx(expected, rel=0.08)


def test_acceptance_is_estimated_per_length() -> None:
    """A head whose acceptance declines with depth: K=8 alone would underestimate K=1."""
    requests = [length_request(1, 0.8, seed=s) for s in range(4)]
    requests += [length_request(8, 0.5, seed=s) for s in range(4)]
    rows = rows_of(requests, COSTS, DRAFT_MS, 8, one_pass=False)
    one = drafted_gain(COSTS, 0.8, 1, DRAFT_MS)
    assert one is not None
    assert rows[1].value == pytest.approx(one, rel=0.08)


def test_lengths_without_a_known_cost_are_not_predicted() -> None:
    short = VerifyCosts(COSTS.plain_step, {1: 10.0, 2: 10.5, 3: 11.0})
    assert sorted(rows_of([length_request(4, 0.7)], short, DRAFT_MS, 8, one_pass=False)) == [1, 2]
    assert rows_of([], COSTS, DRAFT_MS, 8, one_pass=False) == {}


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 400), st.integers(0, 400), st.floats(0, 1e6)),
        max_size=6,
    )
)
def test_impossible_counters_give_finite_results(raw: list[tuple[int, int, int, float]]) -> None:
    requests = [
        LengthRequest(k, Response(5, 1.0, 1.0, tokens, ms, accepted, accepted, "", ()))
        for k, tokens, accepted, ms in raw
    ]
    own = own_ms(requests, COSTS, 8, one_pass=False)
    assert own is None or own >= 0
    for row in rows_of(requests, COSTS, DRAFT_MS, 8, one_pass=False).values():
        assert all(math.isfinite(x) for x in row.logs)
