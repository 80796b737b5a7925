"""`specllama doctor`: its findings, its problems, and that names are redacted."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama import workloads
from specllama.cli.app import run
from specllama.cli.doctor import found_lines
from specllama.doctor import engines as engine_examination
from specllama.doctor import environment
from specllama.doctor import examine as examining
from specllama.doctor.engines import backends, faults
from specllama.doctor.findings import (
    DeviceReport,
    DoctorReport,
    EngineReport,
    FolderReport,
    ModelFolder,
    Problem,
    StartResult,
    UserSettings,
)
from specllama.doctor.folders import unwritable
from specllama.doctor.problems import problems
from specllama.doctor.redaction import Identity, redact, redacted, shown_value
from specllama.engine.capabilities import describe
from specllama.engine.errors import EngineError
from specllama.engine.locate import everything, locate
from specllama.logs import log_dir
from tests import help_render
from tests.support import script, specllama

ANNA = Identity(
    ("/home/anna", "/data/users/anna"), "anna", ("annas-pc.lan", "annas-pc"), ("s3cr3t-v",)
)


# ---- redaction


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/anna/models/x.gguf", "~/models/x.gguf"),
        ("/home/anna", "~"),
        ("it lies in /home/anna.", "it lies in ~."),
        ("/home/annabel/x", "/home/<user>/x"),
        ("/data/users/anna/x: no", "~/x: no"),
        ("/mnt/disk/anna/x", "/mnt/disk/<user>/x"),
        ("banana anna says", "banana anna says"),
        ("ssh anna@box", "ssh <user>@box"),
        ("at annas-pc, annas-pc.lan:8080", "at <host>, <host>:8080"),
        ("RPC server at box.lan:50052", "RPC server at <host>:50052"),
        ("127.0.0.1:50052 localhost:8080", "127.0.0.1:50052 localhost:8080"),
        ("no answer from 10.1.2.3:50052", "no answer from <address>:50052"),
        ("llama.cpp 0.3.36, driver 550.54.15", "llama.cpp 0.3.36, driver 550.54.15"),
        ("fe80::1ff:fe23:4567:890a is up", "<address> is up"),
        ("ggml::add at 12:34:56", "ggml::add at 12:34:56"),
        ("http://user:pw@mirror.corp/simple", "http://…@<host>/simple"),
        ("https://huggingface.co/x", "https://huggingface.co/x"),
        ("--api-key abc --port 1", "--api-key … --port 1"),
        ("--hf-token=abc", "--hf-token=…"),
        ("LLAMA_API_KEY=abc", "LLAMA_API_KEY=…"),
        ("token hf_abcdefgh12", "token …"),
        ("it has no mask token or tokenizer", "it has no mask token or tokenizer"),
        ("whatever: s3cr3t-v!", "whatever: …!"),
        (
            "/opt/llama.cpp/b11434/llama-server: b11434",
            "/opt/llama.cpp/b11434/llama-server: b11434",
        ),
    ],
)
def test_names_addresses_and_keys_are_redacted(text: str, shown: str) -> None:
    assert redact(text, ANNA) == shown


def test_a_home_folder_of_slash_is_not_replaced() -> None:
    """In a container, HOME may be "/"."""
    assert redact("/opt/x", Identity(("/",), "root")) == "/opt/x"


@given(st.text(), st.text())
def test_no_secret_survives_any_text(before: str, after: str) -> None:
    shown = redact(f"{before} /home/anna/x s3cr3t-v {after}", ANNA)
    assert "s3cr3t-v" not in shown
    assert "/home/anna/" not in shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("LLAMA_ARG_CTX_SIZE", "4096", "4096"),
        ("LLAMA_ARG_FLASH_ATTN", "on", "on"),
        ("LLAMA_ARG_CACHE_TYPE_K", "q8_0", "q8_0"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("CUDA_VISIBLE_DEVICES", "", "empty"),
        ("LLAMA_ARG_HOST", "box.lan", "set"),
        ("HF_HOME", "/home/anna/hf", "set"),
        ("HF_TOKEN", "12345678", "set"),
        ("LLAMA_API_KEY", "on", "set"),
    ],
)
def test_values_of_environment_variables_are_shown_only_if_harmless(
    name: str, value: str, shown: str
) -> None:
    assert shown_value(name, value) == shown


def test_every_text_of_a_report_is_redacted() -> None:
    found = replace(HEALTHY, versions={"x": "/home/anna"}, nvidia=("GPU of annas-pc",))
    shown = redacted(found, ANNA)
    assert shown.versions == {"x": "~"}
    assert shown.nvidia == ("GPU of <host>",)
    assert shown.engines[0].start == found.engines[0].start


# ---- problems

ENGINE = EngineReport(
    name="/opt/llama-server",
    reason="found on PATH",
    used=True,
    build=11434,
    label="b11434",
    flavour="mainline",
    spec_types=("draft-mtp",),
    backends=("CPU",),
    gpus=(),
    problem="",
    faults=(),
    start=StartResult(True, True, "40 tokens drafted, 30 accepted"),
)
LOGS = FolderReport("logs", "/logs", True, "", {"logs": 1}, free=10**12)
HEALTHY = DoctorReport(
    versions={},
    system={},
    engines=(ENGINE,),
    wrong_engines=(),
    devices=(DeviceReport("RAM", "system memory", 8 * 2**30, 4 * 2**30),),
    device_note="",
    nvidia=(),
    folders=(LOGS,),
    models=(ModelFolder("/models", True, 3, named=True),),
    settings=UserSettings("/c.toml", False, "", (), {}, {}),
)
FAILED = StartResult(False, False, "an illegal instruction (SIGILL)", "Use another build.")


def test_a_healthy_machine_has_no_problems() -> None:
    assert problems(HEALTHY) == ()


def test_an_unusable_engine_is_one_line_and_one_problem() -> None:
    bad = replace(ENGINE, name="/b", problem="could not run /b (Exec format error)")
    versions = {"specllama": "1", "python": "3"}
    report = replace(HEALTHY, engines=(bad,), versions=versions)
    (line,) = (x for x in found_lines(report) if x.startswith("engine "))
    assert line == f"engine   /b: cannot be used; {bad.reason}"
    assert [p.what for p in problems(report) if "/b" in p.what] == [bad.problem]


@pytest.mark.parametrize(
    ("changed", "serious", "message", "advice"),
    [
        ({"engines": ()}, True, "no llama-server found", "pip install xllamacpp"),
        (
            {"engines": (replace(ENGINE, problem="its --help lists no options"),)},
            True,
            "cannot be used: its --help",
            "--llama-server",
        ),
        ({"engines": (replace(ENGINE, start=FAILED),)}, True, "SIGILL", "another build"),
        (
            {"engines": (ENGINE, replace(ENGINE, name="/b", used=False, start=FAILED))},
            False,
            "/b failed the test start",
            "another build",
        ),
        (
            {"engines": (replace(ENGINE, start=StartResult(True, False, "it drafts nothing")),)},
            True,
            "drafts nothing",
            "newer",
        ),
        ({"engines": (replace(ENGINE, faults=("bad (1)",)),)}, False, "bad (1)", "newer"),
        ({"nvidia": ("RTX 3090",)}, True, "does not use the GPU (RTX 3090)", "CUDA"),
        (
            {
                "nvidia": ("RTX 3090",),
                "engines": (ENGINE, replace(ENGINE, name="/b", used=False, gpus=("CUDA0",))),
            },
            True,
            "does not use the GPU",
            "--llama-server /b",
        ),
        ({"device_note": "no list"}, False, "devices are unknown: no list", "--vram"),
        (
            {"devices": (DeviceReport("Vulkan0", "llvmpipe", 1, 1, software=True),)},
            False,
            "a CPU that reports itself as a GPU",
            "GGML_VK_VISIBLE_DEVICES",
        ),
        (
            {"folders": (replace(LOGS, unwritable="Permission denied"),)},
            True,
            "(Permission denied): serve needs --log",
            "XDG_STATE_HOME",
        ),
        (
            {"folders": (replace(LOGS, what="cache", unwritable="Read-only file system"),)},
            False,
            "results are not saved",
            "XDG_CACHE_HOME",
        ),
        ({"folders": (replace(LOGS, free=2**20),)}, False, "only 1 MiB free", "space"),
        ({"folders": (replace(LOGS, exposed=2),)}, False, "2 logs", "chmod 600 /logs/*"),
        (
            {"models": (*HEALTHY.models, ModelFolder("/gone", False, 0, named=True))},
            False,
            "/gone, set by model_dirs",
            "Correct it",
        ),
        ({"models": (ModelFolder("/m", True, 0),)}, False, "no GGUF files", "model_dirs"),
        (
            {"settings": UserSettings("/c", True, "/c: unknown setting 'x'", (), {}, {})},
            True,
            "unknown setting 'x'",
            "config file",
        ),
        (
            {"settings": UserSettings("/c", True, "", (), {"mine": "x.toml: no"}, {})},
            False,
            "the profile mine is invalid: x.toml: no",
            "delete",
        ),
    ],
)
def test_each_problem_has_advice(
    changed: dict[str, Any], serious: bool, message: str, advice: str
) -> None:
    (found,) = problems(replace(HEALTHY, **changed))
    assert found.serious == serious
    assert message in found.what
    assert advice in found.advice


def test_an_invalid_config_is_reported_once() -> None:
    message = "/c.toml: not valid TOML"
    settings = UserSettings("/c.toml", True, message, (), {}, {})
    wrong_engines = (Problem(message, "Known: llama_server, model_dirs"),)
    engine = replace(ENGINE, used=False, start=None)
    report = replace(HEALTHY, settings=settings, engines=(engine,), wrong_engines=wrong_engines)
    (found,) = problems(report)
    assert found.what == message


def test_an_invalid_config_is_not_reported_as_an_engine_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "specllama").mkdir()
    (tmp_path / "specllama" / "config.toml").write_text("typo = 1\n")
    path = script(tmp_path / "llama-server", f"print({help_render.render('b11434')!r})")
    assert run(["doctor", "--llama-server", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.count("unknown setting 'typo'") == 1
    assert "failed to start" not in out
    assert "not started: fix the config file first" in out


def test_serious_problems_come_first() -> None:
    both = replace(HEALTHY, engines=(), models=())
    both = replace(both, folders=(replace(LOGS, exposed=1),))
    assert [p.serious for p in problems(both)] == [True, False]


# ---- findings


def test_backends_are_those_loaded_or_with_a_device() -> None:
    listed = (
        "load_backend: loaded RPC backend from /x/libggml-rpc.so\n"
        "load_backend: loaded Vulkan backend from /x/libggml-vulkan.so\n"
        "load_backend: loaded CPU backend from /x/libggml-cpu.so\n"
        "Available devices:\n  Vulkan0: NVIDIA RTX 3090 (24576 MiB, 24000 MiB free)\n"
    )
    assert list(backends(listed)) == ["Vulkan", "RPC", "CPU"]
    assert list(backends("Available devices:\n  (none)\n")) == ["CPU"]
    assert list(backends("Available devices:\n  MTL0: Apple M2 (8 MiB, 8 MiB free)")) == [
        "Metal",
        "CPU",
    ]


@pytest.mark.parametrize(
    ("build", "has_bug"),
    [("b11434", False), ("b9246", True)],
)
def test_known_bugs_of_a_build_are_listed(build: str, has_bug: bool) -> None:
    caps = describe(help_render.version(build), help_render.render(build))
    assert ("more than one slot (PR 29019" in " ".join(faults(caps))) == has_bug


def test_a_build_whose_eagle3_does_not_draft_is_reported() -> None:
    caps = replace(describe("", help_render.render("b11434")), build=9601)
    assert any("draft-eagle3 is listed but does not draft" in f for f in faults(caps))


def test_every_engine_is_listed_once_and_serves_default_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = script(tmp_path / "llama-server", "pass")
    (tmp_path / "other").mkdir()
    second = script(tmp_path / "other" / "llama-server", "pass")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "llama-server").symlink_to(first)
    folders = [tmp_path, tmp_path / "link", tmp_path / "other", tmp_path / "none"]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    found, wrong = everything()
    assert [e.identity for e in found[:2]] == [first.resolve(), second.resolve()]
    assert len({e.identity for e in found}) == len(found)
    assert found[0] == locate()
    assert wrong == ()
    alone, _ = everything(str(second))
    assert [e.identity for e in alone] == [second.resolve()]


def test_a_missing_configured_engine_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_LLAMA_SERVER", "/nope")
    script(tmp_path / "llama-server", "pass")
    monkeypatch.setenv("PATH", str(tmp_path))
    found, wrong = everything()
    assert found
    assert [e.message for e in wrong] == ["SPECLLAMA_LLAMA_SERVER: /nope does not exist"]


def test_a_folder_that_cannot_be_created_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in unwritable(tmp_path / "file" / "a" / "b")
    assert unwritable(tmp_path / "not" / "there" / "yet") == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # nothing was created


# ---- the command


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine exists, so nothing is started."""
    monkeypatch.setattr(examining, "everything", lambda _: ((), ()))


