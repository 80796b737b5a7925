"""`--help`: the layout of every page, the summaries, the names of values."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from specllama.cli.app import run
from specllama.cli.commands import SUMMARIES, load_command
from specllama.cli.help_pages import choices, metavar, summary

COMMANDS = [*SUMMARIES, "profiles list", "profiles show", "profiles new"]
# Short options, which have the same meaning in all commands.
SHORT = {
    "-c": "--context",
    "-w": "--workload",
    "-o": "--output",
    "-f": "--format",
    "-q": "--quiet",
    "-v": "--verbose",
    "-h": "--help",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
}


def params() -> Iterator[tuple[str, Any]]:
    for words in COMMANDS:
        command = load_command(words.split()[0])
        for word in words.split()[1:]:
            command = command.commands[word]
        yield from ((words, p) for p in command.params)


@pytest.mark.parametrize("words", ["", *COMMANDS])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_fits_the_terminals_width_without_cutting_words(
    words: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run([*words.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= width
    assert f"Usage: specllama {words}".rstrip() in page
    monkeypatch.setenv("COLUMNS", "100")
    run([*words.split(), "--help"])
    assert capsys.readouterr().out.split() == page.split()


def test_the_summaries_match_the_commands_help() -> None:
    assert {name: summary(load_command(name).help) for name in SUMMARIES} == dict(SUMMARIES)


def test_a_commands_help_is_its_docstring() -> None:
    page = load_command("serve").help
    assert page == inspect.cleandoc(load_command("serve").callback.__doc__)


def test_every_option_value_has_a_name_in_help() -> None:
    values = [(words, p) for words, p in params() if not getattr(p, "is_flag", False)]
    assert [f"{words} {p.name}" for words, p in values if not (p.metavar or choices(p))] == []
    assert metavar(next(p for words, p in values if p.name == "tune")) == "{auto|full|off}"
    assert metavar(next(p for words, p in values if p.name == "workload")) == "NAME[,NAME]"


def test_a_short_option_has_one_meaning() -> None:
    for words, p in params():
        for name in (o for o in p.opts if not o.startswith("--") and o.startswith("-")):
            assert SHORT[name] in p.opts, f"{words} {name}"


def test_help_without_a_command_imports_neither_rich_nor_the_commands() -> None:
    code = "from specllama.cli.app import run; run(['--help']); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert not {"rich", "pydantic", "specllama.cli.serve", "specllama.engine"} & imported
