"""Summary of real requests: speed-up, best K, chance of being slower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.tuning.step_times import StepTimes
from specllama.watching.counters import NOTHING, Counts
from specllama.watching.summary import (
    Samples,
    TrafficSummary,
    by_length,
    summarize,
    traffic_speedup,
)

TIMES = StepTimes(10.0, {0: 11.0, 1: 14.0, 2: 17.0, 4: 23.0})


def traffic(
    steps: int, by: tuple[int, ...], without_draft: int = 0, k: int | None = None
) -> Counts:
    """`steps` drafts of k tokens, of which by[i] were accepted to depth i + 1, and further tokens
    without a draft."""
    return Counts(
        drafted=steps * (k or len(by)),
        accepted=sum(by),
        steps=steps,
        by_position=tuple(float(x) for x in by),
        tokens=steps + sum(by) + without_draft,
        seconds=1.0,
    )


def test_the_speed_up_is_step_time_compared_with_plain_steps() -> None:
    counts = traffic(100, (80, 60), without_draft=20)  # 260 tokens
    assert traffic_speedup(counts, TIMES) == pytest.approx(260 * 10 / (100 * 17 + 20 * 11))


def test_without_step_times_the_speed_up_is_by_tokens_per_second() -> None:
    counts = traffic(100, (80, 60, 50, 40, 30))  # drafts of 5: longer than any timed one
    assert traffic_speedup(counts, TIMES) == pytest.approx(360 / 1.0 * 0.010)
    assert traffic_speedup(counts, StepTimes(10.0)) == pytest.approx(3.6)
    assert traffic_speedup(counts, None) is None


def test_the_best_draft_length_is_predicted_from_traffic() -> None:
    """Half of the first tokens are accepted and hardly any after them: K=1 is best."""
    counts = traffic(1000, (500, 50, 5, 0))
    found = by_length(counts, TIMES, 4)
    assert set(found) == {1, 2, 3, 4}
    assert found[1] == pytest.approx(1.5 * 10 / 14)
    assert found[2] == pytest.approx(1.55 * 10 / 17)
    assert summarize(counts, Samples(TIMES).ratios, TIMES, 4).better == 1
    assert summarize(counts, Samples(TIMES).ratios, TIMES).by_length == {}
    plain = replace(counts, tokens=1555.0 + 100)  # 100 tokens of steps without a draft
    assert by_length(plain, TIMES, 4)[2] == pytest.approx(1655 * 10 / (1555 / 1.55 * 17 + 100 * 11))


def test_no_speed_up_is_predicted_beyond_the_running_length() -> None:
    assert max(by_length(traffic(100, (90, 80)), TIMES, 2)) == 2


def test_no_length_is_better_if_the_running_one_was_not_timed() -> None:
    assert by_length(traffic(1000, (500, 50, 5, 0, 0, 0, 0, 0)), TIMES, 8) == {}


def test_few_drafts_recommend_no_other_length() -> None:
    assert summarize(traffic(10, (5, 0)), Samples(TIMES).ratios, TIMES, 2).better is None


def test_the_first_token_of_a_response_is_not_a_step() -> None:
    """It is computed in the prompt's pass."""
    counts = replace(traffic(100, (80, 60)), requests=10.0, tokens=250.0)
    assert traffic_speedup(counts, TIMES) == pytest.approx(240 * 10 / (100 * 17))


def test_a_shorter_draft_that_is_slower_than_plain_decoding_is_not_better() -> None:
    p = TrafficSummary(counts=traffic(1000, (1,)), by_length={1: 0.98, 4: 0.5})
    assert p.best == 1
    assert p.better is None
    assert replace(p, by_length={1: 1.01, 4: 0.5}).better == 1
    assert replace(p, by_length={1: 1.26, 4: 1.21}).better is None, "not by a twentieth"
    assert replace(p, by_length={1: 1.28, 4: 1.21}).better == 1


def test_the_chance_of_being_slower_needs_five_samples() -> None:
    counts = traffic(60, (50, 40))
    for parts in (4, 5):
        samples = Samples(TIMES)
        for _ in range(parts):
            samples.add(counts)
        assert (summarize(counts, samples.ratios, TIMES, 2).slower is None) == (parts < 5)


def test_a_sample_has_at_least_64_tokens() -> None:
    samples = Samples(TIMES)
    for _ in range(3):
        samples.add(traffic(15, (10, 5)))  # 30 tokens
    assert samples.ratios.weights == (90.0,)


@pytest.mark.parametrize(("drafted", "enough"), [(299, False), (300, True)])
def test_300_drafted_tokens_are_enough(drafted: int, enough: bool) -> None:
    assert TrafficSummary(Counts(drafted=float(drafted))).enough is enough


def test_the_oldest_samples_are_dropped_first() -> None:
    samples = Samples(TIMES)
    for i in range(70):
        samples.add(traffic(100 + i, (80, 60)))
    assert len(samples.ratios) == 60
    assert samples.ratios.weights[-1] == 169 + 140
    assert samples.ratios.weights[0] == 110 + 140


def test_inconsistent_counts_have_no_speed_up() -> None:
    more_than_drafted = replace(traffic(100, (80, 60)), drafted=100.0)
    assert more_than_drafted.doubt
    assert traffic_speedup(more_than_drafted, TIMES) is None


def test_the_chance_of_being_slower_separates_good_and_bad_traffic() -> None:
    bad, good = Samples(TIMES), Samples(TIMES)
    for i in range(12):
        bad.add(traffic(60, (10 + i % 3, 2)))
        good.add(traffic(60, (50 + i % 3, 40)))
    slow = summarize(traffic(720, (132, 24)), bad.ratios, TIMES, 2)
    assert slow.speedup is not None
    assert slow.speedup < 1
    assert slow.surely_slower
    fast = summarize(traffic(720, (612, 480)), good.ratios, TIMES, 2)
    assert fast.slower is not None
    assert fast.slower < 0.01
    assert not fast.surely_slower


def test_a_single_sample_has_no_chance_of_being_slower() -> None:
    few = Samples(TIMES)
    few.add(traffic(60, (10, 2)))
    assert summarize(traffic(60, (10, 2)), few.ratios, TIMES).slower is None


def test_plain_decoding_has_no_speed_up() -> None:
    assert (
        traffic_speedup(Counts(drafted=0, accepted=0, steps=0, tokens=260, seconds=150.0), TIMES)
        is None
    )


def test_no_traffic_gives_an_empty_summary() -> None:
    found = summarize(NOTHING, Samples(None).ratios, None, 3)
    assert (found.speedup, found.slower, found.better, found.best) == (None, None, None, None)
    assert not found.enough


@given(
    st.integers(0, 1000),
    st.lists(st.floats(0, 1), max_size=6),
    st.integers(0, 1000),
    st.dictionaries(st.integers(0, 8), st.floats(0.1, 1000), max_size=5),
)
def test_any_traffic_gives_possible_speed_ups(
    steps: int, shares: list[float], without_draft: int, drafted: dict[int, float]
) -> None:
    by, left = [], float(steps)
    for share in shares:
        left *= share
        by.append(int(left))
    counts, times = traffic(steps, tuple(by), without_draft), StepTimes(10.0, drafted)
    found = traffic_speedup(counts, times)
    assert found is None or 0 < found < 1e6
    assert all(0 < x < 1e6 for x in by_length(counts, times, 6).values())
