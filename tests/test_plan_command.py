"""`specllama plan` as a user runs it: what it writes, and its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specllama.cli.app import run
from specllama.cli.output import save
from specllama.engine.settings import Settings
from specllama.errors import UsageError
from specllama.formats import FORMATS, HF_FORMATS
from specllama.formats.base import MADE
from specllama.formats.multi_machine import rpc_arguments
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.scope import scope_of
from specllama.serving.tune import AUTO, TuningOptions, serve_task
from specllama.tuning import results
from tests import formats_read, help_render
from tests.fake_server import Fake
from tests.made import confirmation, tuned
from tests.support import MODELS, specllama
from tests.test_rpc import free_port, rpc_server

PAIR = (str(MODELS / "target.gguf"), "--draft", str(MODELS / "draft.gguf"))


def plan_args(tmp: Path, *args: str, **config: Any) -> tuple[str, ...]:
    """The arguments of a plan for a fake server."""
    return ("plan", *PAIR, "--llama-server", str(Fake(tmp, **config).path), *args)


def test_without_a_format_plan_prints_readable_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(plan_args(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "method   draft-simple with draft.gguf, K=3: set with --draft" in out
    assert "--spec-type draft-simple" in out.splitlines()[-1]


def test_messages_have_the_users_paths_and_files_absolute_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("target", "draft"):
        (tmp_path / f"{name}.gguf").symlink_to(MODELS / f"{name}.gguf")
    monkeypatch.chdir(tmp_path)
    server = ("--llama-server", str(Fake(tmp_path).path))
    assert run(("plan", "none.gguf", *server)) == 2
    assert capsys.readouterr().err.startswith("error: none.gguf: no such file\n")
    assert run(("plan", "target.gguf", "--draft", "none.gguf", *server)) == 2
    assert capsys.readouterr().err.startswith("error: none.gguf: no such file\n")
    assert run(("plan", "target.gguf", "--draft", "draft.gguf", *server, "--format", "json")) == 0
    data = json.loads(capsys.readouterr().out)
    here = (str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf"))
    assert (data["target"], data["draft"]) == here
    assert set(here) <= set(data["command"])


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in HF_FORMATS])
def test_each_format_prints_what_it_writes_to_a_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(plan_args(tmp_path, "--format", name)) == 0
    out = capsys.readouterr().out
    file = tmp_path / "out"
    assert run(plan_args(tmp_path, "--format", name, "-o", str(file))) == 0
    written = file.read_text(encoding="utf-8")
    free = "GiB free"  # RAM, which changes
    stable_lines = [x for x in out.splitlines() if free not in x and "bytes" not in x]
    assert stable_lines == [x for x in written.splitlines() if free not in x and "bytes" not in x]
    assert f"written  {file}" in capsys.readouterr().out


def test_json_is_the_object_of_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(plan_args(tmp_path, "--format", "json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["methods"] == ["draft-simple"]
    assert data["command"][1:3] == ["-m", PAIR[0]]


def test_paths_in_the_output_are_absolute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("target", "draft"):
        shutil.copy(MODELS / f"{name}.gguf", tmp_path)
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    server = Fake(tmp_path).path
    monkeypatch.chdir(tmp_path)
    args = ("plan", "target.gguf", "--llama-server", f"./{server.name}", "--format", "shell")
    assert run((*args, "--", "--chat-template-file", "t.jinja")) == 0
    argv = formats_read.shell(capsys.readouterr().out)
    assert argv[0] == str(server)
    for name in ("target.gguf", "draft.gguf", "t.jinja"):
        assert str(tmp_path / name) in argv


def test_a_variable_that_would_add_a_method_is_unset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "ngram-mod")
    assert run(plan_args(tmp_path, "--format", "shell")) == 0
    assert "unset LLAMA_ARG_SPEC_TYPE\n" in capsys.readouterr().out


def test_formats_are_utf8_for_any_terminal_encoding(tmp_path: Path) -> None:
    folder = tmp_path / "modèles à moi"
    folder.mkdir()
    shutil.copy(MODELS / "target.gguf", folder)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "specllama",
                "plan",
                folder / "target.gguf",
                "--method",
                "none",
            ),
            *("--format", "preset", "--llama-server", Fake(tmp_path).path),
        ],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    found = formats_read.preset(done.stdout.decode("utf-8"), help_render.capabilities("b11434"))[1]
    assert found["-m"] == str(folder / "target.gguf")


def test_a_model_larger_than_the_machine_gets_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run((*plan_args(tmp_path), "--", "-c", "200000000")) == 0
    assert "larger   than this machine: run llama.cpp's ggml-rpc-server" in capsys.readouterr().out


REPOS = ("--target-repo", "acme/Big-8B", "--draft-repo", "acme/Small-1B")


@pytest.mark.parametrize("name", ["vllm", "vllm-kubernetes", "sglang", "tensorrt-llm"])
def test_comments_for_other_engines_do_not_mention_llama_server(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rpc = ("--rpc", "127.0.0.1:50052", "--vram", "1GiB,1GiB")
    assert run(plan_args(tmp_path, "--format", name, *REPOS, *rpc)) == 0
    out, err = capsys.readouterr()
    output = out + err
    assert "# method draft-simple with draft.gguf, K=3" in out
    for own_word in ("# engine", "--cache-ram", "# context", "# memory", "# options  ", "logprobs"):
        assert own_word not in output


def test_on_a_terminal_notes_are_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = plan_args(tmp_path, "--format", "vllm", *REPOS)
    assert run(args) == 0
    err = capsys.readouterr().err  # stdout goes to a file or a program: the notes are for the user
    assert "vllm serve --config FILE.yaml" in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(args) == 0
    shown, err = capsys.readouterr()
    assert shown.count("vllm serve --config FILE.yaml") == 1
    assert err == ""


# ---- measured settings


def test_measured_settings_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = plan_args(tmp_path, "--format", "shell", "-w", "code")
    spec_options = SpeculationOptions("code", Path(PAIR[2]))
    settings = Settings(Path(PAIR[0]), "127.0.0.1", 8080)
    plan = prepare(settings, spec_options, (), str(tmp_path / "llama-server"), check_port=False)
    about = serve_task(plan, TuningOptions(AUTO, 60, scope_of(spec_options)))[2]
    assert plan.settings.speculation is not None
    best = replace(plan.settings.speculation, n_max=7)
    results.store(
        about, replace(tuned(), best=confirmation(best), confirmations=(confirmation(best),))
    )
    assert run(args) == 0
    out = capsys.readouterr().out
    assert "--spec-draft-n-max 7" in out
    assert "# method draft-simple with draft.gguf, K=7: measured: " in out
    found, _ = results.find(about)
    assert found is not None
    tuning = f"tuning   measured on {results.format_time(found.when)}; `specllama results`"
    assert f"# {' '.join(tuning.split())}" in out
    assert "not measured yet" not in out
    serve = ["serve", *(a for a in args[1:] if a not in ("--format", "shell"))]
    assert run([*serve, "--dry-run"]) == 0
    assert tuning in capsys.readouterr().out


def test_settings_that_were_not_measured_are_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` wrote a draft config without a word about that."""
    assert run(plan_args(tmp_path, "-c", "2048", "-w", "text")) == 0
    assert "tuning   not measured yet; `specllama probe` measures" in capsys.readouterr().out


