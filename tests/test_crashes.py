"""Servers that crash, stall or do not draft. They are scripted: real ones do not on demand."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specllama.cli.render import Printer
from specllama.cli.serve_lines import ServeReport, engagement_line
from specllama.engine import process
from specllama.engine.command import LaunchCommand
from specllama.engine.errors import EngineError
from specllama.engine.exits import explain
from specllama.engine.settings import Settings
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving import serve as serving
from specllama.serving.launch import Launch, Reporter, launch
from specllama.serving.real_requests import TrafficMonitor, TuningReference
from specllama.serving.trial_servers import TrialServers
from specllama.serving.verify import Engagement
from specllama.watching.verdict import NO_THRESHOLDS, Thresholds
from tests.fake_server import Fake
from tests.support import MODELS, Serve, process_ended, script, specllama

TARGET = MODELS / "target.gguf"


def test_a_crash_at_start_is_retried_without_speculation(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_with_spec="GGML_ASSERT(n_embd == 1) failed")
    with Serve(tmp_path, TARGET, "--llama-server", fake.path) as s:
        assert s.info["speculation"] == "off"
        assert "did not start with it: llama.cpp failed an assertion" in s.info["reason"]
        assert "retrying without speculation" in s.err
        first, second = fake.starts
        assert "--spec-type" in first
        assert not any(a.startswith("--spec") or a == "-md" for a in second)


def test_out_of_memory_is_explained_and_the_next_option_is_tried(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_with_draft="cudaMalloc failed: out of memory", draft_n=8)
    draft = MODELS / "draft.gguf"
    with Serve(tmp_path, TARGET, "--draft", draft, "--llama-server", fake.path) as s:
        assert s.info["methods"] == ["ngram-simple"]
        assert "did not start with it: it ran out of memory" in s.info["because"]
        assert "retrying with ngram-simple" in s.err
        assert re.search(r"memory +RAM: \d+ of [\d,]+ MiB free \(target \w+", s.err)
        first, second = fake.starts
        assert "-md" in first
        assert "-md" not in second


def test_a_crash_by_a_signal_at_start_is_retried_without_speculation(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_with_spec="", code=-11)
    with Serve(tmp_path, TARGET, "--llama-server", fake.path) as s:
        assert "it crashed (SIGSEGV)" in s.info["reason"]


def test_a_server_stopped_by_another_process_keeps_its_speculation(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_with_spec="", code=-15)
    done = specllama("serve", TARGET, "--tune", "off", "--port", "0", "--llama-server", fake.path)
    assert done.returncode == 1
    assert "did not start: another process stopped it (SIGTERM)" in " ".join(done.stderr.split())
    assert len(fake.starts) == 1
    plan = prepare(Settings(TARGET, "127.0.0.1", 0), SpeculationOptions("chat"), (), str(fake.path))
    assert plan.settings.speculation is not None
    log, report = tmp_path / "log", ServeReport(Printer())
    assert serving._after_crash(plan, explain(-15, ""), 2, log, report) == plan


@pytest.mark.parametrize("tune", ["off", "auto"])
def test_a_binary_for_another_cpu_is_started_only_once(tmp_path: Path, tune: str) -> None:
    fake = Fake(tmp_path, crash="", code=-4)
    done = specllama("serve", TARGET, "--tune", tune, "--llama-server", fake.path)
    assert done.returncode == 1
    assert "built for another CPU" in done.stderr
    assert len(fake.starts) == 1


@pytest.mark.parametrize(
    ("text", "message", "starts"),
    [
        ("unknown model architecture: 'foo9'", "'foo9'", 1),
        ("error: invalid argument: --metrics", "--metrics", 1),
        ("cudaMalloc failed: out of memory", "out of memory", 2),
    ],
)
def test_the_reason_why_a_server_does_not_start_is_printed(
    tmp_path: Path, text: str, message: str, starts: int
) -> None:
    fake = Fake(tmp_path, crash=text)
    done = specllama("serve", TARGET, "--port", "0", "--llama-server", fake.path)
    assert done.returncode == 1
    assert "llama-server did not start: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(fake.starts) == starts


def test_a_crash_during_measurement_is_not_reported_as_a_failed_start(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_after=0.5)
    settings = Settings(TARGET, "127.0.0.1", 0)
    plan = prepare(settings, SpeculationOptions("chat", method="none"), (), str(fake.path))
    runner = TrialServers(plan, tmp_path / "log")
    with pytest.raises(EngineError) as broken:
        _send_requests_until_it_exits(runner)
    assert runner.blame(broken.value).message.startswith("llama-server exited: it crashed")
    runner.stop()


def _send_requests_until_it_exits(runner: TrialServers) -> None:
    served = runner.start(None, lambda: None)
    while True:
        served.client.complete("x", 4, {})


def test_serve_gives_up_after_three_quick_crashes_with_the_reason(tmp_path: Path) -> None:
    fake = Fake(tmp_path, crash_after=1.5, draft_n=8)
    with Serve(tmp_path, TARGET, "--llama-server", fake.path) as s:
        assert s.info["speculation"] == "on"
        assert s.popen.wait(60) == 1
        assert "exited 3 times in a row: it crashed (SIGSEGV)" in s.err
        assert "exited again: it crashed (SIGSEGV); restarting without speculation" in s.err
    assert ["--spec-type" in argv for argv in fake.starts] == [True, True, False]


def test_load_time_does_not_count_as_running_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that loads for minutes and crashes once ready is also given up."""
    fake = Fake(tmp_path)
    launched: list[Launch] = []

    def loads_for_minutes(plan: Plan, log: Path, report: Reporter) -> Launch:
        assert len(launched) < serving.MAX_QUICK_CRASHES, "it should have been given up"
        running = launch(plan, log, report)
        running.server.started -= 10 * serving.QUICK_S
        running.server.popen.send_signal(signal.SIGSEGV)
        launched.append(running)
        return running

    monkeypatch.setattr(serving, "launch", loads_for_minutes)
    settings = Settings(TARGET, "127.0.0.1", 0)
    plan = prepare(settings, SpeculationOptions("chat", method="none"), (), str(fake.path))
    with pytest.raises(EngineError, match="exited 3 times in a row: it crashed"):
        serving.run_server(plan, tmp_path / "log", ServeReport(Printer()))


