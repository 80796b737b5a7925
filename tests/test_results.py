"""What is kept on disk: found again for what it is about, and only for that; damaged files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama import storage
from specllama.cli import app
from specllama.cli.differences import differences
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import results
from specllama.tuning.confidence import Ratios
from specllama.tuning.measure import Measurement, Response
from specllama.tuning.records import (
    CRASHED,
    DECIDED,
    FORCED,
    OPEN,
    Confirmation,
    Prediction,
    TuningResult,
)
from specllama.tuning.results import Subject, all_results, clear_results, find, stale_lines, store
from specllama.tuning.search import OpenResult
from tests import made

SPEC = Speculation(
    ("ngram-simple", "draft-simple"),
    Path("/models/d raft.gguf"),
    n_max=5,
    n_min=1,
    p_min=0.5,
    draft_layers="all",
    cache_type="q8_0",
    ngram=NgramSizes(4, 8, 2),
)
ABOUT = Subject(
    "/models/target.gguf",
    "code",
    (("/models/target.gguf", 123, 456), ("/models/draft.gguf", 7, 8)),
    ("-c 4096", "-np 1", "0123"),
    "native b11434 (1, 2)",
    ("CUDA0 H200", "CPU x (16)"),
)
KNOWN = Ratios((0.1, 0.2, 0.15), (40.0, 30.5, 41.0))


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    clear_results()


def arm(spec: Speculation = SPEC, own: Ratios = KNOWN, **more: Any) -> Confirmation:
    answers = (Response(9, 9.0, 9.0, 41, 400.0, 60, 30, "", ()) for _ in own.logs)
    pooled = own + KNOWN
    return Confirmation(
        spec, Measurement(tuple(answers)), own, pooled, pooled.interval(), 0.015, **more
    )


def answered(
    state: str, *arms: Confirmation, best: Confirmation | None = None, **more: Any
) -> TuningResult:
    given = {"predictions": (), "plain": None, "trials": (), **more}
    return TuningResult(
        workload="code",
        maps=(),
        arms=arms,
        best=best,
        reason="because",
        dropped=(),
        loads=2,
        seconds=1.0,
        state=state,
        **given,
    )


def test_what_was_decided_comes_back() -> None:
    won = arm()
    store(ABOUT, answered(DECIDED, won, best=won))
    kept, stale = find(ABOUT)
    assert stale == ""
    assert kept is not None
    assert kept.speculation == SPEC
    assert kept.label == won.label
    assert kept.speedup == (won.speedup.value, won.speedup.low, won.speedup.high)
    assert (kept.slower, kept.texts, kept.state, kept.reason) == (0.015, 6, DECIDED, "because")
    assert kept.tokens_per_second == pytest.approx(100)
    assert (kept.engine, kept.devices, kept.prompts) == (ABOUT.engine, ABOUT.devices, "profile")
    assert kept.since == kept.when
    assert kept.open_result == OpenResult()
    assert all_results() == (kept,)


def test_the_speed_is_the_baselines_times_the_speed_up() -> None:
    """Seen: an arm measured while the machine was busy, and `results` with a quarter of the speed
    that the table of probe had."""
    won = arm()
    plain = made.plain()
    store(ABOUT, replace(answered(DECIDED, won, best=won), plain=plain))
    kept, _ = find(ABOUT)
    assert kept is not None
    speed = plain.measurement.tokens_per_second
    assert kept.tokens_per_second == pytest.approx(speed * won.speedup.value)


def test_off_is_an_answer_too() -> None:
    store(ABOUT, answered(DECIDED))
    kept, _ = find(ABOUT)
    assert kept is not None
    assert (kept.speculation, kept.speedup, kept.slower, kept.state) == (None, None, None, DECIDED)
    assert kept.tokens_per_second is None


def test_an_end_that_is_not_known_stays_so() -> None:
    one = arm(own=Ratios((0.2,), (40.0,)))
    one = replace(one, speedup=one.own.interval())
    store(ABOUT, answered(OPEN, one))
    kept, _ = find(ABOUT)
    assert kept is not None
    assert kept.speedup is not None
    assert kept.speedup[2] == math.inf


def test_an_open_answer_keeps_what_it_knows() -> None:
    told = [
        Prediction(replace(SPEC, n_max=k), KNOWN.shifted(0.01 * k), "one launch", own_share=k / 10)
        for k in range(9)
    ]
    first = arm(out_of_time=True)
    store(ABOUT, answered(OPEN, first, predictions=tuple(told)))
    kept, _ = find(ABOUT)
    assert kept is not None
    assert kept.state == OPEN
    assert [p.speculation.n_max for p in kept.open_result.predictions] == [8, 7, 6, 5, 4, 3]
    assert kept.open_result.predictions[0].known == told[8].known
    assert kept.open_result.predictions[0].own_share == 0.8
    assert kept.open_result.measured == {first.label: first.own}
    assert kept.open_result.prompts_used == 3


def test_what_earlier_starts_measured_is_kept_with_what_this_one_did() -> None:
    other = replace(SPEC, n_max=2)
    store(ABOUT, answered(OPEN, arm(other, out_of_time=True)))
    first, _ = find(ABOUT)
    store(ABOUT, answered(OPEN, arm(out_of_time=True)))
    second, _ = find(ABOUT)
    assert first is not None
    assert second is not None
    assert len(second.open_result.measured) == 2
    assert second.open_result.prompts_used == 6
    assert second.since == first.since <= second.when
    store(ABOUT, answered(DECIDED))
    third, _ = find(ABOUT)
    assert third is not None
    assert third.open_result == OpenResult()


def test_a_forced_choice_is_not_kept_and_replaces_nothing() -> None:
    store(ABOUT, answered(FORCED, arm(), best=arm()))
    assert find(ABOUT) == (None, "")
    store(ABOUT, answered(DECIDED))
    store(ABOUT, answered(FORCED, arm(), best=arm()))
    kept, _ = find(ABOUT)
    assert kept is not None
    assert (kept.state, kept.speculation) == (DECIDED, None)


def test_a_crash_is_kept_as_one() -> None:
    store(ABOUT, answered(CRASHED))
    kept, _ = find(ABOUT)
    assert kept is not None
    assert kept.state == CRASHED


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOUT, workload="chat"),
        replace(ABOUT, files=(("/models/target.gguf", 123, 457), *ABOUT.files[1:])),
        replace(ABOUT, files=ABOUT.files[:1]),
        replace(ABOUT, options=("-c 8192", *ABOUT.options[1:])),
        replace(ABOUT, options=()),
    ],
)
def test_another_question_has_another_answer(other: Subject) -> None:
    store(ABOUT, answered(DECIDED))
    assert find(other) == (None, "")


def test_another_build_or_device_makes_it_stale_not_another() -> None:
    store(ABOUT, answered(DECIDED))
    kept, stale = find(replace(ABOUT, engine="native b11500 (1, 2)"))
    assert kept is not None
    assert stale == "measured with native b11434 (1, 2), now native b11500 (1, 2)"
    assert list(stale_lines(kept, stale)) == [f"a saved result (no speculation) is stale: {stale}"]
    _, stale = find(replace(ABOUT, devices=("CPU x (16)",)))
    assert stale == "measured on CUDA0 H200, CPU x (16)"
    _, stale = find(replace(ABOUT, prompts="yours"))
    assert stale == "", "whose prompts they are is shown; their content is in `asked`"
    assert list(stale_lines(kept, "")) == []


def test_a_changed_file_is_another_question(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(b"abc")
    one = results.stamp([path, tmp_path / "none"])
    assert one == ((str(path), 3, path.stat().st_mtime_ns),)
    path.write_bytes(b"abcd")
    assert results.stamp([path]) != one


def test_clearing() -> None:
    store(ABOUT, answered(DECIDED))
    store(replace(ABOUT, target="/models/other.gguf", workload="chat"), answered(DECIDED))
    assert len(all_results()) == 2
    assert clear_results(Path("/models/other.gguf")) == 1
    assert [r.target for r in all_results()] == ["/models/target.gguf"]
    assert clear_results() == 1
    assert clear_results() == 0


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, 1e300, -1e18])
def test_a_time_that_is_none_is_shown_all_the_same(seconds: float) -> None:
    assert results.format_time(seconds) == "unknown date"


def test_a_home_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path, text: str) -> None:
        raise PermissionError

    monkeypatch.setattr(storage, "write_atomically", refuses)
    store(ABOUT, answered(DECIDED))
    assert find(ABOUT) == (None, "")


# ---- damaged files ----------------------------------------------------------------


def kept_file() -> Path:
    told = (Prediction(SPEC, KNOWN, "one launch"),)
    store(ABOUT, answered(OPEN, arm(out_of_time=True), predictions=told))
    kept, _ = find(ABOUT)
    assert kept is not None
    return kept.file


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"x"', "{}", '{"version": 2}', "\udcff"]
)
def test_what_is_no_result_is_passed_over(text: str) -> None:
    path = kept_file()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert find(ABOUT) == (None, "")
    assert all_results() == ()
    store(ABOUT, answered(DECIDED))
    assert find(ABOUT)[0] is not None, "and is written over"


def test_results_saved_before_their_options_were_are_read() -> None:
    path = kept_file()
    data = storage.read_stored(path)
    del data["options"], data["files"]
    storage.write_stored(path, data)
    kept, _ = find(ABOUT)
    assert kept is not None
    assert (kept.options, kept.files) == (None, ())


def test_results_that_look_alike_show_what_they_differ_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = "0123456789abcdef"
    long = replace(ABOUT, options=("-c 8192", "-np 1", "-t 4", "named ngram-mod True", mine))
    more = replace(ABOUT, files=(*ABOUT.files, ("/models/d2.gguf", 5, 5)), engine="native b2 (1)")
    found = [ABOUT, long, more, replace(ABOUT, workload="chat")]
    for subject in found:
        store(subject, answered(DECIDED))
    by_options = {(r.workload, r.options, len(r.files)): r for r in all_results()}
    kept = [by_options[s.workload, s.options, len(s.files)] for s in found]
    assert differences(kept) == [
        "-c 4096, 0123, native b11434",
        "-c 8192, -t 4, --method ngram-mod, prompts 012345, native b11434",
        "-c 4096, 0123, with d2.gguf, native b2",
        "",
    ]
    assert differences([kept[0], replace(kept[0], options=None)]) == ["", "options unknown"]
    assert differences([kept[0], replace(kept[0], target="/other/target.gguf")]) == [
        *("in /models", "in /other")
    ]
    changed = replace(kept[0], files=((*ABOUT.files[0][:2], 10**18), ABOUT.files[1]))
    before, after = differences([kept[0], changed])
    assert before.startswith("target.gguf of 19")
    assert after.startswith("target.gguf of 20")
    assert app.run(["results"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip().endswith("  differs by")
    assert "off      target.gguf, code (-c 4096, 0123, native b11434): because" in lines
    assert "off      target.gguf, chat: because" in lines
    clear_results()
    store(ABOUT, answered(DECIDED))
    assert app.run(["results"]) == 0
    assert "differs" not in capsys.readouterr().out


def test_another_version_is_passed_over() -> None:
    path = kept_file()
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"version": 1}))
    assert find(ABOUT) == (None, "")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner: list[tuple[Any, ...]] = []
    if isinstance(data, dict):
        inner = [p for k, v in data.items() for p in places(v, (*at, k))]
    elif isinstance(data, list):
        inner = [p for i, v in enumerate(data) for p in places(v, (*at, i))]
    return [at, *inner]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None
)
@given(st.data())
def test_no_damage_raises(data: st.DataObject) -> None:
    """Any value in any place, or gone: a result, or none."""
    path = kept_file()
    whole = json.loads(path.read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(places(whole)))
        if not at:
            continue
        owner = whole
        for key in at[:-1]:
            owner = owner[key]
        if isinstance(owner, dict) and data.draw(st.booleans()):
            del owner[at[-1]]
        else:
            owner[at[-1]] = data.draw(junk)
    path.write_text(json.dumps(whole))
    found, _ = find(ABOUT)
    for kept in (found, *all_results()):
        if kept is not None:
            assert kept.label
            for p in kept.open_result.predictions:
                p.speedup  # noqa: B018
    store(ABOUT, answered(OPEN, arm(out_of_time=True)))
    assert find(ABOUT)[0] is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(max_size=40), st.integers(0, 2000))
def test_no_bytes_raise(new: bytes, at: int) -> None:
    path = kept_file()
    old = path.read_bytes()
    path.write_bytes(old[:at] + new + old[at + len(new) :])
    found, _ = find(ABOUT)
    assert found is None or found.label