# ---- bad input


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "toml"), "--format toml: must be one of"),
        (("-o", "x"), "-o needs --format"),
        (("--format", "shell", "-o", "{tmp}"), "cannot be written (it is a folder)"),
        (("--format", "shell", "-o", "{tmp}/absent/x"), "No such file or directory"),
        (("--format", "shell", "-o", "{tmp}/fake.json/x"), "cannot be written"),
        (("--rpc", "nonsense"), "--rpc nonsense: invalid address"),
        (("--rpc", "a:1,"), "--rpc a:1,: invalid address"),
        (("--rpc", "a:0"), "--rpc a:0: invalid address"),
        (("--port", "0"), "--port"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(
    args: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plan_args(tmp_path, *(a.replace("{tmp}", str(tmp_path)) for a in args))
    before = sorted(tmp_path.iterdir())
    assert run(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) <= 2
    assert sorted(p for p in tmp_path.iterdir() if p.name != "starts") == before


def test_a_value_the_format_cannot_express_leaves_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.ini"
    file.write_text("mine")
    to = ("--format", "preset", "-o", str(file), "--overwrite")
    assert run((*plan_args(tmp_path, *to), "--", "-a", "x#y")) == 2
    assert "would be cut off" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["shell", "json", "launchd"])
def test_a_file_not_written_by_plan_is_not_overwritten(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f"
    words = plan_args(tmp_path, "--format", name, "-o", str(file))
    file.write_text("models: {mine: too}\n")
    assert run(words) == 2
    assert "Name a new file, or add --overwrite." in capsys.readouterr().err
    assert file.read_text() == "models: {mine: too}\n"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert run((*words, "--overwrite")) == 0
    assert MADE in file.read_text(encoding="utf-8")
    assert run(words) == 0  # a file that plan wrote
    file.write_text("")  # as mktemp makes them
    assert run(words) == 0
    assert MADE in file.read_text(encoding="utf-8")


def test_overwrite_needs_an_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(plan_args(tmp_path, "--format", "shell", "--overwrite")) == 2
    assert "--overwrite needs -o FILE" in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        save(file, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert file.read_text() == "old"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")
def test_an_overwritten_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "x", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o750)
    link.symlink_to(file)
    save(link, b"new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o750)
    save(Path("/dev/null"), b"gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("good", ["10.0.0.2:50052", "gpu-1.lan:1,[fe80::1%eth0]:65535"])
def test_valid_addresses_of_rpc_servers_are_accepted(good: str) -> None:
    assert rpc_arguments(good) == ("--rpc", good)


# ---- real programs


def completion_timings(url: str, model: str | None = None) -> dict[str, float]:
    """The timings of a short completion."""
    body = {"prompt": "def main():\n", "n_predict": 24, "temperature": 0}
    if model is not None:
        body["model"] = model
    timings: dict[str, float] = httpx.post(f"{url}/completion", json=body, timeout=60).json()[
        "timings"
    ]
    return timings


@contextmanager
def running(argv: list[str], url: str, log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        until = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_llama_servers_router_serves_the_preset_and_drafts(native: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' \"c\" 100% $HOME é"
    folder.mkdir()
    for name in ("target", "draft"):
        shutil.copy(MODELS / f"{name}.gguf", folder)
    file, port = tmp_path / "p.ini", free_port()
    args = ("--llama-server", native, "--format", "preset", "-o", file)
    pair = (folder / "target.gguf", "--draft", folder / "draft.gguf")
    done = specllama("plan", *pair, *args, "--", "-t", "1", "-c", "1024")
    assert done.returncode == 0, done.stderr
    router = [str(native), "--models-preset", str(file), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(router, url, tmp_path / "log"):
        (model,) = httpx.get(f"{url}/models").json()["data"]
        assert model["id"] == "target"
        assert str(folder / "draft.gguf") in model["status"]["args"]
        assert completion_timings(url, "target")["draft_n"] > 0


def test_a_plan_over_two_rpc_servers_uses_both_and_drafts(old_builds: Path, tmp_path: Path) -> None:
    build, port, file = old_builds / "b10068", free_port(), tmp_path / "run.sh"
    program = build / "ggml-rpc-server"
    with rpc_server(program) as one, rpc_server(program) as two:
        common = (
            "--rpc",
            f"{one},{two}",
            "--llama-server",
            build,
            "-c",
            "1024",
            "--port",
            str(port),
        )
        done = specllama("plan", *PAIR, *common, "--", "-t", "1")
        assert done.returncode == 0, done.stderr
        assert " on RPC0; " in done.stdout
        assert " on RPC1" in done.stdout
        assert "use a private network only" in done.stdout
        done = specllama(
            "plan", *PAIR, *common, "-f", "shell", "-o", file, "--", "-t", "1", "-lv", "4"
        )
        assert done.returncode == 0, done.stderr
        log, url = tmp_path / "log", f"http://127.0.0.1:{port}"
        with running(["sh", str(file)], url, log):
            assert completion_timings(url)["draft_n"] > 0
        for address in (one, two):
            assert f"{address}] model buffer size" in log.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--n-max", "20000000"), "must be an integer from 1 to 512"),
        (("--api-key", "\u043a"), "a character that is not allowed in an HTTP header"),
    ],
)
def test_options_have_the_same_limits_as_in_serve(
    args: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(plan_args(tmp_path, *args)) == 2
    assert message in capsys.readouterr().err
