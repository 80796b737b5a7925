"""The embedded engine behaves like llama-server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from specllama.engine import embedded
from specllama.engine.capabilities import describe
from specllama.engine.client import Client
from specllama.engine.embedded_options import API_KEY_ENV, supported_options
from specllama.engine.helptext import parse_options, parse_version
from specllama.planning.plan import free_port
from tests.support import MODELS

TARGET = MODELS / "target.gguf"
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
    ("args", "message"),
    [
        (["--foo"], "invalid argument: --foo"),
        (["-m"], "expected value for argument -m"),
        ([], "no model given"),
        (["-m", "x.gguf", "-c", "many"], "is not an integer"),
        (["-m", "x.gguf", "--spec-type", "draft-self"], "must be one of"),
        (["-m", "x.gguf", "-ctk", "q9"], "must be one of"),
        (["-m", "x.gguf", "--temp", "hot"], "not a number"),
        (["-m", "x.gguf", "--rpc", "h:1"], "--rpc (not supported by the embedded engine"),
        (["-m", "x.gguf", "-ot", "exps=GPU9"], "unknown buffer type"),
        (["-m", "x.gguf", "-ot", "exps"], "invalid value"),
        (["-m", "x.gguf", "-ncmoe", "-1"], "negative"),
        (["-m", "x.gguf", "-ncmoe", "99999999999"], "is too large"),
        (["-m", "x.gguf", "-ts", "1,x"], "not a number"),
        (["-m", "x.gguf", "-ts", ",".join("1" * 200)], "200 shares, but at most 128 devices"),
        (["-m", "x.gguf", "-sm", "half"], "must be one of"),
        (["-m", "x.gguf", "--lora", "/nope"], "file not found"),
        (["-m", "x.gguf", "--lora-scaled", "/nope"], "not a number"),
        (["-m", "x.gguf", "--sleep-idle-seconds", "0"], "cannot be 0"),
        (["-m", "x.gguf", "--api-key-file", "/nope"], "No such file"),
        (["-m", "/nope.gguf", "--port", "0"], "error"),
    ],
)
def test_invalid_arguments_exit_1_before_loading(args: list[str], message: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_every_mapped_option_is_accepted_and_signals_stop_it_cleanly(
    tmp_path: Path, signum: int
) -> None:
    port = free_port("127.0.0.1", 0)
    keys = tmp_path / "keys"
    keys.write_text("# old\n\nk1 \nk2\n")
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    flags = (
        f"-a tiny -c 512 -n 64 -b 256 -ub 128 -np 1 -kvu -t 1 -tb 1 -ngl 0 -fa off -ctk f16 -ctv f16 "
        f"-lm mmap --no-repack -fit disabled -ncmoe 999 -fitc 512 --no-warmup -lv 3 --swa-full --cache-ram 0 "
        f"--host 127.0.0.1 --port {port} --api-key-file {keys} --metrics --slots --props --jinja "
        f"--chat-template-file {template} -s 1 --temp 0 --top-k 40 --top-p 0.9 --min-p 0.1 "
        "--spec-type draft-simple,ngram-mod -ngld 0 -ctkd f16 -ctvd f16 -td 1 -tbd 1 "
        "--spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0 --spec-ngram-mod-n-match 16 "
        "--spec-ngram-mod-n-min 4 --spec-ngram-mod-n-max 16 --spec-ngram-simple-size-n 4 "
        "--spec-ngram-simple-size-m 8 --spec-ngram-map-k4v-min-hits 2"
    ).split()
    argv = [*ARGV, "-m", MODELS / "target.gguf", "-md", MODELS / "draft.gguf", *flags]
    env = {**os.environ, API_KEY_ENV: "a, b"}
    with subprocess.Popen(list(map(str, argv)), stderr=subprocess.PIPE, env=env) as server:
        try:
            with Client(f"http://127.0.0.1:{port}", "a,b") as client:
                deadline = time.monotonic() + 60
                while not client.healthy():
                    assert server.poll() is None, server.stderr and server.stderr.read()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                slots = client.slots()
                assert slots is not None
                assert slots[0]["speculative"] is True
                assert slots[0]["n_ctx"] == 512
                done = client.complete("def read(self):", 16, {})
                assert done.timings is not None
                assert done.timings.drafted > 0
            for key in ("k1", "k2", "b"):
                with Client(f"http://127.0.0.1:{port}", key) as other:
                    assert other.slots() is not None
            for wrong in (None, "# old"):  # no key, no answer
                with Client(f"http://127.0.0.1:{port}", wrong) as unauthorized:
                    assert unauthorized.slots() is None
            server.send_signal(signum)
            assert server.wait(20) == 0
        finally:
            server.kill()


def write_lora(path: Path) -> Path:
    """An adapter for the tiny target without effect: its second matrix is zero."""
    import gguf
    import numpy as np

    like = next(t for t in gguf.GGUFReader(TARGET).tensors if t.name == "blk.0.attn_q.weight")
    rows, columns = (int(n) for n in like.shape)
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", 4.0)
    w.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((2, rows), dtype=np.float32))
    w.add_tensor("blk.0.attn_q.weight.lora_b", np.zeros((columns, 2), dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def test_tensor_overrides_and_adapters_are_applied(tmp_path: Path) -> None:
    """As the server's log reports at its most detailed level."""
    lora = write_lora(tmp_path / "lora.gguf")
    flags = (
        rf"-ot blk\.0\.ffn_up=CPU,blk\.1\.ffn_up=CPU -ot output_norm=CPU -ncffn 1 -ncmoe 1 -cmoe "
        rf"-otd token_embd=CPU -ncmoed 1 -cmoed --lora {lora} --lora-scaled {lora}:0.5 -sm none -ts 1 "
        "-mg 0 -nkvo --sleep-idle-seconds 1 --api-prefix /x --threads-http 2 -to 60 -fit on "
        "--no-context-shift --cache-reuse 8 --no-cache-prompt -lv 5 -c 512 -t 1 -np 1"
    ).split()
    port = free_port("127.0.0.1", 0)
    argv = [
        *ARGV,
        "-m",
        TARGET,
        "-md",
        MODELS / "draft.gguf",
        "--spec-type",
        "draft-simple",
        *flags,
    ]
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen([*map(str, argv), "--port", str(port)], stdout=out, stderr=out) as server,
    ):
        try:
            with Client(f"http://127.0.0.1:{port}/x") as client:
                deadline = time.monotonic() + 60
                while not client.healthy():
                    assert server.poll() is None, log.read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert client.complete("def read(self):", 8, {}).timings is not None
                found = httpx.get(f"http://127.0.0.1:{port}/x/lora-adapters").json()
                assert [(Path(a["path"]).name, a["scale"]) for a in found] == [
                    ("lora.gguf", 1.0),
                    ("lora.gguf", 0.5),
                ]
            while "sleeping" not in log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            server.terminate()
            server.wait(20)
    text = log.read_text()
    moved = set(re.findall(r"tensor (\S+) \(.*?\) buffer type overridden to CPU", text))
    assert {"blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output_norm.weight"} <= moved
    assert {"blk.0.ffn_down.weight", "blk.0.ffn_gate.weight"} <= moved  # --n-cpu-ffn 1
    assert "token_embd.weight" in moved  # the draft's


