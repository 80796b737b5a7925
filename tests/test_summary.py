"""What real requests say: speed-up by steps, the best K, the chance that it is slower."""

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


def traffic(steps: int, by: tuple[int, ...], alone: int = 0, k: int | None = None) -> Counts:
    """`steps` drafts of k tokens, of which by[i] were accepted to depth i + 1; and tokens that
    came without a draft."""
    return Counts(
        drafted=steps * (k or len(by)),
        accepted=sum(by),
        steps=steps,
        by_position=tuple(float(x) for x in by),
        tokens=steps + sum(by) + alone,
        seconds=1.0,
    )


def test_the_speed_up_is_steps_against_plain_steps() -> None:
    seen = traffic(100, (80, 60), alone=20)  # 260 tokens
    assert traffic_speedup(seen, TIMES) == pytest.approx(260 * 10 / (100 * 17 + 20 * 11))


def test_what_has_no_cost_is_told_from_tokens_per_second() -> None:
    seen = traffic(100, (80, 60, 50, 40, 30))  # drafts of 5: longer than any that was timed
    assert traffic_speedup(seen, TIMES) == pytest.approx(360 / 1.0 * 0.010)
    assert traffic_speedup(seen, StepTimes(10.0)) == pytest.approx(3.6)
    assert traffic_speedup(seen, None) is None


def test_the_best_length_for_these_requests() -> None:
    """Half of the first guesses are right and hardly any after them: K=1 is best."""
    seen = traffic(1000, (500, 50, 5, 0))
    found = by_length(seen, TIMES, 4)
    assert set(found) == {1, 2, 3, 4}
    assert found[1] == pytest.approx(1.5 * 10 / 14)
    assert found[2] == pytest.approx(1.55 * 10 / 17)
    assert summarize(seen, Samples(TIMES).ratios, TIMES, 4).better == 1
    assert summarize(seen, Samples(TIMES).ratios, TIMES).by_length == {}


def test_no_length_beyond_the_one_that_runs() -> None:
    assert max(by_length(traffic(100, (90, 80)), TIMES, 2)) == 2


def test_where_what_runs_was_never_timed_no_length_is_better() -> None:
    assert by_length(traffic(1000, (500, 50, 5, 0, 0, 0, 0, 0)), TIMES, 8) == {}


def test_few_drafts_say_nothing_of_another_length() -> None:
    assert summarize(traffic(10, (5, 0)), Samples(TIMES).ratios, TIMES, 2).better is None


def test_the_first_token_of_an_answer_took_no_step() -> None:
    """It comes from the prompt's pass."""
    seen = replace(traffic(100, (80, 60)), requests=10.0, tokens=250.0)
    assert traffic_speedup(seen, TIMES) == pytest.approx(240 * 10 / (100 * 17))


def test_a_shorter_draft_that_is_slower_than_plain_decoding_is_not_better() -> None:
    p = TrafficSummary(counts=traffic(1000, (1,)), by_length={1: 0.98, 4: 0.5})
    assert p.best == 1
    assert p.better is None
    assert replace(p, by_length={1: 1.01, 4: 0.5}).better == 1
    assert replace(p, by_length={1: 1.26, 4: 1.21}).better is None, "not by a twentieth"
    assert replace(p, by_length={1: 1.28, 4: 1.21}).better == 1


def test_a_chance_is_said_from_five_parts_of_the_traffic_on() -> None:
    seen = traffic(60, (50, 40))
    for parts in (4, 5):
        samples = Samples(TIMES)
        for _ in range(parts):
            samples.add(seen)
        assert (summarize(seen, samples.ratios, TIMES, 2).slower is None) == (parts < 5)


def test_the_oldest_parts_go_first() -> None:
    samples = Samples(TIMES)
    for i in range(70):
        samples.add(traffic(100 + i, (80, 60)))
    assert len(samples.ratios) == 60
    assert samples.ratios.weights[-1] == 169 + 140
    assert samples.ratios.weights[0] == 110 + 140


def test_doubtful_counts_have_no_speed_up() -> None:
    more_than_drafted = replace(traffic(100, (80, 60)), drafted=100.0)
    assert more_than_drafted.doubt
    assert traffic_speedup(more_than_drafted, TIMES) is None


def test_the_chance_that_it_is_slower() -> None:
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


def test_a_few_samples_have_no_chance() -> None:
    few = Samples(TIMES)
    few.add(traffic(60, (10, 2)))
    assert summarize(traffic(60, (10, 2)), few.ratios, TIMES).slower is None


def test_plain_decoding_has_no_speed_up() -> None:
    assert (
        traffic_speedup(Counts(drafted=0, accepted=0, steps=0, tokens=260, seconds=150.0), TIMES)
        is None
    )


def test_nothing_seen_is_an_empty_picture() -> None:
    found = summarize(NOTHING, Samples(None).ratios, None, 3)
    assert (found.speedup, found.slower, found.better, found.best) == (None, None, None, None)
    assert not found.enough


@given(
    st.integers(0, 1000),
    st.lists(st.floats(0, 1), max_size=6),
    st.integers(0, 1000),
    st.dictionaries(st.integers(0, 8), st.floats(0.1, 1000), max_size=5),
)
def test_no_traffic_gives_an_impossible_figure(
    steps: int, shares: list[float], alone: int, drafted: dict[int, float]
) -> None:
    by, left = [], float(steps)
    for share in shares:
        left *= share
        by.append(int(left))
    seen, times = traffic(steps, tuple(by), alone), StepTimes(10.0, drafted)
    found = traffic_speedup(seen, times)
    assert found is None or 0 < found < 1e6
    assert all(0 < x < 1e6 for x in by_length(seen, times, 6).values())
