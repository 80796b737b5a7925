"""A real GPU backend: llama.cpp's Vulkan on Mesa's software device (LP_NUM_THREADS=1).

Only the tiny pair serves requests there: SmolLM2 takes seconds per token. Larger models are loaded
until the server's log shows what was allocated where. The first request ever compiles shaders for
a minute or more; they are cached beside the driver.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import real_models
from specllama.memory.observed import read_log
from tests.support import MODELS, Serve, process_ended, script, specllama

MIB = 2**20
# Warming up compiles shaders for a minute; -lv 4 lists the buffers.
QUICK = ("--no-warmup", "-t", "1", "-lv", "4")


def specllama_json(*args: str | Path) -> dict[str, Any]:
    """The JSON object of a command that must succeed."""
    done = specllama(*args, "--json", *("--", *QUICK))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def log_of(command: list[str], folder: Path, done: Callable[[str], Any], timeout: int = 120) -> str:
    """The server's log until `done` is true for it."""
    path = folder / "server.log"
    with path.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + timeout
        while not done(path.read_text()):
            assert server.poll() is None, path.read_text()[-2000:]
            assert time.monotonic() < until, path.read_text()[-2000:]
            time.sleep(0.1)
    finally:
        server.kill()
        server.wait()
    return path.read_text()


def by_part(memory: dict[str, Any], device: str = "") -> dict[str, int]:
    """Part → bytes, of target and draft together."""
    out: dict[str, int] = {}
    for line in memory["lines"]:
        if device in ("", line["device"]):
            out[line["what"]] = out.get(line["what"], 0) + line["bytes"]
    return out


def device_buffers(log: str, kind: str) -> list[float]:
    """MiB of each buffer of this kind on Vulkan0: the target's, then the draft's."""
    return [float(n) for n in re.findall(rf"Vulkan0 {kind} buffer size = +([\d.]+) MiB", log)]


@pytest.mark.timeout(600)
def test_a_software_device_serves_and_drafts(tmp_path: Path, vulkan_server: Path) -> None:
    pair = (MODELS / "target.gguf", "--draft", MODELS / "draft.gguf")
    with Serve(tmp_path, *pair, "--llama-server", vulkan_server, "--", *QUICK, timeout=500) as s:
        assert s.info["speculation"] == "on", s.err
        memory = s.info["memory"]
        names = [d["name"] for d in memory["devices"]]
        assert names == ["Vulkan0", "RAM"]
        log = Path(s.info["log"]).read_text()
        for part, kind in (("weights", "model"), ("KV cache", "KV")):
            expected = by_part(memory, "Vulkan0")[part] / MIB
            assert sum(device_buffers(log, kind)) == pytest.approx(expected, abs=0.02)
        assert "offloaded 5/5 layers to GPU" in log
        assert "offloaded 2/2 layers to GPU" in log
        body = {"prompt": "def main():\n", "n_predict": 12, "temperature": 0}
        response = httpx.post(f"{s.url}/completion", json=body, timeout=120).json()
        assert response["timings"]["draft_n"] > 0
        pid = s.info["server_pid"]
    assert process_ended(pid)


def test_the_estimate_agrees_with_the_servers_allocation(
    tmp_path: Path, vulkan_server: Path, smollm2: Path
) -> None:
    draft = tmp_path / "draft.gguf"
    real_models.draft(smollm2, draft, (18, 22))
    args = (smollm2, "--draft", draft, "-c", "8192", "--llama-server", vulkan_server)
    memory = specllama_json("memory", *args)
    assert memory["verdict"] == "fits"
    command = specllama_json("serve", *args, "--dry-run", "--port", "0")["command"]
    log = log_of(command, tmp_path, lambda text: text.count("Host compute buffer size") == 2)
    real = read_log(log)
    assert real is not None
    estimated = by_part(memory)
    assert estimated["weights"] == pytest.approx(real.weights, abs=MIB / 50)
    assert estimated["KV cache"] == pytest.approx(real.cache, abs=MIB / 50)
    for device in ("Vulkan0", "Vulkan_Host"):
        upper_bounds = [
            x["bytes"] / MIB
            for x in memory["lines"]
            if x["what"] == "compute" and (x["device"] == "Vulkan0") == (device == "Vulkan0")
        ]
        allocated = re.findall(rf"{device} compute buffer size = +([\d.]+) MiB", log)
        for upper_bound, size in zip(upper_bounds, map(float, allocated), strict=True):
            assert size <= upper_bound <= 1.5 * size
    # --fit moved nothing to RAM.
    assert "no changes needed" in log
    assert "offloaded 31/31 layers to GPU" in log
    assert "offloaded 29/29 layers to GPU" in log


def test_the_number_of_offloaded_layers_agrees_with_fit(
    tmp_path: Path, vulkan_server: Path, smollm2: Path
) -> None:
    large = tmp_path / "large.gguf"
    real_models.large(smollm2, large)
    try:
        args = (large, "--method", "none", "-c", "4096", "--llama-server", vulkan_server)
        memory = specllama_json("memory", *args)
        (device, _) = memory["devices"]
        assert device["total_bytes"] == 2048 * MIB, "another driver: its limit is not 2 GiB"
        assert memory["verdict"] == "fits only if"
        named = re.search(
            r"(\d+) of 111 target layers stay in RAM \(-ngl (\d+)\)", memory["detail"]
        )
        assert named is not None, memory["detail"]
        in_ram, on_gpu = map(int, named.groups())
        assert in_ram + on_gpu == 111
        assert 0 < on_gpu < 111
        command = specllama_json("serve", *args, "--dry-run", "--port", "0")["command"]
        log = log_of(command, tmp_path, lambda text: "layers to GPU" in text)
    finally:
        large.unlink()  # 1.7 GB
    # --fit allocates real buffers; our upper bound agrees with it to one layer.
    (moved,) = map(int, re.findall(r"offloaded (\d+)/111 layers to GPU", log))
    assert on_gpu <= moved <= on_gpu + 1


def test_out_of_memory_on_a_device_is_explained_and_retried(
    tmp_path: Path, vulkan_server: Path
) -> None:
    """The process may not allocate the draft's buffers as well; the target alone fits."""
    limited = script(
        tmp_path / "llama-server",
        f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (1530 * 1000 * 1024,) * 2)
server = {str(vulkan_server)!r}
os.execv(server, [server, *sys.argv[1:]])
""",
    )
    pair = (MODELS / "target.gguf", "--draft", MODELS / "draft.gguf")
    big = ("-c", "524288", "-ub", "64", "--threads-http", "1", "--cache-ram", "0")
    with Serve(tmp_path, *pair, "--llama-server", limited, "--", *QUICK, *big, timeout=120) as s:
        assert s.info["speculation"] == "off"
        assert "out of memory" in s.err
        assert re.search(
            r"memory   Vulkan0: [\d,]+ of 2,048 MiB free \(target KV cache 1,024", s.err
        )
        assert "retrying with ngram-simple" in s.err
        assert httpx.get(f"{s.url}/health", timeout=10).status_code == 200


def test_a_software_device_is_hidden_unless_it_is_selected(
    vulkan_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("memory", MODELS / "target.gguf", "--llama-server", vulkan_server)
    assert [d["name"] for d in specllama_json(*args)["devices"]] == ["Vulkan0", "RAM"]
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES")
    assert os.environ.get("GGML_VK_VISIBLE_DEVICES") is None
    assert [d["name"] for d in specllama_json(*args)["devices"]] == ["RAM"]
