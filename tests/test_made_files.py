"""Files that `python -m docs.made` makes from the program itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from docs.made import builds, man
from docs.made.__main__ import ROOT, stale
from docs.made.commands import Command, Param, program
from specllama.engine.build_facts import FACTS, MTP_ARCHITECTURES, SPEC_TYPE_SINCE


def test_made_files_are_up_to_date() -> None:
    assert stale() == [], "run `python -m docs.made`"


def test_every_command_is_in_every_made_file() -> None:
    commands = [c for c in program().all() if c.path]
    assert "serve" in {c.path[0] for c in commands}
    manual = (ROOT / "docs/specllama.1").read_text().replace("\\-", "-")
    scripts = [p.read_text() for p in (ROOT / "completions").iterdir()]
    assert len(scripts) == 4
    for c in commands:
        assert c.summary, c.words
        page = (ROOT / "docs/commands" / f"{c.path[0]}.md").read_text()
        assert f"# {c.words}\n" in page
        for option in c.options:
            long = option.names[-1]
            assert f"`{long}`" in page
            assert long in manual
            assert all(long.lstrip("-") in script for script in scripts)


def test_removed_commands_have_no_page() -> None:
    pages = {p.stem for p in (ROOT / "docs/commands").glob("*.md")} - {"README"}
    assert pages == {c.path[0] for c in program().subcommands}


def test_every_option_has_a_help_text() -> None:
    without_help = [
        f"{c.words} {p.name}" for c in program().all() for p in c.params if len(p.help) < 4
    ]
    assert without_help == []


def test_options_with_fixed_values_have_completions() -> None:
    fixed = {"method", "workload", "workloads", "tune", "prefer", "to", "draft_cache", "cache_k"}
    options = [(c, p) for c in program().all() for p in c.options if p.name in fixed]
    assert [f"{c.words} {p.names[-1]}" for c, p in options if not p.values] == []
    assert len(options) > 10


def test_no_made_file_contains_local_paths() -> None:
    home = os.path.expanduser("~")
    made = [*(ROOT / "completions").iterdir(), *(ROOT / "docs/commands").iterdir()]
    for file in [*made, ROOT / "docs/specllama.1", ROOT / "docs/builds.md"]:
        text = file.read_text()
        assert str(ROOT) not in text
        assert home not in text or home == "/"


def test_the_table_of_builds_contains_every_fact() -> None:
    text = builds.page()
    for fact in FACTS.values():
        assert fact.source in text
    for name in (*SPEC_TYPE_SINCE, *MTP_ARCHITECTURES):
        assert f"`{name}`" in text


def test_the_man_page_has_no_groff_warnings() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("there is no groff")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-K", "utf8", "-z", str(ROOT / "docs/specllama.1")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_text_is_escaped_in_the_man_page() -> None:
    odd = Param("x", ("--x",), "A\\B", ".br is 'no' macro")
    text = man.man(Command((), ".SH not", "'also", (odd,)))
    assert "\n\\&.br is 'no' macro" in text
    assert "A\\eB" in text
    assert not re.search(r"^\.SH not|^'also", text, re.M)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_scripts_have_no_syntax_errors(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    files = {"bash": "specllama.bash", "zsh": "_specllama", "fish": "specllama.fish"}
    argv = [name, "-n", str(Path(ROOT) / "completions" / files[name])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_compatibility_rule_is_documented() -> None:
    """The rule in brackets after `not used FILE: …` is explained in the documentation."""
    package = ROOT / "specllama"
    text = (ROOT / "docs/why-is-speculation-off.md").read_text()
    rules = set()
    for file in (package / "drafts/compat.py", package / "drafts/pick.py"):
        rules |= set(
            re.findall(r'(?:_no\(|Compatibility\(\s*False,)\s*"([^"]+)"', file.read_text())
        )
        rules |= set(re.findall(r'Rejection\([^"()]*, "([^"]+)"', file.read_text()))
    rules |= set(
        re.findall(r'_off\([^"()]*, "([^"]+)"', (package / "planning/choose.py").read_text())
    )
    assert {"token text", "hidden size", "duplicate", "no file"} <= rules
    rules -= {"no head"}  # is never shown
    assert {rule for rule in rules if f"`{rule}`" not in text} == set()