def doctor_json(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    assert run(["doctor", *args, "--json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_the_other_checks_still_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = doctor_json(capsys, code=1)
    assert not data["works"]
    assert data["engines"] == []
    assert "no llama-server found" in data["problems"][0]["what"]
    assert [f["what"] for f in data["folders"]] == ["config", "cache", "logs"]
    assert [d["name"] for d in data["devices"]] == ["RAM"]
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("versions specllama ")
    assert "problem  no llama-server found" in out


@pytest.mark.usefixtures("no_engine")
def test_the_output_does_not_identify_the_user_or_the_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "annas-pc.lan")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    monkeypatch.setenv("LLAMA_ARG_RPC", "gpu-box.corp:50052")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.home() / "cfg"))
    file = Path.home() / "cfg" / "specllama" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'model_dirs = ["{Path.home()}/missing", "/srv/annas-pc/m"]\n')
    for args in ([], ["--json"]):
        assert run(["doctor", *args]) == 1
        out = capsys.readouterr().out
        assert "~/missing" in out
        for name in (str(Path.home()), "annas-pc", "gpu-box", "hf_0123456789abcdef"):
            assert name not in out
        if (user := getpass.getuser()) != "root":
            assert f"/{user}/" not in out


@pytest.mark.usefixtures("no_engine")
def test_an_invalid_config_and_an_invalid_profile_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = workloads.user_profiles_dir()
    folder.mkdir(parents=True)
    (folder.parent / "config.toml").write_text("typo = 1\n")
    (folder / "mine.toml").write_text("title = 1\n")
    messages = " ".join(p["what"] for p in doctor_json(capsys, code=1)["problems"])
    assert "unknown setting 'typo'" in messages
    assert "the profile mine is invalid" in messages