def test_speculation_is_off_if_nothing_is_drafted_whatever_slots_report(tmp_path: Path) -> None:
    fake = Fake(tmp_path, slots=True)
    with Serve(
        tmp_path, TARGET, "--draft", MODELS / "draft.gguf", "--llama-server", fake.path
    ) as s:
        assert s.info["speculation"] == "off"
        assert "no tokens were drafted in 2 probe requests" in s.info["reason"]
        assert s.info["tokens_per_second"] == 100


def test_speculation_is_off_if_slots_report_it(tmp_path: Path) -> None:
    fake = Fake(tmp_path, slots=False)
    with Serve(
        tmp_path, TARGET, "--draft", MODELS / "draft.gguf", "--llama-server", fake.path
    ) as s:
        assert "llama-server started without it" in s.info["reason"]


@pytest.mark.parametrize(
    ("brief", "sent"), [(True, "1 probe request"), (False, "2 probe requests")]
)
def test_the_reason_counts_the_probe_requests(tmp_path: Path, brief: bool, sent: str) -> None:
    engagement = check_fake_server(tmp_path, brief, slots=True)
    assert engagement.reason == f"no tokens were drafted in {sent}"
    assert engagement_line(engagement).startswith(
        f"speculation OFF because no tokens were drafted in {sent}; /slots reports speculative=true"
    )
    assert engagement.remedy.startswith("`specllama doctor` checks this llama-server")


def test_a_contradiction_of_slots_and_counters_is_reported(tmp_path: Path) -> None:
    engagement = check_fake_server(tmp_path, slots=False, draft_n=10)
    assert (engagement.engaged, engagement.alpha) == (True, 0.5)
    note = "/slots reports speculative=false although tokens were drafted"
    assert engagement_line(engagement).endswith(note)
    assert check_fake_server(tmp_path, slots=True, draft_n=10).doubt == ""


@pytest.mark.parametrize(
    ("drafted", "accepted", "memory", "line"),
    [
        (10, 30, "attention", "ON, but the counters contradict themselves: 30 of 10 drafted"),
        (10, -3, "attention", "ON, but the counters contradict themselves: -3 of 10 drafted"),
        (10, 10, "hybrid", "ON, but all 10 drafted tokens were accepted on a hybrid target: "),
        (10, 10, "attention", "ON: α=1.00 (10 of 10 drafted tokens accepted)"),
        (10, 9, "hybrid", "ON: α=0.90 (9 of 10 drafted tokens accepted)"),
    ],
)
def test_impossible_counters_give_no_alpha(
    drafted: int, accepted: int, memory: str, line: str
) -> None:
    engagement = Engagement(True, "", drafted, accepted, tokens=48, ms=480.0, memory=memory)
    assert engagement_line(engagement).startswith(f"speculation {line}")
    assert (engagement.alpha is None) == bool(engagement.doubt)


