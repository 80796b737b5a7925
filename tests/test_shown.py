"""Output of tuning and probe: progress, lines, tables and report, for results built by hand."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from specllama.cli import app, probe_lines, probe_table, report
from specllama.cli.figures import tuning_charts
from specllama.cli.probe_plots import ngram_table, verify_line
from specllama.cli.probe_runs import show_unreached
from specllama.cli.render import Printer, ProgressReport
from specllama.cli.results import brief, cleared
from specllama.cli.tuning_lines import interval_text, tuned_data, tuning_data, tuning_lines
from specllama.engine.settings import NgramSizes, Settings
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.launch import Launch
from specllama.serving.probe import ProbeOptions, ProbeResult, plan_probes
from specllama.serving.tune import TuningOutcome
from specllama.storage import strict_json
from specllama.tuning.confidence import Interval, Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Measurement
from specllama.tuning.records import DroppedSetting, NgramSpeedups, Prediction, TuningResult
from specllama.tuning.results import Subject, store
from specllama.tuning.speedup import StepCost
from tests import made
from tests.support import MODELS

TARGET, DRAFT = (MODELS / f"{n}.gguf" for n in ("target", "draft"))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_in_a_pipe_is_printed_every_ten_seconds() -> None:
    messages: list[str] = []
    clock = Clock()
    bar = ProgressReport(messages.append, clock=clock)
    bar.step("", 0.0, 60.0)
    assert messages == ["loading the model, 60 s left"]
    for second in range(1, 25):
        clock.now += 1
        bar.step("", 0.0, 60.0 - second)
    assert messages[1:] == ["loading the model, 50 s left", "loading the model, 40 s left"]
    messages.clear()
    bar.step("confirming draft-simple d2.gguf K=3", 0.5, 24.4)
    clock.now += 9.9
    bar.step("confirming draft-simple d2.gguf K=3", 0.6, 14.5)
    bar.step("", 0.6, 14.5)
    assert messages == ["confirming draft-simple d2.gguf K=3, 24 s left"]
    clock.now += 0.1
    bar.step("", 1.0, 0.0)
    assert messages[1:] == ["confirming draft-simple d2.gguf K=3, the budget is spent"]


def test_on_a_terminal_the_bar_shows_progress() -> None:
    drawn: list[tuple[str, str, float]] = []
    bar = ProgressReport(lambda text: pytest.fail("said"), lambda *values: drawn.append(values))
    bar.step("learning", 0.25, 45.0)
    bar.step("", 0.5, 30.0)
    assert drawn == [("learning", "45 s left", 0.25), ("learning", "30 s left", 0.5)]


# ---- serve ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe_result() -> ProbeResult:
    """The plan of one workload with a result built by hand."""
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    (each,) = plan_probes(
        ProbeOptions(settings, (SpeculationOptions("code", DRAFT),), llama_server="embedded")
    )
    return ProbeResult(each, made.tuned())


def printed_lines(probe_result: ProbeResult, t: TuningResult) -> list[str]:
    return list(tuning_lines(TuningOutcome(probe_result.plan, "measured", ("a note",), t)))


def test_serve_prints_the_decision_and_why_the_other_settings_lost(
    probe_result: ProbeResult,
) -> None:
    lines = printed_lines(probe_result, made.tuned())
    assert lines[0] == "tuning   a note"
    assert lines[1].startswith("expected ngram-simple n=4 m=8 1.")
    assert lines[1].endswith(": replayed over 8 plain answers")
    assert lines[2].startswith("expected draft-simple d2.gguf K=3 1.")
    assert lines[3] == f"tuned    {made.REASON} (4 model loads, 57 s)"
    assert lines[4] == "not used draft-mtp: llama-server exited: it crashed (SIGSEGV)"
    assert lines[5] == "not used ngram-mod n=4 m=8 (1.00x): predicted not to pay off"
    off = printed_lines(probe_result, replace(made.tuned(best=False), loads=1))
    assert off[3] == f"tuned    off: {made.REASON} (1 model load, 57 s)"


def test_expected_lines_are_in_the_order_of_the_launches(probe_result: ProbeResult) -> None:
    """Seen: 1.77x above 1.74x, and the second one was launched first: its texts agree more."""
    uncertain = Prediction(made.NGRAM, made.ratios(1.4, spread=0.9), "replayed")
    certain = Prediction(made.DRAFTED, made.ratios(1.35, spread=0.01), "one launch")
    t = replace(made.tuned(), predictions=(uncertain, certain), dropped=())
    names = [line.split()[1] for line in printed_lines(probe_result, t) if "expected" in line]
    assert names == ["draft-simple", "ngram-simple"]


def test_workloads_that_a_stopped_probe_did_not_reach_are_named(
    probe_result: ProbeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    each = tuple(SpeculationOptions(name) for name in ("code", "chat", "edit"))
    options = replace(probe_result.planned.options, spec_options_list=each)
    show_unreached(Printer(as_json=False), options, 1)
    assert capsys.readouterr().out == "stopped before chat, edit could be measured\n"
    show_unreached(Printer(as_json=False), options, 3)
    show_unreached(Printer(as_json=True), options, 1)
    assert capsys.readouterr().out == ""


def test_a_column_that_is_empty_in_all_rows_is_omitted(probe_result: ProbeResult) -> None:
    alone = replace(
        probe_result, tuned=replace(made.tuned(best=False), confirmations=(), trials=())
    )
    empty = {
        n
        for i, n in enumerate(probe_table.columns(alone))
        if not any(r[i] for r in probe_table.rows(alone))
    }
    names = {str(c.header) for c in probe_table.table(alone).columns}
    assert empty
    assert names == set(probe_table.columns(alone)) - empty


def test_a_reason_is_not_printed_twice(probe_result: ProbeResult) -> None:
    reason = "it takes 30.0 ms per token, the target 40.0 ms: it cannot pay off"
    both = (
        DroppedSetting("draft-simple a.gguf", reason),
        DroppedSetting("draft-simple b.gguf", reason),
    )
    t = replace(made.tuned(best=False), predictions=(), dropped=both, reason="no draft pays")
    assert printed_lines(probe_result, t)[2:] == [
        f"not used draft-simple a.gguf, draft-simple b.gguf: {reason}"
    ]
    t = replace(t, reason=f"draft-simple a.gguf: {reason}")
    assert printed_lines(probe_result, t)[2:] == []


def test_an_unknown_interval_is_reported() -> None:
    assert interval_text(Interval(1.2, 0.0, math.inf)) == "1.20x (too few prompts for an interval)"
    assert interval_text((1.2, 1.1, 1.3)) == "1.20x (1.10 to 1.30)"
    assert interval_text(None) == ""


def through_json(data: dict[str, Any]) -> dict[str, Any]:
    """The data after a round trip through strict JSON."""
    found: dict[str, Any] = json.loads(strict_json(data))
    return found


def test_json_of_a_tuning_has_all_figures(probe_result: ProbeResult) -> None:
    one = Prediction(made.DRAFTED, Ratios((0.1,), (60.0,)), "one answer")
    none = Prediction(made.NGRAM, Ratios(), "profile default")
    t = replace(made.tuned(), predictions=(*made.tuned().predictions, one, none))
    data = through_json(tuning_data(TuningOutcome(probe_result.plan, "measured", (), t)))["tuning"]
    assert "Infinity" not in json.dumps(data)
    assert (data["source"], data["state"], data["best"]) == (
        "measured",
        "decided",
        "draft-simple d2.gguf K=3",
    )
    assert (data["loads"], data["seconds"], data["reason"]) == (4, 57.3, made.REASON)
    assert data["baseline"]["step_ms"] == 90
    assert data["baseline"]["verify_ms"]["5"] == 160
    assert data["predictions"][-2]["speedup"][1:] == [0.0, None]
    assert data["predictions"][-1]["speedup"] is None
    drafted, copied = data["confirmations"]
    assert (drafted["n_max"], drafted["ngram"]) == (3, None)
    assert (copied["n_max"], copied["ngram"]) == (None, {"n": 4, "m": 8, "min_hits": 1})
    assert drafted["speedup"][1] < drafted["speedup"][0] < drafted["speedup"][2]
    assert 0 <= drafted["chance_slower"] < 0.1
    assert drafted["texts"] == 9
    deep = {"tokens": 2048, "alpha": 0.41, "speedup": 0.98, "responses": 1}
    assert drafted["deep"] == deep
    assert data["trials"][0]["predicted"]["3"][0] > data["trials"][0]["predicted"]["8"][0]
    assert data["ngram_maps"][0]["best"] == {"n": 4, "m": 6, "min_hits": 1}
    assert {d["setting"]: d["crashed"] for d in data["dropped"]}["draft-mtp"] is True
    known = through_json(tuned_data(replace(t, baseline=None, confirmations=(), best=None)))
    assert known["baseline"] is None
    assert known["speculation"] == "off"


# ---- probe ------------------------------------------------------------------------


def test_the_table_of_a_probe(probe_result: ProbeResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_table, "extra_memory", lambda plan, confirmation: 2**20)
    names = probe_table.columns(probe_result)
    plain, drafted, copied, *_ = probe_table.rows(probe_result)
    assert len(plain) == len(drafted) == len(copied) == len(names)
    row = dict(zip(names, drafted, strict=True))
    assert re.fullmatch(r"1\.\d\dx \(1\.\d\d to 1\.\d\d\)", row["speed-up"])
    assert row["chance slower"] == "<1%"
    assert row["draft/verify"] == "12%/88%"
    # 950 ms for 260 tokens on average, compared with 950 ms for 220 without speculation
    assert row["first token"] == "-173 ms"
    assert row["memory"] == "+1.0 MiB"
    assert dict(zip(names, copied, strict=True))["α·K"] == ""
    assert dict(zip(names, plain, strict=True))["speed-up"] == "1x"


def test_several_slots_show_the_total_speed_and_that_per_request(
    probe_result: ProbeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_table, "extra_memory", lambda plan, confirmation: None)
    both = replace(
        probe_result,
        planned=replace(probe_result.planned, task=replace(probe_result.planned.task, slots=4)),
    )
    names = probe_table.columns(both)
    measured = [cells for cells in probe_table.rows(both) if cells[names.index("per request")]]
    assert len(measured) >= 3
    for cells in measured:
        row = dict(zip(names, cells, strict=True))
        assert float(row["tok/s, all"]) == pytest.approx(4 * float(row["per request"]), abs=0.3)
    assert probe_lines.about_length(both).endswith(", 4 requests at a time")


def test_the_lengths_of_a_verdict_by_prediction_are_those_of_the_trials(
    probe_result: ProbeResult,
) -> None:
    t = probe_result.tuned
    assert t.baseline is not None
    short = Measurement((made.answer((), prompt=9),))
    tuned = replace(t, confirmations=(), baseline=replace(t.baseline, measurement=short))
    length = probe_lines.about_length(replace(probe_result, tuned=tuned))
    assert length.startswith("prompts of 9 to ")
    assert len(t.trials) > 0


def test_a_verdict_names_the_lengths_it_was_measured_for(probe_result: ProbeResult) -> None:
    lines = list(probe_lines.verdict_lines(probe_result))
    about = "prompts of 60 to 460 tokens and responses of up to 64"
    assert lines[0] == f"verdict  on for {about}: {made.REASON}"
    assert (
        "long     after a prompt of 2,048 tokens: draft-simple d2.gguf K=3 is 0.98x plain decoding, α=0.41 "
        "(1 response)" in lines
    )
    assert "cost     4 model loads, 57 s" in lines
    assert (
        "verify   2 tokens take as long as 1.3 plain steps, 4 take 1.6, 8 take 2.3, 16 take 3.6"
        in lines
    )
    assert any(
        line.startswith("step     ") and "a plain step took 91.0 ms in the same launch" in line
        for line in lines
    )
    assert lines[-1].startswith("run      specllama serve ")


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 0, 0), "0 results"),
        ((3, 4, 0), "3 results, 4 records of real requests"),
        ((1, 1, 2), "1 result, 1 record of real requests, 2 switches"),
    ],
)
def test_cleared_results_are_counted_by_kind(counts: tuple[int, int, int], text: str) -> None:
    assert cleared(*counts) == text


def test_a_probe_that_measured_nothing_is_shown_as_open(probe_result: ProbeResult) -> None:
    """Loading took the whole budget: no baseline, no curve, no lengths."""
    t = replace(
        made.tuned("open", best=False), baseline=None, trials=(), ngrams=(), predictions=(), confirmations=(),
        dropped=(), reason="loading took 50 s of 60 s: not enough time to measure anything",
    )  # fmt: skip
    p = replace(probe_result, tuned=t)
    at = probe_table.columns(p).index("speed-up")
    assert {cells[at] for cells in probe_table.rows(p)} == {"not measured"}
    lines = list(probe_lines.below_table(p))
    assert lines[0] == f"verdict  open: {t.reason}"
    assert len(lines) == 3
    assert probe_lines.title(p) == "target.gguf, code (undecided when the budget ended)"
    assert probe_lines.title(replace(p, stopped=True)).endswith("(stopped early, no verdict yet)")
    assert tuning_charts(t) == []


def test_the_run_line_of_an_open_result_goes_on_measuring(probe_result: ProbeResult) -> None:
    """--method none would never measure, and other prompts would have another result."""
    file = Path("my prompts.txt")
    options = replace(probe_result.planned.options, prompts_file=file)
    planned = replace(probe_result.planned, options=options)
    p = replace(probe_result, planned=planned, tuned=made.tuned("open", best=False))
    words = shlex.split(probe_lines.run_line(p))
    assert words[-4:] == ["--draft", str(DRAFT), "--prompts", str(file)]
    assert "--method" not in words
    assert probe_lines.title(p).startswith("target.gguf, code, prompts of my prompts.txt (")
    decided = replace(p, tuned=made.tuned(best=False))
    assert shlex.split(probe_lines.run_line(decided))[-2:] == ["--method", "none"]


def test_text_plots_show_predicted_and_measured_speed_ups(probe_result: ProbeResult) -> None:
    out = "\n".join(probe_lines.below_table(probe_result))
    assert "speed-up by draft length K, draft-simple d2.gguf" in out
    assert re.search(r"K=3 .*●.* 1\.18x predicted, 1\.12x measured", out)
    assert "speed-up by n-gram sizes, ngram-simple (predicted from all texts; [ ] = highest)" in out
    assert "[1.40]" in out
    assert "ngram-map-k with draft-simple d2.gguf K=3: 1.20x at n=4 m=6" in out
    assert all(len(line) <= 80 for line in ngram_table(made.tuned().ngrams))
    flat = NgramSpeedups("ngram-mod", {NgramSizes(16, 8): 1.0, NgramSizes(16, 16): 0.98})
    assert list(ngram_table([flat])) == [
        "speed-up by n-gram sizes: no size of any type is predicted to be over 1.00x"
    ]
    assert list(ngram_table([])) == []


def test_unknown_verification_costs_are_interpolated_or_left_out() -> None:
    plain = StepCost(50.0, 0.5, 9)
    assert verify_line(VerifyCosts(plain)) == ""
    assert (
        verify_line(VerifyCosts(plain, {1: 50.0, 3: 75.0}))
        == "2 tokens take as long as 1.2 plain steps"
    )
    assert (
        verify_line(VerifyCosts(plain, {1: 50.0, 8: 100.0}, 4))
        == "2 tokens take as long as 1.4 plain steps"
    )


# ---- the command ------------------------------------------------------------------


class FakeLaunch:
    """A running server that the tuner hands over to serve."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1


