"""The command line: errors, start-up, completions."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from specllama import __version__
from specllama.cli.app import split
from specllama.cli.render import Printer
from specllama.cli.spellings import with_own_names
from specllama.gguf import file_of_kind
from tests.support import MODELS, script, specllama, write_gguf

TARGET = MODELS / "target.gguf"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "no such file"),
        ("empty", b"", "the file is empty (0 bytes)"),
        ("page", b"<!doctype html><title>x", "web page saved as .gguf"),
        ("cut", (MODELS / "target.gguf").read_bytes()[:2_000_000], "truncated"),
        (
            "cut in the header",
            (MODELS / "target.gguf").read_bytes()[:5000],
            "ends within its header",
        ),
        ("old", b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1"),
    ],
)
def test_invalid_model_files_are_errors(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / f"{name}.gguf"
    if content is not None:
        path.write_bytes(content)
    for args in ((path,), (TARGET, "--draft", path)):
        done = specllama("serve", *args, "--port", "0", "--llama-server", "embedded")
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
        assert str(path) in done.stderr
        assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([MODELS], "is a folder"),
        ([TARGET, "--draft", TARGET], "target itself"),
        ([TARGET, "--workload", "nope"], "Workloads: agent, chat, code"),
        ([TARGET, "--method", "draft-self"], "ngram-simple"),
        ([MODELS / "mtp-head.gguf"], "cannot be served on its own"),
        ([TARGET, "--llama-server", "/nope/llama-server"], "does not exist"),
        ([TARGET, "--", "--parallel", "2"], "--parallel N"),
        ([TARGET, "--bogus"], "--bogus"),
        ([], "MODEL"),
        ([TARGET, "--port", "70000"], "65535"),
    ],
)
def test_invalid_arguments_exit_2(args: list[str | Path], message: str) -> None:
    done = specllama("serve", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ("pass", "is not a llama-server: its --help lists no options", 2),
        ("import sys; sys.exit(7)", "exited with code 7", 1),
    ],
)
def test_a_program_that_is_not_llama_server_is_an_error(
    tmp_path: Path, body: str, message: str, code: int
) -> None:
    done = specllama("serve", TARGET, "--llama-server", script(tmp_path / "llama-server", body))
    assert done.returncode == code
    assert message in done.stderr
    assert "embedded" in done.stderr


def test_an_unknown_architecture_is_an_error(tmp_path: Path, engine: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", [f"t{i}" for i in range(40)], "frobnicator")
    done = specllama("serve", path, "--port", "0", "--llama-server", engine)
    assert done.returncode == 1
    assert "'frobnicator'" in done.stderr


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    """Infinity and NaN, as in open intervals, are not valid JSON."""
    inf, nan = float("inf"), float("nan")
    Printer().json({"a": [1.5, 1.0, inf], "b": {"c": (nan, "NaN")}, "d": {inf: -inf, 1: True}})

    def refuse(name: str) -> None:
        raise ValueError(name)

    read = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert read == {
        "a": [1.5, 1.0, None],
        "b": {"c": [None, "NaN"]},
        "d": {"inf": None, "1": True},
    }


def test_version_and_help() -> None:
    assert specllama("--version").stdout == f"specllama {__version__}\n"
    done = specllama("--help")
    assert done.returncode == 0
    assert "serve" in done.stdout
    assert "demo" in done.stdout


def test_help_imports_no_large_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "specllama", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    large = {"httpx", "gguf", "numpy", "xllamacpp", "huggingface_hub", "psutil", "pynvml"}
    assert not large & imported


def test_arguments_are_split_at_the_first_double_dash() -> None:
    assert split(["serve", "m", "--", "-c", "1", "--", "x"]) == (
        ["serve", "m"],
        ("-c", "1", "--", "x"),
    )
    assert split(["demo"]) == (["demo"], ())


def test_demo_accepts_no_server_arguments() -> None:
    done = specllama("demo", "--", "-c", "1")
    assert done.returncode == 2
    assert "no arguments after --" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = specllama("--debug", "serve", tmp_path / "nope.gguf")
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_debug_is_accepted_after_the_command(tmp_path: Path) -> None:
    from specllama.cli.app import run
    from specllama.errors import SpecllamaError

    with pytest.raises(SpecllamaError):
        run(["inspect", str(tmp_path / "nope.gguf"), "--debug"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("results", "--frob"), "See `specllama results --help`."),
        (("probe", "x.gguf", "--frob"), "`specllama probe MODEL -- --frob …`"),
    ],
)
def test_unknown_options_suggest_server_arguments_only_where_accepted(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    assert run(words) == 2
    assert message in capsys.readouterr().err


def test_no_colour_codes_without_a_terminal(tmp_path: Path) -> None:
    done = specllama("serve", TARGET, "--dry-run", "--llama-server", "embedded", FORCE_COLOR="")
    assert "\x1b" not in done.stdout + done.stderr


def test_completion_through_typers_environment_variables() -> None:
    env = {
        **os.environ,
        "_SPECLLAMA_COMPLETE": "complete_bash",
        "COMP_WORDS": "specllama se",
        "COMP_CWORD": "1",
    }
    argv = [sys.executable, "-c", "from specllama.cli import main; main()"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split() == ["serve"]


def test_a_closed_output_pipe_is_not_an_error() -> None:
    argv = [sys.executable, "-m", "specllama", "inspect", str(TARGET), "--tensors"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        assert p.stderr.read() == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nmax", "3"), "Did you mean --n-max?"),
        (("-nkvo", "9"), "No such option: -nkvo"),
        (("-nkvo", "9"), "serve MODEL -- -nkvo"),
        (("--slots", "2"), "Use --parallel N."),
        (("-hf", "a/b"), "No such option: -hf\n  Use OWNER/REPO[:QUANT] as the first argument"),
        (("-cmoe",), "serve MODEL -- -cmoe"),
        (("-ngl",), "Option '-ngl' requires an argument"),
        (("-ngl", "--dry-run"), "Option '-ngl' requires an argument"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(
    words: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    assert run(["serve", "x.gguf", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-c", "-5"), "-c -5: must be"),
        (("-c-5",), "-c -5: must be"),
        (("--context", "-5"), "--context -5: must be"),
        (("--ctx-size=-5",), "--ctx-size -5: must be"),
        (("-np", "0"), "-np 0: must be"),
    ],
)
def test_an_invalid_value_is_reported_as_typed(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    assert run(["serve", "x.gguf", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_is_reported_as_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from specllama.cli.app import run

    assert run(["probe", "x.gguf", "--draft-p-min", "0.5"]) == 2
    assert "No such option: --draft-p-min\n" in capsys.readouterr().err


def test_a_dry_run_reports_the_benchmark_and_prints_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    monkeypatch.chdir(tmp_path)
    for file in (TARGET, TARGET.with_name("draft.gguf")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    args = ["serve", "target.gguf", "--draft", "draft.gguf", "-w", "creative", "--dry-run"]
    args += ["--llama-server", "embedded", "-c", "1024", "--budget", "30"]
    assert run([*args, "--p-min", "0.5"]) == 0
    out = capsys.readouterr().out
    assert ", p_min=0.5: set with --draft" in out
    assert "tuning   not measured yet: serve runs a benchmark of up to 30 s first\n" in out
    assert f" -m {tmp_path / 'target.gguf'} " in out
    assert f" -md {tmp_path / 'draft.gguf'} " in out
    assert run([*args, "--tune", "off"]) == 0
    assert "tuning   " not in capsys.readouterr().out


def test_a_file_without_read_permission_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may read everything
    assert run(["serve", str(TARGET), "--draft", str(MODELS / "draft.gguf"), "--dry-run"]) == 2
    error = f"error: --draft {MODELS / 'draft.gguf'}: it cannot be read (Permission denied)\n"
    assert capsys.readouterr().err.startswith(error)


def test_an_eagle3_file_has_its_article() -> None:
    assert file_of_kind("model") == "a model file"
    assert file_of_kind("eagle3") == "an eagle3 file"
    assert file_of_kind("mtp-head") == "an mtp-head file"


def test_strict_applies_to_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    from specllama.cli.app import run

    args = ["serve", str(TARGET), "--vram", "8GiB", "--llama-server", "embedded", "--dry-run"]
    assert run([*args, "--strict"]) == 0
    assert run([*args, "--strict", "--method", "none"]) == 3
    assert "speculation OFF" in capsys.readouterr().err


def test_quiet_prints_only_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    from specllama.cli.app import run

    args = [str(TARGET), "--vram", "8GiB", "--llama-server", "embedded", "-q"]
    assert run(["serve", *args, "--dry-run"]) == 0
    (command,) = capsys.readouterr().out.splitlines()
    assert "--spec-type" in command
    assert run(["advise", *args]) == 0
    labels = {line[:9].strip() for line in capsys.readouterr().out.splitlines()}
    assert labels == {"decision", "change", ""}


def test_help_breaks_lines_at_the_terminals_width_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.cli.app import run

    monkeypatch.setenv("COLUMNS", "80")
    assert run(["doctor", "--help"]) == 0
    page = capsys.readouterr().out
    assert "can be pasted into an issue" in " ".join(page.split())
    assert all(len(line) > 60 for line in page.split("\n\n")[1].splitlines()[:-1])


@pytest.mark.parametrize(
    ("typed", "options", "server_args"),
    [
        ("serve m -md d -np 2", "serve m --draft d --parallel 2", ""),
        ("serve m --spec-type=ngram-mod", "serve m --method=ngram-mod", ""),
        ("serve m -ngl 20 -ctk=q8_0 --n-max 2", "serve m --n-max 2", "-ngl 20 -ctk q8_0"),
        ("memory m -ctk q8_0 -ngl 9", "memory m --cache-type-k q8_0", "-ngl 9"),
        ("plan m --ctx-size 4096 -ngld 9", "plan m --context 4096 --draft-layers 9", ""),
        ("serve m -ctkd q8_0", "serve m", "-ctkd q8_0"),
        ("probe m --draft-max 3", "probe m --draft-lengths 3", ""),
        ("serve m -ngl -1 --dry-run", "serve m --dry-run", "-ngl -1"),
        ("lint m -md d", "lint m -md d", ""),
    ],
)
def test_llama_servers_option_names_are_translated(
    typed: str, options: str, server_args: str
) -> None:
    found = with_own_names(typed.split(), ("-x",))
    assert found == (options.split(), (*server_args.split(), "-x"))
