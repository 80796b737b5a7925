"""Other machines' devices: llama.cpp's own ggml-rpc-server, two of them on loopback ports."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import MODELS, Serve, specllama

PAIR: tuple[str | Path, ...] = (
    MODELS / "target.gguf",
    "--draft",
    MODELS / "draft.gguf",
    "-c",
    "1024",
)
MIB = 2**20


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(autouse=True)
def _no_local_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", os.devnull)


@contextmanager
def rpc_server(server: Path) -> Iterator[str]:
    """The address of an RPC server that offers this machine's CPU."""
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    argv = [str(server), "-H", host, "-p", port, "-t", "1"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, "ggml-rpc-server ended"
                    assert time.monotonic() < until, "ggml-rpc-server does not answer"
                    time.sleep(0.05)
            yield address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def build(old_builds: Path) -> Path:
    return old_builds / "b10068"


@pytest.fixture(scope="module")
def two_servers(build: Path) -> Iterator[str]:
    """The value of --rpc for two servers."""
    with ExitStack() as stack:
        yield ",".join(stack.enter_context(rpc_server(build / "ggml-rpc-server")) for _ in range(2))


def memory(build: Path, *arguments: str, **env: str) -> dict[str, Any]:
    server = build / "llama-server"
    done = specllama(
        "memory", *PAIR, "--llama-server", server, "--json", "--", *arguments, timeout=60, **env
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_devices_of_two_rpc_servers_are_used(build: Path, two_servers: str) -> None:
    data = memory(build, "--rpc", two_servers)
    assert [d["name"] for d in data["devices"]] == ["RPC0", "RPC1", "RAM"]
    assert [d["label"] for d in data["devices"][:2]] == two_servers.split(",")
    # Both offer the RAM of this machine, which is shared.
    assert [d["shared"] for d in data["devices"]] == [True] * 3
    assert all(data["chosen"]["bytes"][name] > 0 for name in ("RPC0", "RPC1", "RAM"))
    assert memory(build, LLAMA_ARG_RPC=two_servers)["chosen"] == data["chosen"]


def test_the_split_over_rpc_servers_agrees_with_the_estimate(
    build: Path, two_servers: str, tmp_path: Path
) -> None:
    quick = ("--", "--rpc", two_servers, "-t", "1", "-lv", "4")
    with Serve(tmp_path, *PAIR, "--llama-server", build / "llama-server", *quick) as s:
        assert s.info["speculation"] == "on", s.err
        body = {"prompt": "def main():\n", "n_predict": 24, "temperature": 0}
        response = httpx.post(f"{s.url}/completion", json=body, timeout=30).json()
        assert response["timings"]["draft_n"] > 0
        log = Path(s.info["log"]).read_text()
        lines = s.info["memory"]["lines"]
    for number, address in enumerate(two_servers.split(",")):
        for what, kind in (("weights", "model"), ("KV cache", "KV")):
            estimated = [x for x in lines if (x["device"], x["what"]) == (f"RPC{number}", what)]
            allocated = buffers(log, address, kind)
            assert sum(allocated) == pytest.approx(
                sum(x["bytes"] for x in estimated) / MIB, abs=0.02
            )


def buffers(log: str, address: str, kind: str) -> list[float]:
    """MiB of each buffer of this kind on the server at `address`."""
    found = re.findall(rf"{re.escape(address)}\] {kind} buffer size = +([\d.]+) MiB", log)
    return [float(n) for n in found]


def test_an_unreachable_rpc_server_is_a_warning(build: Path, two_servers: str) -> None:
    unused = f"127.0.0.1:{free_port()}"
    data = memory(build, "--rpc", f"{two_servers.split(',')[0]},{unused}")
    assert [d["name"] for d in data["devices"]] == ["RPC0", "RAM"]
    assert f"no RPC server responds at {unused}; llama.cpp runs without it" in data["warnings"]


def test_a_build_without_rpc_is_an_error_before_the_launch(native: Path, two_servers: str) -> None:
    args = ("serve", *PAIR, "--llama-server", native, "--dry-run", "--", "--rpc", two_servers)
    done = specllama(*args)
    assert done.returncode == 2
    assert "was built without RPC" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
