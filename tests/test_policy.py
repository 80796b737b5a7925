"""When --adaptive switches, and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.settings import NgramSizes, Speculation
from specllama.watching.counters import Counts
from specllama.watching.policy import Policy, ServableSetting, SwitchTiming
from specllama.watching.summary import TrafficSummary

DRAFT = Speculation(("draft-simple",), Path("d.gguf"), n_max=3)
NGRAMS = Speculation(("ngram-simple",), ngram=NgramSizes(4, 8))
TUNED = ServableSetting(DRAFT, 1.2, "when it was tuned")


def summary_of(
    speedup: float | None, slower: float | None, drafted: int = 900, **by_length: float
) -> TrafficSummary:
    """Traffic with α = 0.33. `by_length`: predicted speed-ups, as K1=1.02."""
    counts = Counts(drafted, drafted / 3, drafted / 3, tokens=drafted, seconds=10.0)
    lengths = {int(k[1:]): v for k, v in by_length.items()}
    return TrafficSummary(counts, speedup, slower, lengths)


SLOWER = summary_of(0.9, 0.95)
FASTER = summary_of(1.2, 0.01)
PLAIN = TrafficSummary(Counts(tokens=500, seconds=10.0))


def make_policy(*options: ServableSetting, any_length: bool = True) -> Policy:
    return Policy(DRAFT, options or (TUNED,), since=0.0, any_length=any_length)


def test_speculation_that_is_certainly_slower_is_switched_off() -> None:
    switch = make_policy().decide(SLOWER, 600)
    assert switch is not None
    assert switch.to is None
    assert switch.reason == (
        "α=0.33 over 900 drafted tokens, about 0.90x, 95% likely to be slower than plain decoding"
    )


@pytest.mark.parametrize(
    "p",
    [
        FASTER,
        summary_of(0.9, 0.89),  # not sure
        summary_of(0.9, 0.99, drafted=200),  # too few
        summary_of(0.9, None),  # too few responses for a probability
        summary_of(None, None),
        TrafficSummary(),
        summary_of(1.1, 0.05, K1=1.0, K2=1.14, K3=1.1),  # hardly better
    ],
)
def test_an_uncertain_loss_changes_nothing(p: TrafficSummary) -> None:
    assert make_policy().decide(p, 6000) is None


def test_switches_are_at_least_ten_minutes_apart() -> None:
    policy = make_policy()
    assert policy.decide(SLOWER, 599) is None
    assert policy.decide(SLOWER, 600) is not None


def test_a_shorter_draft_expected_to_be_faster_is_switched_to() -> None:
    better = summary_of(1.02, 0.4, K1=1.12, K2=1.08, K3=1.02)
    switch = make_policy().decide(better, 600)
    assert switch is not None
    assert switch.to == Speculation(("draft-simple",), Path("d.gguf"), n_max=1)
    assert switch.reason.endswith("; expecting about 1.12x with K=1")
    assert make_policy(any_length=False).decide(better, 600) is None  # --n-max is the user's


def test_a_slow_setting_is_shortened_only_if_that_pays_off() -> None:
    pays = make_policy().decide(summary_of(0.9, 0.99, K1=1.06, K2=1.0, K3=0.9), 600)
    does_not = make_policy().decide(summary_of(0.9, 0.99, K1=1.02, K2=1.0, K3=0.9), 600)
    assert pays is not None
    assert pays.to is not None
    assert pays.to.n_max == 1
    assert does_not is not None
    assert does_not.to is None


def test_another_saved_setting_must_be_clearly_faster() -> None:
    other = ServableSetting(NGRAMS, 1.25, "on workload edit")
    assert make_policy(TUNED, other).decide(FASTER, 600) is None  # 1.25 is less than 1.05 × 1.2
    switch = make_policy(TUNED, other).decide(summary_of(1.1, 0.05), 600)
    assert switch is not None
    assert switch.to == NGRAMS
    assert "ngram-simple n=4 m=8 measured 1.25x on workload edit" in switch.reason
    lost = make_policy(TUNED, other).decide(SLOWER, 600)
    assert lost is not None
    assert lost.to == NGRAMS  # instead of plain decoding


def test_a_rejected_setting_is_retried_after_growing_pauses() -> None:
    policy, now, waited = make_policy(), 600.0, []
    for _ in range(4):
        assert policy.decide(SLOWER, now) is not None
        policy.switched(None, now)
        back = now
        while (switch := policy.decide(PLAIN, back)) is None:
            back += 100
        waited.append(back - now)
        assert switch.to == DRAFT
        assert switch.reason.startswith("retrying after")
        policy.switched(DRAFT, back)
        now = back + 600
    assert waited == [600, 1200, 2400, 4800]


def test_pauses_are_at_most_a_day() -> None:
    policy = make_policy()
    for _ in range(12):
        policy.lost(DRAFT, 0.0)
    policy.switched(None, 0.0)
    assert policy.decide(PLAIN, 86_399.0) is None
    assert policy.decide(PLAIN, 86_400.0) is not None


def test_a_success_resets_the_pause() -> None:
    policy = make_policy()
    policy.switched(None, 600)
    policy.switched(DRAFT, 1200)
    assert policy.decide(FASTER, 1800) is None
    policy.switched(None, 1800)
    assert policy.decide(PLAIN, 2400) is not None  # not after twice the pause


def test_nothing_is_retried_without_traffic() -> None:
    policy = make_policy()
    policy.switched(None, 600)
    assert policy.decide(TrafficSummary(Counts(tokens=20)), 6000) is None


def test_settings_with_a_small_expected_gain_are_not_retried() -> None:
    for expected, retried in ((1.04, False), (1.06, True), (None, True)):
        policy = make_policy(ServableSetting(DRAFT, expected))
        policy.switched(None, 600)
        assert (policy.decide(PLAIN, 6000) is not None) is retried


def test_a_very_low_acceptance_decides_only_if_no_speed_is_known() -> None:
    unknown = summary_of(None, None)
    assert make_policy().decide(unknown, 600) is None
    switch = make_policy().decide(unknown, 600, hardly_accepted=True)
    assert switch is not None
    assert switch.to is None
    for known in (FASTER, summary_of(1.06, None)):  # sure, and not yet
        assert make_policy().decide(known, 600, hardly_accepted=True) is None


def test_the_longer_draft_is_retried_when_its_pause_is_over() -> None:
    policy = make_policy()
    first = policy.decide(summary_of(1.02, 0.4, K1=1.12, K2=1.08, K3=1.02), 600)
    assert first is not None
    policy.switched(first.to, 600)
    short = summary_of(1.1, 0.05, K1=1.1)
    assert policy.decide(short, 1199) is None
    back = policy.decide(short, 1200)
    assert back is not None
    assert back.to == DRAFT


def test_a_prompt_cache_costly_to_rebuild_needs_a_longer_idle_time() -> None:
    pace = SwitchTiming()
    assert pace.quiet_for(0) == 10
    assert pace.quiet_for(4) == 50
    assert pace.quiet_for(1e9) == 900
    assert SwitchTiming(quiet=1000, most_quiet=900).quiet_for(0) == 1000
    assert pace.scaled(0.01).quiet_for(0) == pytest.approx(0.1)


_FIGURE = st.none() | st.floats(0.01, 10)


@given(
    st.lists(st.tuples(_FIGURE, st.none() | st.floats(0, 1), st.integers(0, 2000)), max_size=30),
    st.floats(0, 2000),
)
def test_any_traffic_keeps_the_pace_and_changes_the_setting(
    summaries: list[tuple[float | None, float | None, int]], step: float
) -> None:
    """Never to the running setting, never sooner than the pace allows."""
    policy, now = make_policy(TUNED, ServableSetting(NGRAMS, 1.1)), 0.0
    for speedup, slower, drafted in summaries:
        now += step
        before, since = policy.running, policy.since
        switch = policy.decide(summary_of(speedup, slower, drafted, K1=1.0, K3=speedup or 1.0), now)
        if switch is not None:
            assert switch.to != before
            assert now - since >= policy.pace.between
            assert switch.reason
            policy.switched(switch.to, now)
