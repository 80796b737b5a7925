"""Why a server exited. Log lines as llama.cpp prints them (observed, or from its source)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import cpu, process
from specllama.engine.command import LaunchCommand
from specllama.engine.exits import Exit, explain, why_not_speculating
from specllama.engine.locate import locate
from tests.support import MODELS


@pytest.mark.parametrize(
    ("code", "log", "kind", "blamed"),
    [
        (1, "srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "port", False),
        (1, "bind: Address already in use", "port", False),  # as strerror writes it
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
        (-15, "", "stopped", False),
        (143, "cudaMalloc failed: out of memory", "stopped", False),
        (-2, "", "stopped", False),
        (0xC000013A, "", "stopped", False),
        (3, "something odd\n", "code", True),
    ],
)  # fmt: skip
def test_causes_of_an_exit(code: int, log: str, kind: str, blamed: bool) -> None:
    why = explain(code, log)
    assert (why.kind, why.blames_speculation) == (kind, blamed)
    assert why.message


_READY = "0.01.0 I srv  llama_server: listening on http://127.0.0.1:8080\n"
_OOM = "0.02.0 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4.00 MiB on device 0: cudaMalloc failed: out of memory\n"
# Errors in logs, with and without log levels, after which the server continued.
CONTINUED = [
    "0.00.1 W ggml_vulkan: Failed to allocate pinned memory (vk::Device::allocateMemory: ErrorOutOfDeviceMemory)\n",
    "ggml_vulkan: Failed to allocate pinned memory (ErrorOutOfDeviceMemory)\n",
    "0.09.1 E srv         alloc: failed to allocate memory for prompt cache state: std::bad_alloc\n",
    "failed to allocate memory for prompt cache state: std::bad_alloc\n",
    "0.00.1 W llama: cannot allocate that much, doing with less\n",
    "\x1b[35mW \x1b[0mllama: cannot allocate that much, doing with less\n",
    "0.00.1 D llama: cannot allocate that much, doing with less\n",
    "0.09.1 E ggml: binding tensor 'x' error\n",
    "0.09.1 E srv  vocab mismatch in grammar\n",
    "0.00.1 E llama: the target and draft vocabs are not compatible\n" + _READY,
    _OOM + "0.00.3 W llama: compute buffer allocation failed, retrying\n" + _READY,
    _READY + _OOM + "0.03.0 I slot      release: id  0 | task 9 | stop processing: n_tokens = 9\n",
    _OOM + "srv  update_slots: all slots are idle\n",
]


@pytest.mark.parametrize("line", CONTINUED)
def test_errors_that_the_server_survived_are_not_the_cause(line: str) -> None:
    assert explain(-11, line).kind == "signal"
    assert explain(-9, line).message == "it was killed (SIGKILL)"


def test_errors_after_serving_are_the_cause() -> None:
    assert explain(-6, _READY + _OOM).kind == "memory"
    assert explain(-6, _OOM).kind == "memory"


def test_the_reason_why_a_server_serves_without_its_draft() -> None:
    vocabs = "0.00.1 W spec: draft model vocab type must match target model to use speculation but "
    assert "vocabulary" in why_not_speculating(vocabs + "\n" + _READY)
    assert why_not_speculating(CONTINUED[0] + _READY) == ""
    port = "couldn't bind HTTP server socket, hostname: ::1\n"  # the other address is free
    assert "vocabulary" in why_not_speculating(port + vocabs)
    lora = (LOGS / "b11434-lora.log").read_text()  # another file's fault
    assert why_not_speculating(lora) == ""


def test_details_are_in_the_message() -> None:
    assert "'foo9'" in explain(1, "unknown model architecture: 'foo9'").message
    assert "--foo" in explain(1, "error: invalid argument: --foo").message
    assert "SIGSEGV" in explain(-11, "").message
    assert "something odd" in explain(3, "x\nsomething odd\n\n").message
    crash = (
        "0.00.061.824 E srv    load_model: no room for it\n0.00.062.000 I srv  llama_server: bye"
    )
    assert "(SIGSEGV); last error: no room for it" in explain(-11, crash).message
    assert "exited with code 3; last line: no room for it" in explain(3, crash).message
    two = crash.replace(
        "load_model: no room", "load_model: no memory\n0.00.1 E srv    init: no room"
    )
    assert "last error: no room for it" in explain(-11, two).message


LOGS = Path(__file__).parent / "data" / "logs"
# Real logs (of damaged copies of the tiny models, and of invalid arguments): the kind of exit, a
# part of the message, and a part of the advice.
REAL = {
    "b11434-shape": ("model", "wrong shape; expected 256, 999, got 256, 640", "another program"),
    "b11434-missing": ("model", "'blk.1.ffn_up.weight' not found", "another program"),
    "b10068-missing": ("model", "missing tensor 'blk.1.ffn_up.weight'", "another program"),
    "b11434-type105": ("model", "'blk.1.ffn_up.weight' has invalid ggml type 105", "fork"),
    "b11434-pre": ("model", "unknown pre-tokenizer type: 'qqqqq'", "newer llama.cpp"),
    "b11434-tokmodel": ("model", "unknown tokenizer: 'qqqq'", "newer llama.cpp"),
    "b11434-trunc": ("model", "not within the file bounds", "download it again"),
    "b11434-trunch": ("model", "failed to read key-value pairs", "download it again"),
    "b11434-magic": ("model", "invalid magic characters: 'XXXX'", "not a GGUF"),
    "b11434-version": ("model", "is version 9", "newer llama.cpp"),
    "b11434-nofile": ("model", "'/nope/x.gguf' (No such file", "path"),
    "b11434-key": ("model", "key not found in model: llama.embedding_length", "another program"),
    "b11434-keytype": ("model", "wrong type f32", "another program"),
    "b11434-arch": ("architecture", "'llomo'", "newer llama.cpp"),
    "b11434-lcs": ("lookup", "could not open the static lookup cache", "-lcs"),
    "b10068-lcs": ("lookup", "could not open the static lookup cache", "-lcs"),
    "b11434-lcd": ("lookup", "could not open the dynamic lookup cache", "-lcd"),
    "b10068-lcd": ("lookup", "could not open the dynamic lookup cache", "-lcd"),
    "b11434-lcsbad": ("lookup", "could not read the lookup cache", "damaged"),
    "b10068-lcsbad": ("lookup", "could not read the lookup cache", "damaged"),
    "b11434-draftshape": (
        "draft",
        "draft model could not be loaded (tensor 'blk.0",
        "another program",
    ),
    "b11434-draftarch": ("draft", "architecture: 'llomo'", "newer llama.cpp"),
    "b11434-draftmissing": ("draft", "'/nope/d.gguf'", "path"),
    "b11434-mtp": ("mtp", "no MTP head", ""),
    "b11434-lora": ("lora", "'/nope/lora.gguf': No such file", "path"),
    "b10068-lora": ("lora", "'/nope/lora.gguf' (No such file", "path"),  # this build also crashes
    "b11434-loramodel": ("lora", "expect general.type to be 'adapter'", "different kind"),
    "b11434-mmproj": ("mmproj", "'/nope/mm.gguf'", "path"),
    "b11434-mmprojbad": ("mmproj", "/models/draft.gguf", "different kind"),
    "b11434-template": ("template", "Unknown statement: bad", "--chat-template"),
    "b11434-dev": ("argument", "invalid device: CUDA7", ""),
    "b11434-ctk": ("argument", "Unsupported cache type: q9_9", ""),
    "b11434-np": ("threads", "Resource temporarily unavailable", "-np"),
    "b11434-ssl": ("tls", "no TLS", "OpenSSL"),
    "b11434-port": ("port", "(hostname: 127.0.0.1, port: ", "--port"),
    "b11434-memory": ("memory", "ran out of memory (insufficient memory (attempted", "-c N"),
    "b10068-memory": ("memory", "ran out of memory (insufficient memory (attempted", "-c N"),
    "b11434-qv": ("flash-attention", "quantized V cache", "-fa on"),
    "b10068-emb": ("assert", "n_outputs_max <= cparams.n_outputs_max", ""),
}
WITHOUT_SPECULATION = {"memory", "draft", "lookup", "mtp", "assert"}


@pytest.mark.parametrize("name", sorted(p.stem for p in LOGS.glob("*.log")))
def test_a_real_log_gives_a_cause_and_advice(name: str) -> None:
    head, _, log = (LOGS / f"{name}.log").read_text(encoding="utf-8").partition("\n")
    why = explain(int(head.removeprefix("exit code ")), log)
    kind, words, advice = REAL[name]
    assert why.kind == kind
    assert words in why.message
    assert advice in why.hint
    assert why.blames_speculation == (kind in WITHOUT_SPECULATION)


@pytest.mark.parametrize("code", [-4, 132, 0xC000001D])
def test_an_unknown_instruction_means_a_binary_for_another_cpu(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "flags", lambda: frozenset("avx avx2 fma f16c bmi2".split()))
    why = explain(code, "failed to load model")
    assert (why.kind, why.blames_speculation) == ("cpu", False)
    assert "built for another CPU (SIGILL: this one lacks AVX-512)" in why.message
    assert "--llama-server embedded" in why.hint
    embedded = explain(code, "", embedded=True)
    assert "xllamacpp was built for another CPU" in embedded.message
    assert "--llama-server embedded" not in embedded.hint


def test_a_cpu_with_avx512_may_lack_avx_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AMD EPYC: `{vex} vpdpbusd` killed b10434, and the message blamed AMX."""
    flags = "avx avx2 fma f16c bmi2 avx512f avx512_vnni avx512_bf16"
    monkeypatch.setattr(cpu, "flags", lambda: frozenset(flags.split()))
    assert "(SIGILL: this one lacks AVX-VNNI, AMX)" in explain(-4, "").message