def run_serve(
    monkeypatch: pytest.MonkeyPatch, up: FakeLaunch, *args: str
) -> tuple[int, dict[str, Any]]:
    """The exit code of serve, and the arguments it passed to a fake tuner and server."""
    arguments: dict[str, Any] = {}

    def tune_plan(plan: Any, wanted: Any, log: Path, progress: Any) -> TuningOutcome:
        arguments.update(wanted=wanted, log=log)
        progress.step("measuring", 0.5, 30.0)
        return TuningOutcome(plan, "measured", (), made.tuned(), running=cast(Launch, up))

    def run(plan: Any, log: Path, *rest: Any) -> None:
        arguments.update(served_log=log, running=rest[3])

    monkeypatch.setattr("specllama.serving.tune.tune_plan", tune_plan)
    monkeypatch.setattr("specllama.serving.serve.run_server", run)
    command = ["serve", str(TARGET), "--draft", str(DRAFT), "--port", "0", "-c", "1024"]
    return app.run([*command, "--llama-server", "embedded", *args]), arguments


def test_serve_passes_its_options_to_the_tuner_and_uses_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\n---\ntwo\n")
    up, log = FakeLaunch(), tmp_path / "server.log"
    options = ("--draft-cache", "q8_0", "--draft-layers", "9", "--prompts", str(file))
    code, arguments = run_serve(monkeypatch, up, *options, "--budget", "45", "--log", str(log))
    assert code == 0
    wanted = arguments["wanted"]
    assert wanted.prompts == ("one", "two")
    assert wanted.budget == 45
    assert (wanted.scope.user_choice, wanted.scope.user_method) == (True, False)
    assert set(wanted.scope.other_options) == {"--draft-cache q8_0", "--draft-layers 9"}
    assert arguments["log"] == arguments["served_log"] == log
    assert arguments["running"] is up
    out = capsys.readouterr().out
    assert "tuning   measuring, 30 s left" in out
    assert "tuned    draft-simple d2.gguf K=3 is 1.12x" in out
    _, arguments = run_serve(monkeypatch, FakeLaunch(), "--method", "draft")
    assert arguments["wanted"].scope.user_method
    assert arguments["wanted"].scope.other_options == ()


