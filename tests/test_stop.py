"""Signals: a clean stop at any time, any number of signals, no process or file left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.cli import probe_lines
from specllama.cli.app import run
from specllama.engine import process
from specllama.engine.command import LaunchCommand
from specllama.engine.settings import Settings
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving import probe as probing
from specllama.serving.probe import ProbeOptions
from specllama.stop import (
    ALL,
    INTERRUPT,
    Stopped,
    ignore_from_now,
    signals_deferred,
    stop_on_signals,
)
from specllama.storage import write_atomically
from specllama.tuning import results
from specllama.tuning.records import DECIDED, TuningResult
from specllama.tuning.search import Interrupted
from tests.fake_server import Fake
from tests.support import MODELS, ONE_THREAD, Serve, process_ended, script

TARGET = MODELS / "target.gguf"
# Sends Ctrl-C twice when a module is about to be imported.
_HOOK = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"] and "serve" in sys.orig_argv:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def processes_with(path: Path) -> list[psutil.Process]:
    """Processes that name the file in their arguments."""
    found = []
    for p in psutil.process_iter():
        try:
            if any(str(path) in a for a in p.cmdline()) and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    "at",
    [
        "specllama.cli.app",
        "typer",
        "specllama.stop",
        "specllama.cli.serve",
        "specllama.planning.prepare",
        "specllama.serving.serve",
        "platformdirs",
    ],
)
def test_two_ctrl_c_during_startup_print_no_traceback(tmp_path: Path, at: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_HOOK)
    model = tmp_path / "model.gguf"
    model.write_bytes(TARGET.read_bytes())
    state = tmp_path / "state"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "AT": at, "PYTHONPATH": path}
    env |= {f"XDG_{x}_HOME": str(state) for x in ("CACHE", "STATE")}
    argv = [sys.executable, "-m", "specllama", "serve", str(model), "--llama-server", "embedded"]
    done = subprocess.run(
        [*argv, "--port", "0", "--tune", "off", *ONE_THREAD],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert done.returncode in (-signal.SIGINT, 130)  # a shell reports both as 130
    assert done.stderr in ("", "stopped\n")
    assert "serving" not in done.stdout
    assert not processes_with(model)
    assert [p for p in state.rglob("*") if p.is_file() and p.suffix not in (".json", ".log")] == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_while_the_server_loads_stop_it(tmp_path: Path, signum: int, code: int) -> None:
    fake = Fake(tmp_path, stall=True)
    s = Serve(tmp_path, TARGET, "--method", "none", "--llama-server", fake.path)
    s.wait_for(lambda: fake.starts, "start")
    s.popen.send_signal(signum)
    s.popen.send_signal(signum)
    assert s.popen.wait(60) == code
    assert "Traceback" not in s.err
    assert not processes_with(fake.path)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_repeated_signals_while_serving_exit_with_0(tmp_path: Path, signum: int) -> None:
    fake = Fake(tmp_path)
    with Serve(tmp_path, TARGET, "--method", "none", "--llama-server", fake.path) as s:
        for _ in range(5):
            s.popen.send_signal(signum)
            time.sleep(0.005)
        assert s.popen.wait(60) == 0
        assert "Traceback" not in s.err
        assert process_ended(s.info["server_pid"])


def test_another_ctrl_c_does_not_wait_for_running_requests(tmp_path: Path) -> None:
    fake = Fake(tmp_path, ignores_sigterm=True)
    with Serve(tmp_path, TARGET, "--method", "none", "--llama-server", fake.path) as s:
        s.popen.send_signal(signal.SIGINT)
        s.wait_for(lambda: "stopping; running requests have up to 10 s" in s.err, "a line")
        time.sleep(0.4)  # longer than one Ctrl-C that a wrapper delivers twice
        assert psutil.pid_exists(s.info["server_pid"])
        s.popen.send_signal(signal.SIGINT)
        assert s.popen.wait(60) == 0
        assert s.err.endswith("stopped\n")
        assert process_ended(s.info["server_pid"])


def test_another_ctrl_c_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    server = process.start(
        launch_command(script(tmp_path / "s", _IGNORES_SIGTERM)), tmp_path / "log"
    )
    while "on" not in server.log_text().splitlines():
        time.sleep(0.01)
    again = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            again.start()
            server.stop(patience=600)  # longer than the test may take

    with pytest.raises(Stopped), stop_on_signals():
        work()
    again.join()
    assert server.popen.returncode == -signal.SIGKILL


def test_an_interrupt_that_the_parent_ignores_stays_ignored(tmp_path: Path) -> None:
    """This applies to nohup and to background jobs of a shell."""
    fake = Fake(tmp_path)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve = Serve(tmp_path, TARGET, "--method", "none", "--llama-server", fake.path)
    finally:
        signal.signal(signal.SIGINT, before)
    with serve as s:
        s.popen.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert s.popen.poll() is None
        assert s.stop() == 0


# ---- the exceptions -----------------------------------------------------------------


def test_the_first_interrupt_skips_and_the_second_stops() -> None:
    with stop_on_signals():
        with stop_on_signals(INTERRUPT):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            with pytest.raises(Stopped) as e:
                signal.raise_signal(signal.SIGINT)
        assert (e.value.is_interrupt, e.value.exit_code) == (True, 130)
        signal.raise_signal(signal.SIGINT)  # the cleanup has begun
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_is_not_skipped() -> None:
    with stop_on_signals(INTERRUPT):
        with pytest.raises(Stopped) as e:
            signal.raise_signal(signal.SIGTERM)
        assert (e.value.is_interrupt, e.value.exit_code) == (False, 143)
        signal.raise_signal(signal.SIGINT)
    with stop_on_signals(ALL), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped), stop_on_signals(), stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_are_ignored_after_ignore_from_now() -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with stop_on_signals():
            ignore_from_now()
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def test_deferred_signals_are_delivered_afterwards() -> None:
    done = []

    def work() -> None:
        with signals_deferred():
            with signals_deferred():
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        done.append(2)

    with stop_on_signals(), pytest.raises(Stopped) as e:
        work()
    assert done == [1]
    assert e.value.signum == signal.SIGTERM


# ---- no process or file left behind -------------------------------------------------


@contextmanager
def sigterm_after(seconds: float) -> Iterator[None]:
    """Sends SIGTERM to this process after so many seconds."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        yield
    finally:
        timer.join()


