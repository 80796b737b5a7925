"""Server logs: private, limited in size while they are written, and limited in number."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from specllama import logs
from specllama.cli.render import Printer
from specllama.cli.serve_lines import ServeReport
from specllama.engine import process
from specllama.engine.command import LaunchCommand
from specllama.engine.errors import EngineError
from specllama.engine.settings import Settings
from specllama.logs import ServerLog, in_use, log_dir, new_log, remove_old
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving import serve as serving
from specllama.serving.serve import Ready
from tests.fake_server import Fake
from tests.support import MODELS, script

_CHATTY = """
import sys, time
for i in range(10**9):
    print(f"line {i:09}", flush=True)
    if i % 50 == 49: time.sleep(0.002)
"""


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that is soon reached."""
    monkeypatch.setattr(logs, "MAX_BYTES", 20_000)
    return logs.MAX_BYTES


def launch_command(path: Path) -> LaunchCommand:
    return LaunchCommand((str(path),), dict(os.environ), (), ())


def test_a_log_is_trimmed_while_it_is_written(tmp_path: Path, small_limit: int) -> None:
    log, second = tmp_path / "log", tmp_path / "log.1"
    server = process.start(launch_command(script(tmp_path / "s", _CHATTY)), log)
    try:
        cuts = 0
        until = time.monotonic() + 30
        while cuts < 3:
            assert time.monotonic() < until
            before = log.stat().st_size
            server.output.trim()
            if log.stat().st_size < before:
                cuts += 1
                shown = server.log_text(5_000)  # continues across the trim
                assert len(shown) > 4_000
                assert second.stat().st_size < small_limit
            assert log.stat().st_size < small_limit
            time.sleep(0.001)
        while log.stat().st_size < small_limit // 10:
            assert time.monotonic() < until
            time.sleep(0.001)
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert stat.S_IMODE(second.stat().st_mode) == 0o600
    finally:
        server.stop()
    text = log.read_text()
    assert "\0" not in text  # no hole: writing continues at the new end
    numbers = [int(line[5:]) for line in text.splitlines() if len(line) == 14]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_two_thousand_requests_stay_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lists its prompt cache at every request, as b11434 does at -lv 4."""
    limit = 400_000  # a tenth of what is printed
    monkeypatch.setattr(logs, "MAX_BYTES", limit)
    fake = Fake(tmp_path, lists=20)
    plan = prepare(
        Settings(MODELS / "target.gguf", "127.0.0.1", 0),
        SpeculationOptions("chat", method="none"),
        (),
        str(fake.path),
    )
    log, largest = tmp_path / "log", 0
    monkeypatch.setattr(serving, "_POLL_S", 0.01)

    def send_requests() -> None:
        nonlocal largest
        with httpx.Client(base_url=plan.settings.url, trust_env=False) as client:
            for _ in range(2_000):
                client.post("/completion", json={})
                largest = max(largest, sum(p.stat().st_size for p in tmp_path.glob("log*")))
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send_requests)

    class Report(ServeReport):
        def ready(self, ready: Ready) -> None:
            sender.start()

    serving.run_server(plan, log, Report(Printer()))
    sender.join()
    assert "cached prompt 19" in log.read_text() + (tmp_path / "log.1").read_text()
    assert limit / 2 < largest < 2 * limit  # plus what is printed between two checks


def test_the_newest_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log_dir().mkdir(parents=True)
    for i in range(30):
        (log_dir() / f"20260101-0000{i:02}-8080.log").touch()
    new = new_log(8080)
    left = sorted(p.name for p in log_dir().glob("*.log"))
    assert left == [f"20260101-0000{i:02}-8080.log" for i in range(11, 30)]
    assert new.parent == log_dir()
    assert new.name.endswith("-8080.log")


def test_the_total_size_of_all_logs_is_limited(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.log").write_bytes(b"x" * 100)
        (tmp_path / f"{i}.log.1").write_bytes(b"x" * 100)
    remove_old(tmp_path, 20, 500)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3.log", "3.log.1", "4.log", "4.log.1"]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
def test_the_log_of_a_running_server_is_not_removed(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    server = process.start(
        launch_command(script(tmp_path / "s", "import time; time.sleep(600)")), log
    )
    try:
        assert in_use(log)
        (tmp_path / "1.log").touch()
        remove_old(tmp_path, 0, 0)
        assert [p.name for p in tmp_path.glob("*.log")] == ["0.log"]
    finally:
        server.stop()
    assert not in_use(log)
    remove_old(tmp_path, 0, 0)
    assert not log.exists()


def test_a_large_log_of_an_earlier_run_is_moved_whole(tmp_path: Path, small_limit: int) -> None:
    log = tmp_path / "mine.log"
    log.write_bytes(b"earlier\n" * small_limit)
    server = process.start(launch_command(Path("/bin/echo")), log)
    server.popen.wait(10)
    assert (tmp_path / "mine.log.1").read_bytes() == b"earlier\n" * small_limit
    assert "earlier" not in log.read_text()


def _written(path: Path, first: str, text: str) -> ServerLog:
    """The log of a server that printed `text`."""
    log = ServerLog(path)
    with log.open(first) as out:
        out.write(text.encode())
    return log


def test_lines_of_an_older_server_are_not_part_of_this_log(
    tmp_path: Path, small_limit: int
) -> None:
    path = tmp_path / "mine.log"
    _written(path, "$ a", "out of memory\n" * (small_limit // 70))
    new = _written(path, "$ a", "loading\n" * (small_limit // 25))
    assert new.text(small_limit).startswith("$ a\nloading\n")
    new.trim()
    assert path.stat().st_size == 0
    assert "out of memory" in (tmp_path / "mine.log.1").read_text()
    shown = new.text(10 * small_limit)
    assert shown.startswith("$ a\nloading\n")
    assert "out of memory" not in shown


def test_a_log_trimmed_by_another_process_can_still_be_read(
    tmp_path: Path, small_limit: int
) -> None:
    path = tmp_path / "both.log"
    one = _written(path, "$ a", "one\n" * (small_limit // 20))
    other = _written(path, "$ b", "other\n" * (small_limit // 18))
    one.trim()
    assert other.text(10 * small_limit) == "$ b\n" + "other\n" * (small_limit // 18)
    with path.open("a") as out:
        out.write("crash\n" * (small_limit // 20))  # also beyond the old start
    assert other.text(10 * small_limit).startswith("$ b\nother\n")
    assert other.text(10 * small_limit).endswith("crash\n")
    assert other.text(12) == "crash\ncrash\n"
    with path.open("a") as out:
        out.write("more\n" * (small_limit // 8))
    one.trim()  # its first line is gone now
    assert other.text(10 * small_limit).endswith("more\n")
    assert "other" not in other.text(10 * small_limit)


def test_a_log_that_is_no_regular_file_is_not_trimmed(small_limit: int) -> None:
    server = process.start(launch_command(Path("/bin/echo")), Path("/dev/null"))
    server.popen.wait(10)
    server.output.trim()
    assert server.log_text() == ""
    assert not Path("/dev/null.1").exists()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for log in (tmp_path, tmp_path / "file" / "log", Path("/dev/full")):
        with pytest.raises(EngineError, match="the server's log cannot be written") as e:
            process.start(launch_command(Path("/bin/echo")), log)
        assert str(log) in e.value.message