def test_a_handed_over_server_is_stopped_if_anything_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(o: TuningOutcome, full: bool) -> list[str]:
        raise ZeroDivisionError("told nobody")

    monkeypatch.setattr("specllama.cli.tuning_lines.tuning_lines", broken)
    up = FakeLaunch()
    code, arguments = run_serve(monkeypatch, up)
    assert code == 1
    assert "running" not in arguments
    assert up.stopped == 1
    assert "told nobody" in capsys.readouterr().err


def test_bad_prompts_are_reported_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, arguments = run_serve(monkeypatch, FakeLaunch(), "--prompts", "/nowhere.txt")
    assert code == 2
    assert arguments == {}
    assert "/nowhere.txt: cannot be read" in capsys.readouterr().err


def test_slow_steps_print_progress_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specllama.cli.render._OFTEN_S", 0.01)
    printer = Printer()
    output = ""
    end = time.monotonic() + 10
    with printer.busy("loading the model …"):
        while output.count("\n") < 2 and time.monotonic() < end:
            output += capsys.readouterr().out
            time.sleep(0.005)
    assert output.startswith("loading the model … 0 s\nloading the model … 0 s\n")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().out == ""
    with printer.busy("quick"):
        pass
    assert "quick" not in capsys.readouterr().out


def test_the_speeds_in_a_table_agree_with_its_speed_ups(probe_result: ProbeResult) -> None:
    """Both speeds were measured in turn; the baseline launch is of another time."""
    at = probe_table.columns(probe_result).index("tok/s")
    plain, drafted, copied, *_ = probe_table.rows(probe_result)
    for row, confirmation in zip((drafted, copied), probe_result.tuned.confirmations, strict=True):
        ratio = float(row[at]) / float(plain[at])
        assert ratio == pytest.approx(confirmation.speedup.value, abs=0.02)
    unconfirmed = replace(probe_result, tuned=replace(probe_result.tuned, confirmations=()))
    (_, launched, *_) = probe_table.rows(unconfirmed)
    predicted = launched[probe_table.columns(probe_result).index("speed-up")]
    assert predicted.endswith("x predicted")
    ratio = float(launched[at]) / float(plain[at])
    assert ratio == pytest.approx(float(predicted.split("x")[0]), abs=0.02)
    html = report._section(probe_result, "w0")
    assert drafted[at] in str(html)
    alone = replace(probe_result, tuned=replace(probe_result.tuned, baseline=None))
    own, *_ = probe_table.rows(alone)
    assert own[at] == f"{probe_result.tuned.confirmations[0].measurement.tokens_per_second:.1f}"


@pytest.mark.parametrize(
    ("reason", "shortened"),
    [
        ("it is off", "it is off"),
        ("one thing; another", "one thing …"),
        ("word " * 40, "word " * 19 + "word …"),
        ("x" * 300, "x" * 100 + " …"),
        ("", ""),
    ],
)
def test_a_reason_in_a_list_is_shortened_to_one_line(reason: str, shortened: str) -> None:
    assert brief(reason.strip()) == shortened


def test_verbose_results_print_reasons_in_full(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # other tests left results
    whole = f"one thing; {'another, ' * 30}last"
    about = Subject("/models/t.gguf", "code", (), (), "native", ())
    store(about, replace(made.tuned(best=False), reason=whole))
    assert app.run(["results"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "off      t.gguf, code: one thing …"
    assert app.run(["results", "--verbose"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"off      t.gguf, code: {whole}",
        "with     t.gguf, code, no speculation: options unknown",
    ]
    assert app.run(["results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["reason"] == whole