def test_a_negative_count_means_not_engaged(tmp_path: Path) -> None:
    engagement = check_fake_server(tmp_path, draft_n=-10)
    assert not engagement.engaged
    assert (
        "OFF because the server's counts of drafted tokens are not valid; the counters contradict"
        in engagement_line(engagement)
    )


def test_a_low_acceptance_rate_is_a_warning_unless_the_speed_was_measured(tmp_path: Path) -> None:
    """Seen: α=0.07 without a remark, while watch advised to turn speculation off."""
    fake = Fake(tmp_path, draft_n=80, accepted=5)
    args = ("--draft", MODELS / "draft.gguf", "--llama-server", fake.path)
    with Serve(tmp_path, TARGET, *args) as s:
        assert s.info["speculation"] == "on"
        assert s.info["warning"].startswith("α=0.06 is very low and the speed was not measured: ")
        assert s.err.count(f"note     {s.info['warning']}") == 1
    with fake_launch(fake, tmp_path / "log") as running:
        measured = TrafficMonitor(running, TuningReference(speedup=1.2), False, "http://h")
        assert measured.low_acceptance(160, 10) == ""
        assert measured.follower.limits == NO_THRESHOLDS, (
            "a measured speed-up is not overruled by α"
        )
        measured.close()
        unmeasured = TrafficMonitor(running, TuningReference(), False, "http://h")
        assert unmeasured.low_acceptance(160, 10)
        assert unmeasured.follower.limits == Thresholds(0.5, 0.4)
        unmeasured.close()


def check_fake_server(tmp_path: Path, brief: bool = False, **config: Any) -> Engagement:
    """The result of serve's check of a scripted server with a draft."""
    with fake_launch(Fake(tmp_path, **config), tmp_path / "log") as running:
        return serving.check_engagement(running, brief)


@contextmanager
def fake_launch(fake: Fake, log: Path) -> Iterator[Launch]:
    """A running scripted server with a draft."""
    settings = Settings(TARGET, "127.0.0.1", 0)
    spec_options = SpeculationOptions("chat", draft=MODELS / "draft.gguf")
    plan = prepare(settings, spec_options, (), str(fake.path))
    running = launch(plan, log, ServeReport(Printer()))
    try:
        yield running
    finally:
        running.stop()


def test_tokens_per_step_is_null_without_counters(tmp_path: Path) -> None:
    fake = Fake(tmp_path, draft_n=10)
    with Serve(
        tmp_path, TARGET, "--draft", MODELS / "draft.gguf", "--llama-server", fake.path
    ) as s:
        assert (s.info["speculation"], s.info["alpha"]) == ("on", 0.5)
        assert s.info["tokens_per_step"] is None


def test_a_stalled_start_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    fake = script(tmp_path / "llama-server", "import time; time.sleep(600)")
    server = process.start(LaunchCommand((str(fake),), {}, (), ()), tmp_path / "log")
    with pytest.raises(EngineError, match="no progress for 1 s"):
        process.wait_ready(server, lambda: False, stall_s=1)
    server.stop()
    assert process_ended(server.pid)


def test_a_slow_start_with_progress_is_waited_for(tmp_path: Path) -> None:
    body = "import time\nfor i in range(12): print(i, flush=True); time.sleep(0.4)\ntime.sleep(600)"
    server = process.start(
        LaunchCommand((str(script(tmp_path / "s", body)),), {}, (), ()), tmp_path / "log"
    )
    started = time.monotonic()
    checks = []

    def ready() -> bool:
        checks.append(time.monotonic() - started)
        return checks[-1] > 4

    try:
        process.wait_ready(server, ready, stall_s=2)
    finally:
        server.stop()
    assert checks[-1] > 4, "twice as long as it may stall"


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    body = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(600)"
    server = process.start(
        LaunchCommand((str(script(tmp_path / "s", body)),), {}, (), ()), tmp_path / "log"
    )
    while "on" not in server.log_text().splitlines():
        time.sleep(0.05)
    assert server.stop(patience=0.5) == -9
