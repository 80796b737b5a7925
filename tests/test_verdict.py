"""The verdict on real requests, when it changes, and its sentence."""

from __future__ import annotations

import pytest

from specllama.watching.counters import Counts
from specllama.watching.summary import TrafficSummary
from specllama.watching.verdict import (
    EVEN,
    LOW,
    PAYS,
    SLOWER,
    UNKNOWN,
    VERY_LOW,
    Thresholds,
    TrafficVerdict,
    VerdictTracker,
    sentence,
    surely_at_most,
    traffic_verdict,
)

LIMITS = Thresholds()


def summary_with(
    alpha: float, speedup: float | None = None, slower: float | None = None, **by: float
) -> TrafficSummary:
    counts = Counts(drafted=1000, accepted=1000 * alpha, steps=500, tokens=900)
    lengths = {int(k[1:]): v for k, v in by.items()}
    return TrafficSummary(counts, speedup, slower, lengths, 9)


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        (summary_with(0.6, 1.3, 0.01), PAYS),
        (summary_with(0.3, 0.9, 0.97), SLOWER),
        (summary_with(0.5, 1.0, 0.5), EVEN),
        (summary_with(0.9, 1.02, 0.01), EVEN),
        (summary_with(0.35), VERY_LOW),
        (summary_with(0.45), LOW),
        (summary_with(0.55), "accepted"),
        (summary_with(0.35, 1.06), UNKNOWN),  # the speed is known, but not its certainty
        (TrafficSummary(Counts(drafted=10, accepted=1), 0.5, 0.99), UNKNOWN),
    ],
)
def test_the_verdict_on_a_summary(summary: TrafficSummary, kind: str) -> None:
    assert traffic_verdict(summary, LIMITS).kind == kind


def test_a_verdict_changes_only_beyond_a_margin() -> None:
    slower = TrafficVerdict(SLOWER)
    assert traffic_verdict(summary_with(0.3, 0.98, 0.7), LIMITS, slower).kind == SLOWER
    assert traffic_verdict(summary_with(0.3, 1.01, 0.4), LIMITS, slower).kind == EVEN
    assert traffic_verdict(summary_with(0.6, 1.02, 0.3), LIMITS, TrafficVerdict(PAYS)).kind == PAYS
    assert traffic_verdict(summary_with(0.42), LIMITS, TrafficVerdict(VERY_LOW)).kind == VERY_LOW
    assert traffic_verdict(summary_with(0.42), LIMITS, TrafficVerdict(LOW)).kind == LOW
    assert traffic_verdict(summary_with(0.52), LIMITS, TrafficVerdict(VERY_LOW)).kind == LOW
    assert traffic_verdict(summary_with(0.6, 1.0, 0.6), LIMITS, TrafficVerdict(PAYS)).kind == EVEN


def test_a_better_length_is_named_until_it_is_no_better() -> None:
    found = summary_with(0.5, 1.1, 0.02, K2=1.2, K4=1.1)
    assert traffic_verdict(found, LIMITS).better == 2
    nearer = summary_with(0.5, 1.1, 0.02, K2=1.13, K4=1.1)
    assert traffic_verdict(nearer, LIMITS).better is None
    assert traffic_verdict(nearer, LIMITS, TrafficVerdict(PAYS, 2)).better == 2
    over = summary_with(0.5, 1.1, 0.02, K2=1.11, K4=1.1)
    assert traffic_verdict(over, LIMITS, TrafficVerdict(PAYS, 2)).better is None
    slow = summary_with(0.5, 0.8, 0.99, K2=0.98, K4=0.8)
    assert traffic_verdict(slow, LIMITS, TrafficVerdict(SLOWER, 2)).better is None
    another = summary_with(0.5, 1.1, 0.02, K1=1.4, K2=1.2, K4=1.1)
    assert traffic_verdict(another, LIMITS, TrafficVerdict(PAYS, 2)).better == 1


def test_a_length_that_is_slower_than_plain_decoding_is_not_better() -> None:
    assert traffic_verdict(summary_with(0.2, 0.5, 0.99, K1=0.9, K4=0.5), LIMITS).better is None


def test_a_lasting_change_of_verdict_is_reported_once() -> None:
    tracker = VerdictTracker(LIMITS)
    good, bad = summary_with(0.6, 1.3, 0.01), summary_with(0.3, 0.9, 0.97)
    assert [tracker.update(good) for _ in range(5)] == [False, False, True, False, False]
    assert [tracker.update(p) for p in (bad, good, bad, bad, good)] == [False] * 5
    assert [tracker.update(bad) for _ in range(4)] == [False, False, True, False]
    assert tracker.now.kind == SLOWER


def test_too_little_traffic_does_not_change_the_verdict() -> None:
    tracker = VerdictTracker(LIMITS)
    assert [tracker.update(summary_with(0.6, 1.3, 0.01)) for _ in range(3)][-1]
    few = TrafficSummary(Counts(drafted=10, accepted=1))
    assert not any(tracker.update(few) for _ in range(5))
    assert tracker.now.kind == PAYS


@pytest.mark.parametrize(
    ("drafted", "accepted", "low"),
    [(100, 7, True), (100, 35, False), (20, 0, False), (0, 0, False)],
)
def test_a_low_acceptance_rate_needs_enough_drafted_tokens(
    drafted: int, accepted: int, low: bool
) -> None:
    assert (surely_at_most(drafted, accepted) < LIMITS.off) == low


def test_the_limit_of_an_acceptance_rate_is_two_standard_errors_above_it() -> None:
    assert surely_at_most(100, 20) == pytest.approx(0.2 + 2 * 0.04)


def test_the_sentence_about_a_summary() -> None:
    p = summary_with(0.33, 0.96, 0.8, K2=1.05, K4=0.96)
    assert sentence(p, TrafficVerdict(EVEN, 2)) == (
        "α=0.33 over 1,000 drafted tokens, about 0.96x: expecting about 1.05x with K=2; "
        "`--adaptive` would switch"
    )
    assert sentence(summary_with(0.41, 1.31, 0.01), TrafficVerdict(PAYS)) == (
        "α=0.41 over 1,000 drafted tokens, about 1.31x"
    )
    slow = sentence(summary_with(0.2, 0.8, 0.999), TrafficVerdict(SLOWER), adaptive=True)
    assert slow.endswith("about 0.80x (>99% likely to be slower than plain decoding)")
    assert sentence(summary_with(0.0), TrafficVerdict(VERY_LOW)).startswith(
        "none of 1,000 drafted tokens"
    )
