"""Saved results: found for their subject and no other; damaged files."""

from __future__ import annotations

import json
import math
import re
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
from specllama.tuning.other_options import closest_result_line
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
from tests.support import MODELS

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
SUBJECT = Subject(
    "/models/target.gguf",
    "code",
    (("/models/target.gguf", 123, 456), ("/models/draft.gguf", 7, 8)),
    ("-c 4096", "-np 1", "0123"),
    "native b11434 (1, 2)",
    ("CUDA0 H200", "CPU x (16)"),
)
KNOWN = Ratios((0.1, 0.2, 0.15), (40.0, 30.5, 41.0))


@pytest.fixture(autouse=True)
def _no_saved_results() -> None:
    clear_results()


def confirmation(spec: Speculation = SPEC, own: Ratios = KNOWN, **more: Any) -> Confirmation:
    responses = (Response(9, 9.0, 9.0, 41, 400.0, 60, 30, "", ()) for _ in own.logs)
    pooled = own + KNOWN
    return Confirmation(
        spec, Measurement(tuple(responses)), own, pooled, pooled.interval(), 0.015, **more
    )


def result_of(
    state: str, *confirmations: Confirmation, best: Confirmation | None = None, **more: Any
) -> TuningResult:
    given = {"predictions": (), "baseline": None, "trials": (), **more}
    return TuningResult(
        workload="code",
        ngrams=(),
        confirmations=confirmations,
        best=best,
        reason="because",
        dropped=(),
        loads=2,
        seconds=1.0,
        state=state,
        **given,
    )


def test_a_decided_result_is_found_again() -> None:
    won = confirmation()
    assert store(SUBJECT, result_of(DECIDED, won, best=won))
    saved, stale = find(SUBJECT)
    assert stale == ""
    assert saved is not None
    assert saved.speculation == SPEC
    assert saved.label == won.label
    assert saved.speedup == (won.speedup.value, won.speedup.low, won.speedup.high)
    assert (saved.slower, saved.texts, saved.state, saved.reason) == (0.015, 6, DECIDED, "because")
    assert saved.tokens_per_second == pytest.approx(100)
    assert (saved.engine, saved.devices, saved.prompts) == (
        SUBJECT.engine,
        SUBJECT.devices,
        "profile",
    )
    assert saved.since == saved.when
    assert saved.open_result == OpenResult()
    assert all_results() == (saved,)


