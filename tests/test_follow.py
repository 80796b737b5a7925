"""Summaries of a server that is followed: over the last minutes, or longer if traffic is low."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from specllama.engine.settings import Speculation
from specllama.tuning.step_times import StepTimes
from specllama.watching import own_requests
from specllama.watching.counters import Counts, Snapshot
from specllama.watching.follow import Follower
from specllama.watching.reader import CounterReader
from specllama.watching.running import RunningServe, announce, withdraw

DRAFT = Speculation(("draft-simple",), Path("d.gguf"), n_max=2)
TIMES = StepTimes(10.0, {0: 10.5, 1: 13.0, 2: 16.0})


class FakeCounters:
    """A server with the counters `now`; `at` is the clock."""

    def __init__(self) -> None:
        self.at = 0.0
        self.now = Counts(0.0, 0.0, 0.0, (0.0, 0.0), 0.0, 0.0)

    def read(self) -> Snapshot:
        return Snapshot("llama.cpp", self.at, self.now)

    def answers(self, minutes: float) -> None:
        """One response of 64 tokens in this many minutes, with 24 of 80 drafted tokens accepted."""
        self.at += 60 * minutes
        self.now += Counts(80.0, 24.0, 40.0, (16.0, 8.0), 64.0, 0.6)


def make_follower(server: FakeCounters) -> Follower:
    return Follower(cast(CounterReader, server), DRAFT, TIMES, clock=lambda: server.at)


@pytest.mark.parametrize("minutes", [0.1, 1, 2, 4, 30])
def test_slow_traffic_is_summarised_over_a_longer_time(minutes: float) -> None:
    """A large model on a CPU takes minutes per response, so the last five minutes are not enough."""
    server = FakeCounters()
    follower = make_follower(server)
    follower.look()
    for _ in range(8):
        server.answers(minutes)
        follower.look()
    p = follower.recent
    assert p.enough
    assert p.slower is not None
    assert p.speedup == pytest.approx(64 * 10 / (40 * 16), rel=0.01)


def test_recent_counts_cover_the_last_minutes_only() -> None:
    server = FakeCounters()
    follower = make_follower(server)
    follower.look()
    for _ in range(8):
        server.answers(0.5)
        follower.look()
    server.at += 600
    follower.look()
    for _ in range(8):
        server.at += 20
        server.now += Counts(80.0, 60.0, 40.0, (35.0, 25.0), 100.0, 0.6)
        follower.look()
    assert follower.recent.counts.alpha == pytest.approx(0.75)
    assert follower.summary.counts.alpha == pytest.approx(0.525)


def test_real_requests_during_idle_probes_are_counted() -> None:
    """Once a client's request that ran during idle probes was excluded with them."""
    server = FakeCounters()
    follower = make_follower(server)
    follower.look()
    server.answers(0.1)
    own = Counts(8.0, 3.0, 4.0, (2.0, 1.0), 7.0, 0.1, 2.0)
    server.now += own
    follower.exclude(own)
    new = follower.look()
    assert new is not None
    assert (new.drafted, new.accepted, new.tokens) == (80.0, 24.0, 64.0)
    assert new.by_position == (16.0, 8.0)
    server.answers(0.1)
    assert (follower.look() or new).tokens == 64.0  # excluded once only


def test_requests_of_the_start_check_and_of_another_specllama_are_not_real() -> None:
    """Seen: all drafted tokens of `probe --url` were saved as real requests."""
    server = FakeCounters()
    server.answers(0.1)  # the start check
    follower = make_follower(server)
    follower.look()
    announce(RunningServe("http://127.0.0.1:1", "/m/t.gguf", "code"))
    with own_requests.measuring("http://localhost:1/v1"):
        server.answers(0.1)
        assert (follower.look() or Counts()).drafted == 0
        assert list(follower.ended_marks) == []
        server.answers(0.1)
    withdraw()
    assert (follower.look() or Counts()).drafted == 0
    (mark,) = follower.ended_marks
    assert (follower.own.drafted, follower.own.tokens) == (240.0, 192.0)
    mark.unlink()
    server.answers(0.1)
    assert (follower.look() or Counts()).drafted == 80
    assert follower.summary.counts.drafted == 80


def test_requests_to_servers_of_others_leave_no_mark() -> None:
    with own_requests.measuring("http://127.0.0.1:1"):
        assert own_requests.marks() == ()


def test_a_foreign_file_among_the_marks_is_removed() -> None:
    announce(RunningServe("http://127.0.0.1:1", "/m/t.gguf", "code"))
    with own_requests.measuring("http://127.0.0.1:1"):
        (mark,) = own_requests.marks()
    foreign = mark.with_name("notes.json")
    foreign.write_text("{}")
    with own_requests.measuring("http://127.0.0.1:1"):
        assert not foreign.exists()
    mark.unlink()
    withdraw()
