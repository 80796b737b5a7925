"""One running llama-server: start, wait until it answers, stop, and say why it ended.

The child gets its own process group, so that a Ctrl-C at the terminal reaches only
specllama, which then stops it in order. Only processes started here are ever killed.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import psutil

from specllama.engine import orphans
from specllama.engine.command import LaunchCommand
from specllama.engine.errors import EngineError
from specllama.logs import ServerLog
from specllama.stop import signals_deferred

STALL_S = 90.0  # no sign of progress for so long while loading = stuck
STOP_S = 10.0  # what a server gets to end after SIGTERM
_POLL_S = 0.1


@dataclass
class ServerProcess:
    """A started server. `popen` is ours to signal; `output` is what it prints."""

    popen: subprocess.Popen[bytes]
    output: ServerLog
    started: float  # time.monotonic()

    @property
    def log(self) -> Path:
        return self.output.path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def exit_code(self, patience: float = 0.0) -> int | None:
        """None while it runs; negative = ended by that signal (POSIX). `patience`: seconds to
        wait for the end of one that is ending: its connections break a little earlier."""
        try:
            return self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            return None

    def log_text(self, last_bytes: int = 64 * 1024) -> str:
        """The end of what this start wrote to the log."""
        return self.output.text(last_bytes)

    def stop(self, patience: float = STOP_S) -> int:
        """Ends the server: SIGTERM to its group, SIGKILL after `patience` seconds, or at once
        when we are stopped meanwhile. Reaps it."""
        try:
            if self.popen.poll() is None:
                _signal_group(self.popen, signal.SIGTERM)
                self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            code = self.popen.wait()
            _up.discard(self.popen)
        return code

    def kill(self) -> None:
        """Ends the server at once."""
        if self.popen.poll() is None:
            _signal_group(self.popen, getattr(signal, "SIGKILL", signal.SIGTERM))


def start(command: LaunchCommand, log: Path) -> ServerProcess:
    """Starts the server with its output appended to `log`.

    Call it from the main thread: on Linux the child is tied to the thread that
    started it (PR_SET_PDEATHSIG). Raises EngineError when it cannot be run.
    """
    output = ServerLog(log)
    try:
        out = output.open(f"$ {command.display()}")
    except OSError as e:
        raise EngineError(
            f"{log}: the server's log cannot be written ({e.strerror or e})",
            "Give another file with --log FILE.",
        ) from None
    with out, signals_deferred():  # from its first moment it is one that can be ended
        try:
            popen = _popen(command, out)
        except OSError as e:
            raise EngineError(f"{command.argv[0]} cannot be started ({e.strerror or e})") from None
        orphans.adopt(popen)
        _up.add(popen)
    return ServerProcess(popen, output, time.monotonic())


_up: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _end_all() -> None:
    """For a server whose start a signal cut short, so that nobody else knows of it."""
    for popen in _up:
        if popen.poll() is None:
            _signal_group(popen, getattr(signal, "SIGKILL", signal.SIGTERM))
            popen.wait()


def _popen(command: LaunchCommand, out: FileIO) -> subprocess.Popen[bytes]:
    """Raises OSError when it cannot be run."""
    if sys.platform == "win32":
        return _spawn(command.argv, command, out, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    if sys.platform != "linux" or not sys.executable:
        return _spawn(command.argv, command, out, start_new_session=True)
    told, tell = os.pipe()
    with open(told, "rb") as answer:
        try:
            argv = orphans.tied(command.argv, tell)
            popen = _spawn(argv, command, out, start_new_session=True, pass_fds=(tell,))
        finally:
            os.close(tell)
        if failed := answer.read():
            popen.wait()
            raise OSError(int(failed), os.strerror(int(failed)))
    return popen


def _spawn(
    argv: Sequence[str], command: LaunchCommand, out: FileIO, **options: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env=dict(command.env),
        **options,
    )


def wait_ready(
    server: ServerProcess,
    healthy: Callable[[], bool],
    stall_s: float = STALL_S,
    on_tick: Callable[[], None] = lambda: None,
) -> None:
    """Returns when `healthy()`; large models may take many minutes, so the limit is on
    standing still (log, memory and processor time unchanged for `stall_s` seconds).

    Raises EngineError when the process ends (explain it with `exits.explain`) or stalls.
    """
    progress = _Progress(server)
    while True:
        if server.exit_code() is not None:
            raise EngineError("llama-server ended while it was starting")
        if healthy():
            return
        if progress.stalled_for() > stall_s:
            raise EngineError(
                f"llama-server made no progress for {stall_s:.0f} s while starting",
                f"Its log: {server.log}",
            )
        on_tick()
        time.sleep(_POLL_S)


class _Progress:
    """Whether a starting server still moves."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._seen = (0, 0.0, 0)
        self._moved_at = time.monotonic()

    def stalled_for(self) -> float:
        """Seconds since the log, the processor time (by 1 s) or the memory (by 1 MiB) moved."""
        now = self._sample()
        log, cpu, rss = (a - b for a, b in zip(now, self._seen, strict=True))
        if log != 0 or cpu > 1.0 or abs(rss) > 2**20:
            self._seen = now
            self._moved_at = time.monotonic()
        return time.monotonic() - self._moved_at

    def _sample(self) -> tuple[int, float, int]:
        try:
            p = psutil.Process(self._server.pid)
            times = p.cpu_times()
            size = self._server.log.stat().st_size
            return size, times.user + times.system, p.memory_info().rss
        except (psutil.Error, OSError):
            return self._seen


def _signal_group(popen: subprocess.Popen[bytes], signum: int) -> None:
    """The signal for the child and whatever it started; its group is its own (see `start`)."""
    try:
        if sys.platform == "win32":
            popen.terminate()
        else:
            os.killpg(popen.pid, signum)
    except (ProcessLookupError, PermissionError):
        pass