@pytest.mark.parametrize(
    ("args", "path", "expected"),
    [
        ("-ncmoe 2", "tensor_buft_overrides", r"blk\.0{e}=CPU,blk\.1{e}=CPU"),
        ("-ncmoe 0", "tensor_buft_overrides", ""),
        ("-cmoe -ot a=CPU", "tensor_buft_overrides", "{e}=CPU,a=CPU"),
        ("-cmoed", "speculative.draft.tensor_buft_overrides", "{e}=CPU"),
        ("--no-kv-offload", "no_kv_offload", True),
        ("-kvo", "no_kv_offload", False),
        ("-mg 1", "main_gpu", 1),
        ("--embeddings", "embedding", True),
        ("--rerank", "embedding", True),
        ("--sleep-idle-seconds 600", "sleep_idle_seconds", 600),
        ("--api-prefix /p", "api_prefix", "/p"),
        ("--ssl-key-file k", "ssl_file_key", "k"),
        ("--ssl-cert-file c", "ssl_file_cert", "c"),
        ("--cache-reuse 64", "n_cache_reuse", 64),
        ("-to 9", "timeout_write", 9),
    ],
)
def test_options_set_their_parameters(args: str, path: str, expected: Any) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    for option, value in embedded.parse(["-m", "x", *args.split()], supported_options(params)):
        option.apply(params, value)
    found = params
    for name in path.split("."):
        found = getattr(found, name)
    if isinstance(expected, str):
        expected = expected.replace("{e}", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
    assert found == expected


def test_tensor_split_and_reranking() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    for option, value in embedded.parse("-m x -ts 3,1 --rerank".split(), supported_options(params)):
        option.apply(params, value)
    assert params.tensor_split[:3] == [3.0, 1.0, 0.0]
    assert params.pooling_type == xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def test_help_lists_unsupported_options() -> None:
    """They are not listed as options."""
    text = run("--help").stdout
    assert "not supported by the embedded engine:\n  -dev, --device, --rpc" in text
    caps = describe("version: 1 (x)", text)
    assert caps.find("-ot") is not None
    assert caps.find("--rpc") is None
    assert caps.find("--device") is None
