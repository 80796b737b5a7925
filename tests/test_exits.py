"""Why a server ended. Log lines as llama.cpp prints them (seen or read in its source)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import process
from specllama.engine.command import Command
from specllama.engine.exits import Exit, explain
from specllama.engine.locate import locate
from tests.support import MODELS


@pytest.mark.parametrize(
    ("code", "log", "kind", "blamed"),
    [
        (1, "srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "port", False),
        (1, "error: invalid argument: --foo", "argument", False),
        (1, "error loading model: error loading model architecture: unknown model architecture: 'foo9'", "architecture", False),
        (1, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory", "memory", True),
        (1, "srv load_model: failed to create MTP context", "mtp", True),
        (-6, "src/models/mimo2.cpp:212: GGML_ASSERT(layer.nextn.eh_proj && \"MIMO2 MTP block missing nextn.eh_proj\") failed", "mtp", True),
        (-6, "src/llama-model.cpp:2855: GGML_ASSERT(hparams.is_swa_any()) failed", "assert", True),
        (1, "llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file bounds", "model", False),
        (-11, "", "signal", True),
        (-9, "", "signal", False),
        (0, "", "ended", False),
        (3, "something odd\n", "code", True),
    ],
)  # fmt: skip
def test_causes(code: int, log: str, kind: str, blamed: bool) -> None:
    why = explain(code, log)
    assert (why.kind, why.blames_speculation) == (kind, blamed)
    assert why.message


def test_details_are_in_the_message() -> None:
    assert "'foo9'" in explain(1, "unknown model architecture: 'foo9'").message
    assert "--foo" in explain(1, "error: invalid argument: --foo").message
    assert "SIGSEGV" in explain(-11, "").message
    assert "something odd" in explain(3, "x\nsomething odd\n\n").message
    assert "--no-repack" in explain(-11, "").hint


@given(st.integers(-64, 255), st.text())
def test_any_log_is_explained(code: int, log: str) -> None:
    assert explain(code, log).message


def run(engine: str, log: Path, *args: str | Path) -> Exit:
    """The real server with arguments that end it, explained."""
    argv = (*locate(engine).argv, *map(str, args), "--host", "127.0.0.1", "-t", "1", "-c", "512")
    server = process.start(Command(argv, dict(os.environ), (), ()), log)
    try:
        code = server.popen.wait(60)
    finally:
        server.stop()
    return explain(code, server.log_text())


def test_real_servers_are_understood(engine: str, tmp_path: Path) -> None:
    target, trunk = MODELS / "target.gguf", MODELS / "mtp-trunk.gguf"
    log = tmp_path / "log"
    assert run(engine, log, "-m", target, "--frobnicate").kind == "argument"
    missing = run(engine, log, "-m", tmp_path / "none.gguf", "--port", "0")
    assert missing.kind in ("model", "code")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(target.read_bytes()[:2_000_000])
    assert run(engine, log, "-m", cut, "--port", "0").kind == "model"
    headless = run(engine, log, "-m", trunk, "--spec-type", "draft-mtp", "--port", "0")
    assert headless.blames_speculation
    no_draft = ("-md", tmp_path / "none.gguf", "--spec-type", "draft-simple")
    assert run(engine, log, "-m", target, *no_draft, "--port", "0").blames_speculation
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = run(engine, log, "-m", target, "--port", str(taken.getsockname()[1]))
    assert busy.kind == "port"