def test_an_unknown_cpu_gives_no_specific_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "flags", frozenset)
    assert "this one lacks instructions it uses" in explain(-4, "").message
    assert explain(-11, "").hint == ""


def test_amx_advice_only_for_cpus_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "flags", lambda: frozenset(("avx512f", "amx_tile")))
    assert "--no-repack" in explain(-11, "").hint
    assert "--no-repack" in explain(-4, "").hint
    monkeypatch.setattr(cpu, "flags", lambda: frozenset(("avx512f",)))
    assert "--no-repack" not in explain(-11, "").hint + explain(-4, "").hint


def test_cpu_flags_are_read_from_the_first_cpu(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n\nflags\t\t: other\n")
    assert cpu.flags(info) == {"fpu", "avx", "avx2"}
    assert cpu.flags(tmp_path / "none") == frozenset()


@given(st.integers(-64, 255), st.text())
def test_any_log_is_explained(code: int, log: str) -> None:
    assert explain(code, log).message


def run(engine: str, log: Path, *args: str | Path) -> Exit:
    """Runs a real server with arguments that make it exit, and explains the exit."""
    argv = (*locate(engine).argv, *map(str, args), "--host", "127.0.0.1", "-t", "1", "-c", "512")
    server = process.start(LaunchCommand(argv, dict(os.environ), (), ()), log)
    try:
        code = server.popen.wait(60)
    finally:
        server.stop()
    return explain(code, server.log_text())


def test_exits_of_real_servers_are_explained(engine: str, tmp_path: Path) -> None:
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
