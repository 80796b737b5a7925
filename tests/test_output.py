"""Output works for any encoding, name and terminal width, and without a reader."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.table import Table

from specllama.cli.app import run
from specllama.cli.render import Printer
from specllama.cli.shown import shorten, shown
from specllama.cli.tables import wrapped_cell
from tests.fake_server import Fake
from tests.support import MODELS, ONE_THREAD, write_gguf

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
MEMORY_ARGS = ("memory", TARGET, "--draft", DRAFT, "--vram", "8GiB", "--llama-server", "embedded")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1"])
def test_characters_missing_in_an_encoding_are_replaced(encoding: str) -> None:
    for args in (("pick-draft", TARGET, "--vram", "8GiB"), ("serve", "--help")):
        done = subprocess.run(
            [sys.executable, "-m", "specllama", *map(str, args)],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""
        text = done.stdout.decode(encoding)
        assert "\\u" not in text.replace("\\u0120", "")  # a token of the vocabularies
        if args[0] == "pick-draft":
            assert ("alpha prior" in text) == (encoding != "cp437")


def test_a_full_disk_is_an_error_and_a_closed_pipe_is_silent() -> None:
    for args in (MEMORY_ARGS, ("--help",), ("--version",)):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "specllama", *map(str, args)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr == "error: output cannot be written (No space left on device)\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "specllama", *map(str, MEMORY_ARGS)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_commands_work_without_stdout() -> None:
    argv = [sys.executable, "-m", "specllama", *map(str, MEMORY_ARGS)]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *argv], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("columns", ["0", "1", "7", "40", "junk", "²", "9" * 5000])
def test_any_terminal_width_is_accepted(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert run(list(map(str, MEMORY_ARGS))) == 0
    out = capsys.readouterr().out
    assert "verdict  fits\n" in out
    assert "device   GPU0" in out
    assert run(["--help"]) == 0
    assert "serve" in capsys.readouterr().out


class Terminal:
    """Printer's console as a terminal of some width."""

    def __init__(self, width: int) -> None:
        self.printer = Printer()
        self.printer._console._force_terminal = True
        self.printer._console.is_interactive = True
        self.printer._console.width = width
        self.printer._console.no_color = True


def test_a_table_that_cannot_fit_the_terminal_is_shown_by_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for width, table in ((80, True), (24, False)):
        t = Table(box=None, pad_edge=False)
        for name in ("file", "size", "verdict"):
            t.add_column(name)
        t.add_row("a-rather-long-name.gguf", "1.0 MiB", "fits as a whole")
        Terminal(width).printer.table(t)
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert lines == (
            ["file size verdict", "a-rather-long-name.gguf 1.0 MiB fits as a whole"]
            if table
            else ["file", "a-rather-long-name.gguf", "size 1.0 MiB,", "verdict fits as", "a whole"]
        )


def _printed(
    capsys: pytest.CaptureFixture[str], printer: Printer, spare: Sequence[str] = ()
) -> list[str]:
    """A table with a long name, a number and a sentence."""
    t = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("file", "free memory", "verdict", "note"):
        t.add_column(name, justify="right" if name == "free memory" else "left")
    t.add_row("Qwen3-Coder-30B-A3B_Q4_K_M.gguf", "≤ 1.0 MiB", "fits on one GPU", "none")
    t.add_row("a 中文中文中文中文中文中文.gguf", "12.5 MiB", "no", "\x1b[31m")
    printer.table(t, spare)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_cells_wrap_where_a_table_is_too_wide(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, Terminal(68).printer) == [
        "file                             free memory  verdict      note",
        "Qwen3-Coder-30B-A3B_Q4_K_M.gguf    ≤ 1.0 MiB  fits on one  none",
        "                                              GPU",
        "a 中文中文中文中文中文中文.gguf     12.5 MiB  no           \\x1b[31m",
    ]


def test_a_long_word_is_broken_if_that_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, Terminal(50).printer) == [
        "                          free",
        "file                    memory  verdict  note",
        "Qwen3-Coder-30B-         ≤ 1.0  fits on  none",
        "A3B_Q4_K_M.gguf            MiB  one GPU",
        "a                         12.5  no       \\x1b[31m",
        "中文中文中文中文中文中     MiB",
        "文.gguf",
    ]


def test_columns_that_matter_least_are_left_out_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, Terminal(34).printer, ("prompts", "note")) == [
        "file          free memory  verdict",
        "Qwen3-Coder-    ≤ 1.0 MiB  fits on",
        "30B-A3B_Q4_                one GPU",
        "K_M.gguf",
        "a                12.5 MiB  no",
        "中文中文中文",
        "中文中文中文",
        ".gguf",
        "         no room for note: a wider",
        "         terminal or --json shows",
        "         them",
    ]