_IGNORES_SIGTERM = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(600)"


def launch_command(path: Path) -> LaunchCommand:
    return LaunchCommand((str(path),), dict(os.environ), (), ())


def test_a_signal_while_a_server_stops_kills_it(tmp_path: Path) -> None:
    server = process.start(
        launch_command(script(tmp_path / "s", _IGNORES_SIGTERM)), tmp_path / "log"
    )
    while "on" not in server.log_text().splitlines():
        time.sleep(0.01)
    with stop_on_signals(), pytest.raises(Stopped), sigterm_after(0.1):
        server.stop(patience=60)
    assert server.popen.returncode == -signal.SIGKILL


def test_a_signal_while_a_server_starts_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives when the process runs but has not been returned yet."""
    real, started = process._popen, []

    def start(*args: Any) -> Any:
        started.append(real(*args))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(process, "_popen", start)
    with stop_on_signals(), pytest.raises(Stopped):
        process.start(launch_command(script(tmp_path / "s", _IGNORES_SIGTERM)), tmp_path / "log")
    assert started[0].poll() is None
    process._kill_all()  # as at the end of the program
    assert started[0].returncode == -signal.SIGKILL


def test_a_signal_while_a_file_is_written_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(*args: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        real(*args)

    monkeypatch.setattr(os, "replace", replace)
    with stop_on_signals(), pytest.raises(Stopped):
        write_atomically(tmp_path / "file", "all of it")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "all of it"


# ---- probe --------------------------------------------------------------------------


def decided_result(workload: str) -> TuningResult:
    return TuningResult(workload, None, (), (), (), (), None, "off", (), 1, 1.0, DECIDED)


@pytest.mark.parametrize("partial", [True, False])
def test_a_stop_in_the_second_workload_keeps_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: bool
) -> None:
    """`partial`: the second one has measurements."""

    def tune(runner: Any, task: Any, progress: Any) -> TuningResult:
        if task.workload == "chat":
            return decided_result("chat")
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            if partial:
                raise Interrupted(decided_result("code")) from None
            raise
        raise AssertionError("the signal was lost")

    monkeypatch.setattr(probing, "tune", tune)
    monkeypatch.setattr(results, "store", lambda *_: True)
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    options = ProbeOptions(
        settings, (SpeculationOptions("chat"), SpeculationOptions("code")), llama_server="embedded"
    )
    with stop_on_signals():
        found = probing.run_probe(options, tmp_path / "log", None)  # type: ignore[arg-type]
    assert [p.tuned.workload for p in found] == (["chat", "code"] if partial else ["chat"])
    assert [p.stopped for p in found] == ([False, True] if partial else [False])


@pytest.mark.parametrize("writable", [False, True])
def test_a_result_that_cannot_be_saved_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    """With a read-only cache it was lost without a word."""
    monkeypatch.setattr(probing, "tune", lambda *_: decided_result("chat"))
    monkeypatch.setattr(results, "write_stored", lambda *_: writable)
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    options = ProbeOptions(settings, (SpeculationOptions("chat"),), llama_server="embedded")
    (p,) = probing.run_probe(options, tmp_path / "log", None)  # type: ignore[arg-type]
    notes = [
        line for line in probe_lines.verdict_lines(p) if "the result could not be saved" in line
    ]
    assert len(notes) == (0 if writable else 1)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_probe_stopped_before_its_verdict_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """It was 1, as for a failure."""

    def run_probe(options: ProbeOptions, *_: Any) -> tuple[probing.ProbeResult, ...]:
        (planned,) = probing.plan_probes(options)
        return (probing.ProbeResult(planned, decided_result("chat"), stopped=stopped),)

    monkeypatch.setattr("specllama.serving.probe.run_probe", run_probe)
    code = run(["probe", str(TARGET), "--llama-server", "embedded", "--json"])
    assert code == (130 if stopped else 0)


@pytest.mark.parametrize("replay", [False, True])
def test_ctrl_c_before_anything_is_measured_exits_with_130(
    replay: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specllama.serving.probe.run_probe", interrupt)
    monkeypatch.setattr("specllama.serving.replay.replay_conversations", interrupt)
    past = tmp_path / "past.jsonl"
    past.write_text('{"prompt": "a", "answer": "b"}\n')
    words = ["--replay", str(past)] if replay else []
    assert run(["probe", str(TARGET), "--llama-server", "embedded", *words]) == 130
    what = "replayed" if replay else "measured"
    assert f"stopped before anything was {what}" in capsys.readouterr().err
