"""Helpers: run specllama as a user would, and build small GGUF files."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

MODELS = Path(__file__).parent / "models"
SHARED_OPTIONS = Path(__file__).parent / "data" / "llama-server-options.json"
ONE_THREAD = ("--", "-t", "1", "-c", "1024")


def specllama(
    *args: str | Path, timeout: float = 60, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "specllama", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
        check=False,
    )


class Serve:
    """`specllama serve … --json` in the background, from ready until it exits.

    It does not tune unless the test passes --tune. `info`: the JSON object it printed; `err`: its
    stderr so far.
    """

    def __init__(self, tmp: Path, *args: str | Path, timeout: float = 60, **env: str) -> None:
        self._out, self._err = tmp / "out", tmp / "err"
        self._timeout = timeout
        options, server_args = list(map(str, args)), list(ONE_THREAD)
        if "--" in options:
            at = options.index("--")
            options, server_args = options[:at], [*ONE_THREAD, *options[at + 1 :]]
        if "--tune" not in options:
            options += ["--tune", "off"]
        argv = [
            sys.executable,
            "-m",
            "specllama",
            "serve",
            *options,
            "--port",
            "0",
            "--json",
            *server_args,
        ]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.popen = subprocess.Popen(argv, stdout=out, stderr=err, env={**os.environ, **env})
        self.info: dict[str, Any] = {}

    def __enter__(self) -> Serve:
        try:
            self.wait_for(lambda: self._out.read_text().endswith("\n"), "ready")
            self.info = json.loads(self._out.read_text())
        except BaseException:
            self.popen.kill()
            self.popen.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(60)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def url(self) -> str:
        return str(self.info["url"])

    def wait_for(self, done: Any, what: str) -> None:
        """Waits until `done()`; fails if serve exits first or the timeout passes."""
        deadline = time.monotonic() + self._timeout
        while not done():
            assert self.popen.poll() is None, f"serve ended before {what}: {self.err}"
            assert time.monotonic() < deadline, f"no {what} in {self._timeout} s: {self.err}"
            time.sleep(0.05)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit code."""
        self.popen.send_signal(signum)
        return self.popen.wait(60)


def process_ended(pid: int, within: float = 10) -> bool:
    """Whether the process has ended (a zombie counts as ended)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def script(path: Path, body: str) -> Path:
    """An executable Python script: a scripted llama-server."""
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def write_gguf(
    path: Path,
    tokens: Sequence[str] = (),
    arch: str = "llama",
    fields: dict[str, Any] | None = None,
    tensors: Sequence[str] = ("token_embd.weight", "blk.0.attn_norm.weight"),
) -> Path:
    """A small valid file, written by gguf-py. `fields`: extra keys (bool, int or str)."""
    import gguf
    import numpy as np

    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(1)
    w.add_embedding_length(32)
    w.add_context_length(512)
    if tokens:
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(list(tokens))
        w.add_token_merges(["t 1"])
    for key, value in (fields or {}).items():
        if isinstance(value, bool):
            w.add_bool(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        else:
            w.add_string(key, value)
    for name in tensors:
        w.add_tensor(name, np.zeros(32, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