@given(st.text(st.sampled_from("ab-_/.中 ")), st.integers(2, 20))
def test_a_wrapped_cell_fits_and_loses_nothing(text: str, width: int) -> None:
    lines = wrapped_cell(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_table_in_a_pipe_is_as_wide_as_its_content(capsys: pytest.CaptureFixture[str]) -> None:
    t = Table("file", "size", box=None, pad_edge=False)
    t.add_row("x" * 500, "1 MiB")
    Printer().table(t, spare=("size",))
    assert capsys.readouterr().out.splitlines()[1] == f"{'x' * 500}  1 MiB"


@pytest.mark.parametrize("file", ["draft.gguf", "a-draft-model-with-a-rather-long-name.gguf"])
def test_a_progress_bar_of_80_columns_shows_label_and_seconds(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with Terminal(80).printer.progress("probing") as bar:
        bar.step(f"measuring draft-simple {file} K=4: acceptance and the cost of each K", 0.5, 44)
    out = capsys.readouterr().out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    (line,) = {x.strip() for x in re.split(r"[\r\n]", text) if "measuring" in x}
    assert "probing" in line
    assert "━" in line
    assert "measuring draft-simple" in line
    assert line.endswith(", 44 s left")
    assert (f"{file} K=4, 44 s left" in line) == (file == "draft.gguf")


NAMES = ("m[red]x.gguf", "d[/x].gguf", "[/].gguf", ":smile:.gguf", "m[link=x]y.gguf")


@pytest.mark.parametrize("name", NAMES)
def test_markup_in_text_is_printed_unchanged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    printer = Terminal(200).printer
    with printer.busy(f"reading {name}"), printer.progress(f"p {name}") as bar:
        bar.step(name, 0.5, 3)
    printer.say(name)
    table = Table(name, title=name)
    table.add_row(name)
    printer.table(table)
    out = capsys.readouterr().out
    assert out.count(name) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_with_markup_is_printed_unchanged(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "d[bold]"
    model = folder / name
    draft = model.with_name(f"d{model.name}")
    model.parent.mkdir(parents=True)
    model.write_bytes(TARGET.read_bytes())
    draft.write_bytes(DRAFT.read_bytes())
    for args in (
        ("inspect", model),
        ("pick-draft", model, "--vram", "8GiB"),
        ("memory", model, "--draft", draft, "--vram", "8GiB"),
        ("serve", model, "--vram", "8GiB", "--dry-run"),
    ):
        assert run(list(map(str, args))) == 0
        assert model.name in capsys.readouterr().out
    assert run(["inspect", f"{model}x"]) == 2
    assert f"{name}x: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "as_shown"),
    [
        ("plain é 中 α", "plain é 中 α"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\x1b]0;title\x07", "a\\x1b]0;title\\x07"),
        ("a\nserve    yes\r\tb", "a\\nserve    yes\\r\\tb"),
        ("a\x9b31m\x7f\x00", "a\\x9b31m\\x7f\\x00"),
        ("fgg.\u202egnp", "fgg.\\u202egnp"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_control_characters_are_escaped(text: str, as_shown: str) -> None:
    assert shown(text) == as_shown
    assert len(shorten(text * 10_000)) < 5000


def test_names_inside_a_file_cannot_add_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "nice\x1b[2J\nserve    yes\r"
    path = write_gguf(tmp_path / "a\nb\x1b.gguf", fields={"general.name": evil}, arch="x\x1b[31my")
    for args in (("inspect", path), ("inspect", path, "--tensors"), ("serve", path, "--dry-run")):
        run(list(map(str, args)))
        output = "".join(capsys.readouterr())
        assert "\x1b" not in output
        assert "\r" not in output
        assert "a\\nb\\x1b.gguf" in output


def _wait(done: object, what: str) -> None:
    until = time.monotonic() + 30
    while not done():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_serve_continues_after_the_reader_of_its_output_exits(tmp_path: Path) -> None:
    """A crashed server is restarted although stdout is closed."""
    fake = Fake(tmp_path, crash_after=1.0)
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "specllama", "serve", str(TARGET), "--tune", "off"]
    argv += ["--port", "0", "--llama-server", str(fake.path), "--method", "none"]
    with (tmp_path / "err").open("w") as err:
        popen = subprocess.Popen(argv, stdout=writer, stderr=err)
    os.close(writer)
    try:
        _wait(lambda: len(fake.starts) >= 2, "second start")
        assert popen.poll() is None
    finally:
        popen.send_signal(signal.SIGTERM)
        code = popen.wait(20)
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert code == 0


def test_output_of_serve_in_a_windows_code_page(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "specllama", "serve", str(TARGET), "--draft", str(DRAFT)]
    argv += ["--tune", "off", "--port", "0", "--llama-server", "embedded", *ONE_THREAD]
    out, err = tmp_path / "out.txt", tmp_path / "err.txt"
    with out.open("w") as o, err.open("w") as e:
        popen = subprocess.Popen(
            argv, stdout=o, stderr=e, env={**os.environ, "PYTHONIOENCODING": "cp1252"}
        )
    try:
        _wait(lambda: b"\nlog " in out.read_bytes() or popen.poll() is not None, "serving")
        time.sleep(0.3)
        assert popen.poll() is None, err.read_text()
    finally:
        popen.send_signal(signal.SIGTERM)
        code = popen.wait(20)
    assert code == 0
    assert "speculation ON: alpha=" in out.read_bytes().decode("cp1252")
    assert err.read_text() == ""


def test_long_lines_are_wrapped_at_spaces_with_an_indent() -> None:
    from specllama.cli.shown import wrapped

    line = "not used a-long-name.gguf: " + "word " * 20 + "x" * 90
    lines = wrapped(line, 60)
    assert " ".join(" ".join(lines).split()) == line
    assert all(part.startswith(" " * 9) for part in lines[1:])
    assert [part.strip() for part in lines if len(part) > 60] == ["x" * 90]
    assert wrapped("short", 60) == ("short",)


def test_nouns_after_numbers_have_the_right_plural() -> None:
    from specllama.cli.units import plural

    assert [plural(n, "layer") for n in (0, 1, 2, 1024)] == [
        *("0 layers", "1 layer", "2 layers", "1,024 layers")
    ]
