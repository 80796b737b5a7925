"""One running llama-server: start it, wait until it is ready, stop it.

The child gets its own process group, so that a Ctrl-C at the terminal reaches only
specllama, which then stops it cleanly. Only processes started here are ever killed.
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
from specllama.logs import ServerLog, log_dir
from specllama.stop import hurried_by_ctrl_c, signals_deferred

STALL_S = 90.0  # without progress for this long while loading, it is stuck
STOP_S = 10.0  # time to exit after SIGTERM
_POLL_S = 0.1


@dataclass
class ServerProcess:
    """A started server. `output`: its log."""

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
        """None while it runs; negative = killed by that signal (POSIX). `patience`: seconds to
        wait for the exit: connections break slightly earlier."""
        try:
            return self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            return None

    def log_text(self, last_bytes: int = 64 * 1024) -> str:
        """The end of the log of this start."""
        return self.output.text(last_bytes)

    def stop(self, patience: float = STOP_S) -> int:
        """Stops and reaps the server: SIGTERM to its group, SIGKILL after `patience` seconds, or
        immediately if we are stopped in the meantime, or by another Ctrl-C if we are stopping."""
        try:
            if self.popen.poll() is None:
                _signal_group(self.popen, signal.SIGTERM)
                with hurried_by_ctrl_c(self.kill):
                    self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            code = self.popen.wait()
            _running.discard(self.popen)
        return code

    def kill(self) -> None:
        """Kills the server."""
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
        ours = log.parent == log_dir()  # else set by --log, which not every command has
        raise EngineError(
            f"{log}: the server's log cannot be written ({e.strerror or e})",
            "`specllama doctor` shows the folder and how to move it."
            if ours
            else "Choose another file with --log FILE.",
        ) from None
    with out, signals_deferred():  # no signal between the start and the entry in _running
        try:
            popen = _popen(command, out)
        except OSError as e:
            raise EngineError(f"could not start {command.argv[0]} ({e.strerror or e})") from None
        orphans.adopt(popen)
        _running.add(popen)
    return ServerProcess(popen, output, time.monotonic())


_running: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _kill_all() -> None:
    """For a server whose start was interrupted by a signal, so that nothing else tracks it."""
    for popen in _running:
        if popen.poll() is None:
            _signal_group(popen, getattr(signal, "SIGKILL", signal.SIGTERM))
            popen.wait()


def _popen(command: LaunchCommand, out: FileIO) -> subprocess.Popen[bytes]:
    """Raises OSError when it cannot be run."""
    if sys.platform == "win32":
        return _spawn(command.argv, command, out, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    if sys.platform != "linux" or not sys.executable:
        return _spawn(command.argv, command, out, start_new_session=True)
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as reader:
        try:
            argv = orphans.tied(command.argv, write_fd)
            popen = _spawn(argv, command, out, start_new_session=True, pass_fds=(write_fd,))
        finally:
            os.close(write_fd)
        if errno := reader.read():
            popen.wait()
            raise OSError(int(errno), os.strerror(int(errno)))
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
    """Returns when `healthy()`. Large models can take many minutes, so the limit is on time
    without progress (log, memory and CPU time unchanged for `stall_s` seconds).

    Raises EngineError when the process exits (`exits.explain` says why) or stalls.
    """
    progress = _Progress(server)
    while True:
        if server.exit_code() is not None:
            raise EngineError("llama-server exited during startup")
        if healthy():
            return
        if progress.stalled_for() > stall_s:
            raise EngineError(
                f"llama-server made no progress for {stall_s:.0f} s during startup",
                f"Log: {server.log}",
            )
        on_tick()
        time.sleep(_POLL_S)


class _Progress:
    """Whether a starting server still makes progress."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._last = (0, 0.0, 0)
        self._moved_at = time.monotonic()

    def stalled_for(self) -> float:
        """Seconds since the log, the CPU time (by 1 s) or the memory (by 1 MiB) changed."""
        now = self._sample()
        log, cpu, rss = (a - b for a, b in zip(now, self._last, strict=True))
        if log != 0 or cpu > 1.0 or abs(rss) > 2**20:
            self._last = now
            self._moved_at = time.monotonic()
        return time.monotonic() - self._moved_at

    def _sample(self) -> tuple[int, float, int]:
        try:
            p = psutil.Process(self._server.pid)
            times = p.cpu_times()
            size = self._server.log.stat().st_size
            return size, times.user + times.system, p.memory_info().rss
        except (psutil.Error, OSError):
            return self._last


def _signal_group(popen: subprocess.Popen[bytes], signum: int) -> None:
    """Signals the child and its own children: it has its own process group (see `start`)."""
    try:
        if sys.platform == "win32":
            popen.terminate()
        else:
            os.killpg(popen.pid, signum)
    except (ProcessLookupError, PermissionError):
        pass
