"""Runs a real llama-server with a target and a drafter, and names what happens."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.planning.plan import free_port
from tests.support import MODELS

PROMPT = "def read(path):\n    with open(path) as f:\n        return "


def reaction(
    native: Path,
    draft: Path,
    method: str,
    log: Path,
    target: Path = MODELS / "target.gguf",
    more: Sequence[str] = (),
) -> str:
    """`does not load` (an error message, exit code 1), `dies at start`, `dies at the first request`,
    `serves without`, `accepts nothing` or `drafts`."""
    port = free_port("127.0.0.1", 0)
    argv = [native, "-m", target, "-md", draft, "--spec-type", method, "--spec-draft-n-max", "4"]
    argv += ["-c", "512", "-np", "1", "-t", "1", "--port", str(port), "--no-warmup", "--slots"]
    env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    with (
        log.open("wb") as out,
        subprocess.Popen([*map(str, argv), *more], stdout=out, stderr=out, env=env) as p,
        Client(f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            return _observed(client, p)
        finally:
            p.terminate()


def _observed(client: Client, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while not client.healthy():
        if (code := server.poll()) is not None:
            return "does not load" if code == 1 else "dies at start"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    slots = client.slots()
    if not slots or not slots[0]["speculative"]:
        return "serves without"
    try:
        timings = client.complete(PROMPT, 64, {"temperature": 0}).timings
    except EngineError:
        server.wait(30)
        return "dies at the first request"
    assert timings is not None
    return "drafts" if timings.accepted else "accepts nothing"