def test_pick_draft_names_a_saved_result_of_the_workload(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = str(MODELS / "target.gguf")
    store(replace(SUBJECT, target=target), result_of(DECIDED))
    args = ("--llama-server", "embedded", "--vram", "8GiB")
    assert app.run(["pick-draft", target, "-w", "code", *args]) == 0
    assert re.search(
        r"^saved    code was measured \(.*\): off, because$", capsys.readouterr().out, re.M
    )
    assert app.run(["pick-draft", target, "-w", "chat", *args]) == 0
    assert "saved " not in capsys.readouterr().out


def test_the_speed_is_that_of_the_baseline_times_the_speed_up() -> None:
    """A setting was once measured while the machine was busy, and `results` printed a quarter of the
    speed in probe's table."""
    won = confirmation()
    plain = made.plain()
    store(SUBJECT, replace(result_of(DECIDED, won, best=won), baseline=plain))
    saved, _ = find(SUBJECT)
    assert saved is not None
    speed = plain.measurement.tokens_per_second
    assert saved.tokens_per_second == pytest.approx(speed * won.speedup.value)


def test_off_is_saved_as_a_result() -> None:
    store(SUBJECT, result_of(DECIDED))
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert (saved.speculation, saved.speedup, saved.slower, saved.state) == (
        None,
        None,
        None,
        DECIDED,
    )
    assert saved.tokens_per_second is None


def test_an_infinite_interval_is_read_back() -> None:
    one = confirmation(own=Ratios((0.2,), (40.0,)))
    one = replace(one, speedup=one.ratios.interval())
    store(SUBJECT, result_of(OPEN, one))
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert saved.speedup is not None
    assert saved.speedup[2] == math.inf


def test_an_open_result_saves_its_best_predictions() -> None:
    predictions = [
        Prediction(replace(SPEC, n_max=k), KNOWN.shifted(0.01 * k), "one launch", own_share=k / 10)
        for k in range(9)
    ]
    first = confirmation(out_of_time=True)
    store(SUBJECT, result_of(OPEN, first, predictions=tuple(predictions)))
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert saved.state == OPEN
    assert [p.speculation.n_max for p in saved.open_result.predictions] == [8, 7, 6, 5, 4, 3]
    assert saved.open_result.predictions[0].ratios == predictions[8].ratios
    assert saved.open_result.predictions[0].own_share == 0.8
    assert saved.open_result.measured == {first.label: first.ratios}
    assert saved.open_result.prompts_used == 3


def test_measurements_of_earlier_starts_are_kept_until_decided() -> None:
    other = replace(SPEC, n_max=2)
    store(SUBJECT, result_of(OPEN, confirmation(other, out_of_time=True)))
    first, _ = find(SUBJECT)
    store(SUBJECT, result_of(OPEN, confirmation(out_of_time=True)))
    second, _ = find(SUBJECT)
    assert first is not None
    assert second is not None
    assert len(second.open_result.measured) == 2
    assert second.open_result.prompts_used == 6
    assert second.since == first.since <= second.when
    store(SUBJECT, result_of(DECIDED))
    third, _ = find(SUBJECT)
    assert third is not None
    assert third.open_result == OpenResult()


def test_a_continued_result_keeps_the_plain_speed_and_shows_its_own_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`results` showed the first start's time and no speed."""
    monkeypatch.setattr("time.time", lambda: 1.6e9)
    store(SUBJECT, replace(result_of(OPEN, confirmation()), baseline=made.plain()))
    monkeypatch.setattr("time.time", lambda: 1.7e9)
    store(SUBJECT, result_of(OPEN, confirmation()))
    saved, _ = find(SUBJECT)
    assert saved is not None
    speed = made.plain().measurement.tokens_per_second
    assert saved.tokens_per_second == pytest.approx(speed)
    assert saved.since < saved.when
    assert app.run(["results"]) == 0
    out = capsys.readouterr().out
    assert f"{speed:.1f}" in out
    assert results.format_time(1.7e9) in out
    assert results.format_time(1.6e9) not in out


def test_a_forced_result_is_not_saved_and_replaces_none() -> None:
    store(SUBJECT, result_of(FORCED, confirmation(), best=confirmation()))
    assert find(SUBJECT) == (None, "")
    store(SUBJECT, result_of(DECIDED))
    store(SUBJECT, result_of(FORCED, confirmation(), best=confirmation()))
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert (saved.state, saved.speculation) == (DECIDED, None)


def test_a_crash_is_saved_as_a_crash() -> None:
    store(SUBJECT, result_of(CRASHED))
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert saved.state == CRASHED


@pytest.mark.parametrize(
    "other",
    [
        replace(SUBJECT, workload="chat"),
        replace(SUBJECT, files=(("/models/target.gguf", 123, 457), *SUBJECT.files[1:])),
        replace(SUBJECT, files=SUBJECT.files[:1]),
        replace(SUBJECT, options=("-c 8192", *SUBJECT.options[1:])),
        replace(SUBJECT, options=()),
    ],
)
def test_a_result_is_not_found_for_another_subject(other: Subject) -> None:
    store(SUBJECT, result_of(DECIDED))
    assert find(other) == (None, "")


def test_another_build_or_device_makes_a_result_stale() -> None:
    store(SUBJECT, result_of(DECIDED))
    saved, stale = find(replace(SUBJECT, engine="native b11500 (1, 2)"))
    assert saved is not None
    assert stale == "measured with native b11434 (1, 2), now native b11500 (1, 2)"
    assert list(stale_lines(saved, stale)) == [f"a saved result (no speculation) is stale: {stale}"]
    _, stale = find(replace(SUBJECT, devices=("CPU x (16)",)))
    assert stale == "measured on CUDA0 H200, CPU x (16)"
    _, stale = find(replace(SUBJECT, prompts="yours"))
    assert stale == "", "whose prompts they are is shown; their content is in `asked`"
    assert list(stale_lines(saved, "")) == []


def test_a_changed_file_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(b"abc")
    one = results.stamp([path, tmp_path / "none"])
    assert one == ((str(path), 3, path.stat().st_mtime_ns),)
    path.write_bytes(b"abcd")
    assert results.stamp([path]) != one


def test_clear_deletes_the_results_of_a_target_or_all() -> None:
    store(SUBJECT, result_of(DECIDED))
    store(replace(SUBJECT, target="/models/other.gguf", workload="chat"), result_of(DECIDED))
    assert len(all_results()) == 2
    assert clear_results(Path("/models/other.gguf")) == 1
    assert [r.target for r in all_results()] == ["/models/target.gguf"]
    assert clear_results() == 1
    assert clear_results() == 0


def test_results_that_cannot_be_deleted_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only cache: `results --clear` counted them as deleted."""

    def refuses(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    store(SUBJECT, result_of(DECIDED))
    saved, _ = find(SUBJECT)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuses)
        assert app.run(["results", "--clear"]) == 1
    printed = capsys.readouterr()
    assert saved is not None
    assert printed.err == f"error: {saved.file}: cannot be deleted (Permission denied)\n"
    assert printed.out == ""


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, 1e300, -1e18])
def test_an_impossible_time_is_printed_as_unknown(seconds: float) -> None:
    assert results.format_time(seconds) == "unknown date"


def test_an_unwritable_folder_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path, text: str) -> None:
        raise PermissionError

    monkeypatch.setattr(storage, "write_atomically", refuses)
    assert not store(SUBJECT, result_of(DECIDED))
    assert find(SUBJECT) == (None, "")


# ---- damaged files ----------------------------------------------------------------


def saved_file() -> Path:
    predictions = (Prediction(SPEC, KNOWN, "one launch"),)
    store(SUBJECT, result_of(OPEN, confirmation(out_of_time=True), predictions=predictions))
    saved, _ = find(SUBJECT)
    assert saved is not None
    return saved.file


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"x"', "{}", '{"version": 2}', "\udcff"]
)
def test_files_that_are_no_results_are_ignored(text: str) -> None:
    path = saved_file()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert find(SUBJECT) == (None, "")
    assert all_results() == ()
    store(SUBJECT, result_of(DECIDED))
    assert find(SUBJECT)[0] is not None, "and is written over"


def test_results_saved_before_their_options_were_are_read() -> None:
    path = saved_file()
    data = storage.read_stored(path)
    del data["options"], data["files"]
    storage.write_stored(path, data)
    saved, _ = find(SUBJECT)
    assert saved is not None
    assert (saved.options, saved.files) == (None, ())


def test_results_that_look_alike_show_what_they_differ_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = "0123456789abcdef"
    long = replace(SUBJECT, options=("-c 8192", "-np 1", "-t 4", "named ngram-mod True", mine))
    more = replace(
        SUBJECT, files=(*SUBJECT.files, ("/models/d2.gguf", 5, 5)), engine="native b2 (1)"
    )
    found = [SUBJECT, long, more, replace(SUBJECT, workload="chat")]
    for subject in found:
        store(subject, result_of(DECIDED))
    by_options = {(r.workload, r.options, len(r.files)): r for r in all_results()}
    saved = [by_options[s.workload, s.options, len(s.files)] for s in found]
    assert differences(saved) == [
        "-c 4096, 0123, native b11434",
        "-c 8192, -t 4, --method ngram-mod, the profile's prompts 012345, native b11434",
        "-c 4096, 0123, with d2.gguf, native b2",
        "",
    ]
    assert differences([saved[0], replace(saved[0], options=None)]) == ["", "options unknown"]
    assert differences([saved[0], replace(saved[0], target="/other/target.gguf")]) == [
        *("in /models", "in /other")
    ]
    changed = replace(saved[0], files=((*SUBJECT.files[0][:2], 10**18), SUBJECT.files[1]))
    before, after = differences([saved[0], changed])
    assert before.startswith("target.gguf of 19")
    assert after.startswith("target.gguf of 20")
    assert app.run(["results"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip().endswith("  differs by")
    assert "off      target.gguf, code (-c 4096, 0123, native b11434): because" in lines
    assert "off      target.gguf, chat: because" in lines
    clear_results()
    store(SUBJECT, result_of(DECIDED))
    assert app.run(["results"]) == 0
    assert "differs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("saved", "now", "line"),
    [
        (("-c 0", "-np 1"), ("-c 0", "-np 1", "-t 1"), "without -t 1"),
        (("-c 4096", "-np 1"), ("-c 0", "-np 1"), "with -c 4096"),
        (("-c 4096", "everything"), ("-c 8192",), "with -c 4096, --all and without -c 8192"),
        (("-c 0",), ("-c 0",), "before a model file changed"),
    ],
)
def test_a_result_for_other_options_is_mentioned(
    saved: tuple[str, ...], now: tuple[str, ...], line: str
) -> None:
    """`serve` and `advise` said that nothing was measured."""
    same = saved == now
    files = ((*SUBJECT.files[0][:2], 457), SUBJECT.files[1]) if same else SUBJECT.files
    store(replace(SUBJECT, options=("-np 4", "-b 64", "-ub 64", "-fa on")), result_of(DECIDED))
    store(replace(SUBJECT, options=saved, files=files), result_of(DECIDED))
    store(replace(SUBJECT, options=now, engine="another"), result_of(DECIDED))
    (found,) = closest_result_line(replace(SUBJECT, options=now))
    assert found == f"a saved result (no speculation) is not used: it was measured {line}"


def test_a_result_saved_for_all_methods_and_for_the_usual_ones_is_shown_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store(SUBJECT, result_of(DECIDED))
    store(replace(SUBJECT, options=("everything", *SUBJECT.options)), result_of(DECIDED))
    assert app.run(["results", "-v"]) == 0
    out = capsys.readouterr().out
    assert out.count("off      target.gguf, code: because") == 1
    assert "--all" not in out
    assert "with     target.gguf, code, no speculation: -c 4096, -np 1, 0123" in out


def test_results_of_another_version_are_ignored() -> None:
    path = saved_file()
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"version": 1}))
    assert find(SUBJECT) == (None, "")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def json_paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    inner: list[tuple[Any, ...]] = []
    if isinstance(data, dict):
        inner = [p for k, v in data.items() for p in json_paths(v, (*at, k))]
    elif isinstance(data, list):
        inner = [p for i, v in enumerate(data) for p in json_paths(v, (*at, i))]
    return [at, *inner]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None
)
@given(st.data())
def test_any_damaged_value_gives_a_result_or_none(data: st.DataObject) -> None:
    """Any value replaced or deleted: a result, or none."""
    path = saved_file()
    whole = json.loads(path.read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(json_paths(whole)))
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
    found, _ = find(SUBJECT)
    for saved in (found, *all_results()):
        if saved is not None:
            assert saved.label
            for p in saved.open_result.predictions:
                p.speedup  # noqa: B018
    store(SUBJECT, result_of(OPEN, confirmation(out_of_time=True)))
    assert find(SUBJECT)[0] is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(max_size=40), st.integers(0, 2000))
def test_any_damaged_bytes_give_a_result_or_none(new: bytes, at: int) -> None:
    path = saved_file()
    old = path.read_bytes()
    path.write_bytes(old[:at] + new + old[at + len(new) :])
    found, _ = find(SUBJECT)
    assert found is None or found.label