@pytest.mark.usefixtures("no_engine")
@pytest.mark.skipif(sys.platform == "win32", reason="it has no such modes")
def test_logs_readable_by_others_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    log_dir().mkdir(parents=True, exist_ok=True)
    log = log_dir() / "20260101-000000-1.log"
    log.write_text("a prompt")
    log.chmod(0o644)
    try:
        assert any(
            "other users can read" in p["what"] for p in doctor_json(capsys, code=1)["problems"]
        )
    finally:
        log.unlink()


@pytest.mark.usefixtures("no_engine")
def test_a_failing_check_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> tuple[str, ...]:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(environment, "nvidia", broken)
    data = doctor_json(capsys, code=1)
    assert any("could not check NVIDIA's driver" in p["what"] for p in data["problems"])
    assert data["folders"]


@pytest.mark.parametrize(
    ("body", "message"),
    [("pass", "lists no options"), ("import sys; sys.exit(7)", "exited with code 7")],
)
def test_a_program_that_is_not_llama_server_is_a_problem(
    tmp_path: Path, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path / "llama-server", body)
    data = doctor_json(capsys, "--llama-server", str(path), code=1)
    assert message in data["problems"][0]["what"]
    assert data["engines"][0]["start"] is None


def test_a_failed_test_start_is_reported_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> StartResult:
        raise EngineError("it does not start", "Try another.")

    monkeypatch.setattr(engine_examination, "_test_start", refused)
    path = script(tmp_path / "llama-server", f"print({help_render.render('b11434')!r})")
    (engine,), _ = everything(str(path))
    found = engine_examination.examine_engine(engine, used=True, tried=True)
    assert found.start == StartResult(False, False, "it does not start", "Try another.")
    assert engine_examination.examine_engine(engine, used=True, tried=False).start is None


