"""Counters of running servers: exact names, restarts, rounding, labels of several engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.watching.counters import NOTHING, Counts, Snapshot, between
from specllama.watching.engines import ENGINES, LLAMA_CPP, VLLM
from specllama.watching.history import History
from specllama.watching.prometheus_text import parse_snapshot
from tests.llama_metrics import metrics_text

Step = tuple[int, int]  # drafted, accepted of it


def printed(value: float) -> str:
    """A double as std::ostream prints it: with six digits."""
    return f"{value:.6g}"


def snapshot(steps: list[Step], base: int = 0, when: float = 0.0, started: float = 0.0) -> Snapshot:
    """llama-server's counters after these verify steps and `base` earlier ones."""
    drafted = base * 2 + sum(d for d, _ in steps)
    by = [base + sum(a > i for _, a in steps) for i in range(2)]
    tokens = base * 3 + sum(a + 1 for _, a in steps)
    text = metrics_text(
        processing=2,
        drafted=printed(drafted),
        accepted=printed(sum(by)),
        steps=printed(base + len(steps)),
        tokens=printed(tokens),
        seconds=printed(tokens * 0.01),
        first=by[0],
        second=by[1],
    )
    found = parse_snapshot(text, when)
    assert found is not None
    return replace(found, started=started)


DRAFTS = st.lists(st.tuples(st.just(2), st.integers(0, 2)), max_size=30)


@settings(max_examples=40)
@given(st.lists(DRAFTS, min_size=1, max_size=12), st.lists(st.booleans(), min_size=12))
def test_totals_over_restarts_are_complete(rounds: list[list[Step]], restarts: list[bool]) -> None:
    history, steps_so_far, process = History(), list[Step](), 0
    history.add(snapshot([], when=0.0, started=0.0))
    for i, steps in enumerate(rounds):
        if restarts[i]:
            process, steps_so_far = process + 1, []
        steps_so_far = steps_so_far + steps
        history.add(snapshot(steps_so_far, when=float(i + 1), started=float(process)))
    total = history.total
    assert total.drafted == sum(d for r in rounds for d, _ in r)
    assert total.accepted == sum(a for r in rounds for _, a in r)
    assert total.steps == sum(len(r) for r in rounds)
    assert history.restarts == sum(restarts[: len(rounds)])


@settings(max_examples=40)
@given(st.lists(DRAFTS, min_size=1, max_size=8), st.integers(0, 10**9))
def test_rounded_counters_never_give_a_wrong_acceptance(
    rounds: list[list[Step]], base: int
) -> None:
    history, steps_so_far = History(), list[Step]()
    history.add(snapshot([], base))
    for i, steps in enumerate(rounds):
        steps_so_far = steps_so_far + steps
        history.add(snapshot(steps_so_far, base, float(i + 1)))
    found = history.total
    assert found.doubt == ""
    if found.alpha is not None:
        expected = sum(a for _, a in steps_so_far) / max(1, sum(d for d, _ in steps_so_far))
        assert found.alpha == pytest.approx(expected, abs=0.06)
        assert all(0 <= a <= 1 for a in found.acceptance)


@settings(max_examples=40)
@given(st.lists(DRAFTS, min_size=2, max_size=8), st.integers(0, 7))
def test_a_lower_counter_is_taken_as_a_restart(rounds: list[list[Step]], at: int) -> None:
    """Without a start time, only a lower counter shows a restart; counts are never negative."""
    history, steps_so_far = History(), list[Step]()
    history.add(snapshot([]))
    for i, steps in enumerate(rounds):
        steps_so_far = steps if i == at else steps_so_far + steps
        new = history.add(snapshot(steps_so_far, when=float(i + 1)))
        assert min(new.drafted or 0, new.accepted or 0, new.tokens or 0) >= 0
    assert history.total.alpha is None or 0 <= history.total.alpha <= 1


counts = st.builds(
    Counts,
    *[st.none() | st.floats() for _ in range(3)],
    st.lists(st.floats(), max_size=3).map(tuple),
    *[st.none() | st.floats() for _ in range(3)],
)


