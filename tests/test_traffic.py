"""Saved traffic: accumulated, aged, limited in size, and ignored if damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.settings import NgramSizes, Speculation
from specllama.storage import read_stored, write_stored
from specllama.tuning.confidence import Ratios
from specllama.tuning.step_times import StepTimes, never_less
from specllama.watching import traffic
from specllama.watching.counters import NOTHING, Counts
from specllama.watching.traffic import TrafficSubject

DAY = 86_400.0
NOON = 1_790_000_000.0
SPEC = Speculation(("draft-simple",), Path("/m/draft.gguf"), n_max=2)
SUBJECT = TrafficSubject(
    "/m/t.gguf", "code", "draft-simple draft.gguf", (("/m/t.gguf", 5, 7),), "a build", ("CPU",)
)
COUNTS = Counts(
    drafted=200, accepted=82, steps=100, by_position=(52.0, 30.0), tokens=190, seconds=2.0
)


@pytest.fixture(autouse=True)
def no_saved_traffic() -> None:
    traffic.clear()


def test_counts_and_samples_accumulate() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.1,), (190.0,)), now=NOON)
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.2,), (190.0,)), now=NOON + 60)
    found = traffic.find(SUBJECT)
    assert found is not None
    assert found.last.counts == COUNTS + COUNTS
    assert found.last.ratios.logs == (0.1, 0.2)
    assert (found.days, found.last.when) == (1, NOON + 60)
    assert found.last.counts.alpha == pytest.approx(0.41)


def test_seven_days_of_use_halve_earlier_counts() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.1,), (200.0,)), now=NOON)
    for day in range(1, 8):  # any number of days apart
        traffic.add(SUBJECT, SPEC, NOTHING, Ratios(), now=NOON + 9 * day * DAY)
    found = traffic.find(SUBJECT)
    assert found is not None
    assert found.days == 8
    assert found.last.counts.drafted == pytest.approx(100, rel=0.001)
    assert found.last.ratios.weights[0] == pytest.approx(100, rel=0.001)
    assert found.last.counts.alpha == pytest.approx(0.41, abs=0.001)


def test_days_without_speculation_age_counts_too() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios(), now=NOON)
    for day in range(15):
        traffic.another_day("/m/t.gguf", "code", now=NOON + day * DAY)
    found = traffic.find(SUBJECT)
    assert found is not None
    assert found.last.counts.drafted == pytest.approx(50, rel=0.01)


def test_very_old_samples_are_dropped_and_the_file_stays_readable() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.1,), (64.0,)), now=NOON)
    for day in range(1, 100):
        traffic.add(
            SUBJECT, SPEC, Counts(drafted=1.0, accepted=0.0), Ratios(), now=NOON + day * DAY
        )
    found = traffic.find(SUBJECT)
    assert found is not None
    assert found.last.ratios.logs == ()


def test_the_file_stays_small() -> None:
    for i in range(300):
        spec = replace(SPEC, n_max=1 + i % 9)
        traffic.add(SUBJECT, spec, COUNTS, Ratios((0.123456789,) * 3, (190.123,) * 3), now=NOON + i)
    found = traffic.find(SUBJECT)
    assert found is not None
    assert len(found.settings) == 4
    assert found.file.stat().st_size < 8192


def test_step_times_belong_to_one_machine_but_counts_do_not() -> None:
    times = StepTimes(10.0, {0: 11.0, 2: 15.0})
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.1,), (190.0,)), times, now=NOON)
    assert (found := traffic.find(SUBJECT)) is not None
    assert found.times == times
    other = replace(SUBJECT, devices=("another",))
    assert (found := traffic.find(other)) is not None
    assert found.times is None
    assert found.last.counts.drafted == 200
    traffic.add(other, SPEC, COUNTS, Ratios(), now=NOON + 5)
    assert (found := traffic.find(other)) is not None
    assert (found.times, found.last.ratios.logs) == (None, ())


def test_another_file_under_the_same_name_is_another_model() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios(), now=NOON)
    assert traffic.find(replace(SUBJECT, files=(("/m/t.gguf", 5, 8),))) is None
    assert traffic.of("/m/t.gguf", "code", [("/m/t.gguf", 5, 8)]) == ()
    assert len(traffic.of("/m/t.gguf", "code", [("/m/t.gguf", 5, 7)])) == 1


def test_clear_deletes_the_traffic_of_one_target() -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios(), now=NOON)
    assert traffic.clear(Path("/m/other.gguf")) == 0
    assert traffic.clear(Path("/m/t.gguf")) == 1
    assert traffic.all_traffic() == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("drafted", -1.0),
        ("drafted", "many"),
        ("by_position", [-1.0]),
        ("weights", [1.0, 2.0]),
        ("logs", [1e9]),
        ("version", 0),
        ("way", "another"),
        ("settings", []),
        ("times", {"plain": -1.0, "drafted": {}}),
    ],
)
def test_damaged_files_are_ignored(key: str, value: object) -> None:
    traffic.add(SUBJECT, SPEC, COUNTS, Ratios((0.1,), (190.0,)), now=NOON)
    (found,) = traffic.all_traffic()
    data = read_stored(found.file)
    inner = data["settings"][0]
    place = inner["counts"] if key == "drafted" else inner if key in inner else data
    place[key] = value
    write_stored(found.file, data)
    assert traffic.find(SUBJECT) is None


amounts = st.none() | st.floats(0, 1e12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(amounts, amounts, amounts, amounts), max_size=4))
def test_any_added_counts_can_be_read_again(added: list[tuple[float | None, ...]]) -> None:
    traffic.clear()
    for i, (drafted, accepted, steps, tokens) in enumerate(added):
        counts = Counts(drafted, accepted, steps, (), tokens)
        traffic.add(SUBJECT, SPEC, counts, Ratios((0.1,), (5.0,)), now=NOON + i * DAY)
    assert (traffic.find(SUBJECT) is not None) == bool(added)


def test_traffic_of_n_grams_is_stored_with_their_sizes() -> None:
    spec = Speculation(("ngram-simple",), ngram=NgramSizes(4, 8))
    subject = replace(SUBJECT, method="ngram-simple")
    traffic.add(subject, spec, COUNTS, Ratios(), now=NOON)
    (found,) = traffic.all_traffic()
    assert found.last.speculation == spec
    assert traffic.longest(spec) is None
    assert traffic.longest(SPEC) == 2
    assert traffic.longest(replace(SPEC, p_min=0.5)) is None


def test_step_times_never_decrease_with_the_length() -> None:
    assert never_less({0: [1.0], 1: [9.0], 2: [3.0], 4: [10.0]}) == {
        0: 1.0,
        1: 6.0,
        2: 6.0,
        4: 10.0,
    }
    assert never_less({}) == {}
