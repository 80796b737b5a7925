"""Starting a server: the process itself, or an error with the reason."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from specllama.engine import process
from specllama.engine.command import LaunchCommand
from specllama.engine.errors import EngineError
from specllama.engine.process import ServerProcess
from tests.support import script


@contextmanager
def started(path: Path, log: Path, *args: str) -> Iterator[ServerProcess]:
    server = process.start(LaunchCommand((str(path), *args), dict(os.environ), (), ()), log)
    try:
        yield server
    finally:
        server.kill()
        server.stop()


@pytest.mark.parametrize(
    ("body", "mode", "message"),
    [
        (None, 0, "No such file or directory"),
        ("#!/bin/sh\n", 0o600, "Permission denied"),
        ("\0\1\2 no program", 0o700, "Exec format error"),
        ("#!/no/such/interpreter\n", 0o700, "No such file or directory"),
    ],
)
def test_a_program_that_cannot_run_is_an_error(
    tmp_path: Path, body: str | None, mode: int, message: str
) -> None:
    path = tmp_path / "llama-server"
    if body is not None:
        path.write_text(body)
        path.chmod(mode)
    with pytest.raises(EngineError, match=message):
        process.start(LaunchCommand((str(path),), dict(os.environ), (), ()), tmp_path / "log")
    assert not psutil.Process().children()


def test_the_started_process_becomes_the_server(tmp_path: Path) -> None:
    path = script(tmp_path / "s", "import time; time.sleep(600)")
    with started(path, tmp_path / "log", "a b", "ü") as server:
        assert psutil.Process(server.pid).cmdline() == [sys.executable, str(path), "a b", "ü"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux only")
def test_a_server_inherits_no_ignored_signals_and_no_open_files(tmp_path: Path) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; its children must not."""
    with started(Path("/bin/sleep"), tmp_path / "log", "600") as server:
        proc = Path(f"/proc/{server.pid}")
        until = time.monotonic() + 20  # the process is our starter first, then the server
        while "sleep" not in str((proc / "exe").resolve()) and time.monotonic() < until:
            time.sleep(0.01)
        status = dict(
            line.split(":\t", 1) for line in proc.joinpath("status").read_text().splitlines()
        )
        assert int(status["SigIgn"], 16) == 0
        while len(found := _open(proc)) > 3 and time.monotonic() < until:
            time.sleep(0.01)  # the loader has a library open; what is inherited stays open
        assert found == ["0", "1", "2"]


def _open(proc: Path) -> list[str]:
    return sorted(p.name for p in (proc / "fd").iterdir())


def test_a_server_starts_while_other_threads_run(tmp_path: Path) -> None:
    """The threads hold and release a lock that Python code in the child would need."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            print(end="", flush=True)

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(3):
            with started(Path("/bin/sleep"), tmp_path / "log", "600") as server:
                assert server.exit_code() is None
    finally:
        over.set()
        for t in threads:
            t.join()