@given(counts, counts)
def test_the_difference_of_any_two_snapshots_is_valid(a: Counts, b: Counts) -> None:
    new = between(Snapshot(VLLM, 0.0, a), Snapshot(VLLM, 1.0, b))
    assert new.alpha is None or 0 <= new.alpha <= 1
    assert new.tau is None or new.tau >= 1
    assert all(0 <= x <= 1 for x in new.acceptance)
    assert isinstance(new.doubt, str)


def test_series_are_distinguished_by_exact_names() -> None:
    """The per-position series must not be added to the total, which would give 100% instead of 75%."""
    found = snapshot([(2, 2), (2, 1)]).counts
    assert (found.drafted, found.accepted, found.by_position) == (4, 3, (2, 1))
    assert found.alpha == 0.75
    assert found.tau == 2.5
    assert found.acceptance == (1.0, 0.5)


def test_rounded_millions_are_completed_from_exact_positions() -> None:
    """1,234,567 accepted tokens are printed as 1.23457e+06, but their positions exactly."""
    before, after = snapshot([], 700_000), snapshot([(2, 1)] * 5, 700_000)
    assert between(before, after).accepted == 5
    assert between(before, after).alpha is None  # ten drafted tokens, and the counter moves in tens
    assert between(before, snapshot([(2, 1)] * 500, 700_000)).alpha == pytest.approx(0.5)


def test_counters_of_several_engines_at_one_address_are_added() -> None:
    text = ""
    for engine, drafted, accepted in ((0, 20, 12), (1, 30, 3)):
        labels = f'{{engine="{engine}",model_name="m"}}'
        text += f"vllm:spec_decode_num_draft_tokens_total{labels} {drafted}.0\n"
        text += f"vllm:spec_decode_num_accepted_tokens_total{labels} {accepted}.0\n"
        text += f"vllm:num_requests_running{labels} 2.0\n"
    found = parse_snapshot(text, 0.0)
    assert found is not None
    assert (found.engine, found.counts.drafted, found.counts.accepted) == (VLLM, 50, 15)
    assert found.gauges.busy == 4


def test_one_of_several_models_is_selected_by_its_label() -> None:
    text = "".join(
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="{m}"}} {n}.0\n'
        for m, n in (("a", 20), ("b", 30))
    )
    found = parse_snapshot(text, 0.0, "b")
    assert found is not None
    assert found.counts.drafted == 30


def test_the_first_token_of_each_response_does_not_count_for_the_decoding_speed() -> None:
    counts = Counts(tokens=100.0, seconds=2.0, requests=20.0)
    assert counts.tokens_per_second == 40.0
    assert replace(counts, rounding=5.0).tokens_per_second is None, "one digit of 100 is unknown"
    assert replace(counts, rounding_s=0.1).tokens_per_second is None


def test_rounding_gives_no_acceptance_above_one() -> None:
    """A rounded count of accepted tokens may exceed the drafted ones by its last digit."""
    counts = Counts(drafted=1000.0, accepted=1001.0, steps=500.0, rounding=1.0)
    assert (counts.doubt, counts.alpha) == ("", 1.0)


def test_acceptance_never_grows_with_depth() -> None:
    """Positions and steps are printed with rounding, not at the same moment."""
    counts = Counts(drafted=30.0, accepted=16.5, steps=10.0, by_position=(10.5, 5.0, 6.0))
    assert replace(counts, rounding=1.0).acceptance == (1.0, 0.5, 0.5)


def test_fewer_positions_than_before_mean_a_restart() -> None:
    old = Snapshot(VLLM, 0.0, Counts(drafted=4.0, by_position=(1.0, 1.0)))
    new = Snapshot(VLLM, 1.0, Counts(drafted=6.0, by_position=(3.0,)))
    assert between(old, new) == new.counts


