"""The embedded engine looks like llama-server from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specllama.engine.client import Client
from specllama.engine.helptext import parse_options, parse_version
from specllama.planning.plan import free_port
from tests.support import MODELS

ARGV = [sys.executable, "-m", "specllama.engine.embedded"]


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ARGV, *map(str, args)], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_goes_to_stdout_and_version_to_stderr() -> None:
    h, v = run("--help"), run("--version")
    assert (h.returncode, v.returncode) == (0, 0)
    assert len(parse_options(h.stdout)) > 50
    assert v.stdout == ""
    version = parse_version(v.stderr)
    assert version is not None
    assert version.build > 11000


def test_list_devices() -> None:
    done = run("--list-devices")
    assert done.returncode == 0
    assert done.stdout.startswith("Available devices:\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--foo"], "invalid argument: --foo"),
        (["-m"], "expected value for argument -m"),
        ([], "no model given"),
        (["-m", "x.gguf", "-c", "many"], "whole number"),
        (["-m", "x.gguf", "--spec-type", "draft-self"], "not one of"),
        (["-m", "x.gguf", "-ctk", "q9"], "not one of"),
        (["-m", "x.gguf", "--temp", "hot"], "not a number"),
        (["-m", "x.gguf", "--api-key-file", "/nope"], "No such file"),
        (["-m", "/nope.gguf", "--port", "0"], "error"),
    ],
)
def test_errors_end_it_before_loading_with_exit_code_1(args: list[str], says: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_every_mapped_option_is_taken_and_signals_end_it_in_order(
    tmp_path: Path, signum: int
) -> None:
    port = free_port("127.0.0.1", 0)
    keys = tmp_path / "keys"
    keys.write_text("k1\n")
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    flags = (
        f"-a tiny -c 512 -n 64 -b 256 -ub 128 -np 1 -kvu -t 1 -tb 1 -ngl 0 -fa off -ctk f16 -ctv f16 "
        f"-lm mmap --no-repack -fit off -fitc 512 --no-warmup -lv 3 --swa-full --cache-ram 0 "
        f"--host 127.0.0.1 --port {port} --api-key-file {keys} --metrics --slots --props --jinja "
        f"--chat-template-file {template} -s 1 --temp 0 --top-k 40 --top-p 0.9 --min-p 0.1 "
        "--spec-type draft-simple,ngram-mod -ngld 0 -ctkd f16 -ctvd f16 -td 1 -tbd 1 "
        "--spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0 --spec-ngram-mod-n-match 16 "
        "--spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 16 --spec-ngram-simple-size-n 4 "
        "--spec-ngram-simple-size-m 8 --spec-ngram-map-k4v-min-hits 2"
    ).split()
    argv = [*ARGV, "-m", MODELS / "target.gguf", "-md", MODELS / "draft.gguf", *flags]
    with subprocess.Popen(list(map(str, argv)), stderr=subprocess.PIPE) as server:
        try:
            with Client(f"http://127.0.0.1:{port}", "k1") as client:
                until = time.monotonic() + 60
                while not client.healthy():
                    assert server.poll() is None, server.stderr and server.stderr.read()
                    assert time.monotonic() < until
                    time.sleep(0.05)
                slots = client.slots()
                assert slots is not None
                assert slots[0]["speculative"] is True
                assert slots[0]["n_ctx"] == 512
                done = client.complete("def read(self):", 16, {})
                assert done.timings is not None
                assert done.timings.drafted > 0
            with Client(f"http://127.0.0.1:{port}") as stranger:
                assert stranger.slots() is None  # no key, no answer
            server.send_signal(signum)
            assert server.wait(20) == 0
        finally:
            server.kill()