def test_server_arguments_are_rejected() -> None:
    assert run(["doctor", "--", "-c", "1"]) == 2


def test_a_real_test_start_drafts(engine: str) -> None:
    done = specllama("doctor", "--llama-server", engine, "--json")
    assert done.returncode == 0, done.stdout
    (found,) = json.loads(done.stdout)["engines"]
    assert found["used"]
    assert found["start"]["drafted"]
    assert "draft-simple" in found["spec_types"]


def test_an_empty_environment_without_writable_folders(tmp_path: Path) -> None:
    """No HOME, no models, no config; the folders for state and cache cannot be created."""
    (tmp_path / "file").write_text("")
    needed = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "SYSTEMROOT")}
    unwritable_folders = {
        f"XDG_{x}_HOME": str(tmp_path / "file") for x in ("CACHE", "STATE", "CONFIG")
    }
    argv = [sys.executable, "-m", "specllama", "doctor", "--json", "--llama-server", "embedded"]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        env=needed | unwritable_folders,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1  # serve could not write a log
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert data["engines"][0]["start"]["drafted"]
    assert len(data["folders"]) == 3
    assert all("is not a folder" in f["unwritable"] for f in data["folders"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/bob/models/x.gguf", "/home/<user>/models/x.gguf"),
        ("C:\\Users\\Bob\\x", "C:\\Users\\<user>\\x"),
        ("//fileserver/share/x", "//<host>/share/x"),
        ("--api-key 'my key here'", "--api-key …"),
        ("HF_TOKEN: abcdef", "HF_TOKEN: …"),
        ('{"api_key": "abcd"}', '{"api_key": …}'),
        ("/export/home/anna/x", "/export/home/<user>/x"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1"),
    ],
)
def test_homes_of_others_shares_and_keys_in_any_form_are_redacted(text: str, shown: str) -> None:
    assert redact(text, ANNA) == shown