def test_samples_without_a_model_name_count_for_every_model() -> None:
    text = (
        'vllm:spec_decode_num_draft_tokens_total{model_name="a"} 10\n'
        'vllm:spec_decode_num_draft_tokens_total{model_name="b"} 20\n'
        "vllm:spec_decode_num_accepted_tokens_total 4\n"
    )
    found = parse_snapshot(text, 0.0, "b")
    assert found is not None
    assert (found.counts.drafted, found.counts.accepted) == (20.0, 4.0)


def test_gauges_of_several_engines_are_averaged() -> None:
    text = "".join(
        f'sglang:spec_accept_rate{{dp_rank="{i}"}} {a}\n'
        f'sglang:spec_accept_length{{dp_rank="{i}"}} 2.0\n'
        f'sglang:gen_throughput{{dp_rank="{i}"}} 50.0\n'
        for i, a in ((0, 0.4), (1, 0.6))
    )
    found = parse_snapshot(text, 0.0)
    assert found is not None
    assert found.gauges.alpha == pytest.approx(0.5)
    assert found.gauges.tau == 2.0
    assert found.gauges.tokens_per_second == 100.0


def test_a_missing_counter_is_none_not_zero() -> None:
    found = parse_snapshot("llamacpp:tokens_predicted_total 5\n", 0.0)
    assert found is not None
    assert found.counts.drafted is None
    assert found.counts.alpha is None
    assert not found.idle  # it has no metric for running requests
    assert between(found, found).drafted is None


def test_history_over_the_last_minute_and_in_parts_of_15_minutes() -> None:
    history, steps_so_far = History(), list[Step]()
    for i in range(100):
        history.add(snapshot(steps_so_far, when=10.0 * i))
        steps_so_far = [*steps_so_far, (2, 1 if i < 90 else 2)]
    assert history.over(60).alpha == 1.0
    assert history.over(60).drafted == 12
    parts = list(history.parts(900, 90))
    assert len(parts) == 10
    assert parts[0].drafted == parts[5].drafted == 18
    assert parts[9].drafted == 18, "the newest: the last 90 seconds, its end included"
    assert history.total.drafted == 2 * 99


def test_specllamas_own_requests_are_not_traffic() -> None:
    history = History()
    before = snapshot([(2, 1)])
    history.add(before)
    own = between(before, snapshot([(2, 1), (2, 2)]))
    history.add(snapshot([(2, 1), (2, 2), (2, 0)]), own)
    assert (history.total.drafted, history.total.accepted) == (2, 0)
    assert history.total.by_position == (0, 0)


def test_subtracting_own_requests_from_a_rounded_counter_stops_at_zero() -> None:
    """A counter of millions moves in tens, so the few tokens of our requests may not show."""
    counted = Counts(drafted=0.0, tokens=10.0, rounding=10.0)
    assert counted.without(Counts(drafted=4.0, tokens=6.0)) == Counts(0.0, tokens=0.0, rounding=10)
    assert counted.without(NOTHING) == counted


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e308", "-1"])
def test_impossible_counter_values_are_ignored(value: str) -> None:
    text = "".join(
        f"{name} {value}\n"
        for name in (ENGINES[VLLM].tokens, ENGINES[VLLM].seconds, ENGINES[VLLM].requests)
    )
    found = parse_snapshot(text, 0.0)
    assert found is not None
    assert found.counts == NOTHING


def test_sums_of_empty_counts() -> None:
    assert NOTHING + NOTHING == NOTHING
    assert NOTHING.alpha is NOTHING.tau is NOTHING.tokens_per_second is None
    assert NOTHING + Counts(drafted=1.0) == Counts(drafted=1.0)


def test_engines_have_distinct_metric_prefixes() -> None:
    prefixes = [n.prefix for n in ENGINES.values()]
    assert not any(a != b and a.startswith(b) for a in prefixes for b in prefixes)
    for name, names in ENGINES.items():
        metric_names = [
            v for k, v in vars(names).items() if isinstance(v, str) and k not in ("path",)
        ]
        assert all(v.startswith(names.prefix) for v in metric_names if v), name
    assert ENGINES[LLAMA_CPP].digits == 6
