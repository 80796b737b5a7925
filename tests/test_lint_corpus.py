"""Old and wrong command lines of tests/data/lint/commands.toml: their findings, their fixes, and
that a real server starts with the fixed line and drafts."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specllama.config import read_toml
from specllama.formats import known_builds
from specllama.formats.commands import SCRIPT
from specllama.formats.finding import ENDS
from specllama.formats.lint import LintContext, fixed, lint_text
from specllama.gguf import ModelInfo, read_model
from tests.support import MODELS

CASES: list[dict[str, Any]] = read_toml(Path(__file__).parent / "data/lint/commands.toml")["case"]


@cache
def model(name: str) -> ModelInfo | None:
    return read_model(Path(name)) if Path(name).is_file() else None


def here(build: int | None) -> LintContext:
    return LintContext(
        lambda image: known_builds.capabilities(build or image or known_builds.NEWEST), model
    )


def rules(text: str, build: int | None) -> list[str]:
    return [f.rule for linted in lint_text(text, SCRIPT, here(build)) for f in linted.findings]


def with_model_paths(text: str) -> str:
    return text.replace("{models}", str(MODELS))


def case_name(case: dict[str, Any]) -> str:
    line = case["line"].replace("{models}/", "").removeprefix("llama-server ")
    return f"b{case['build']} {line}" if "build" in case else str(line)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_findings_and_fix_of_each_command(case: dict[str, Any]) -> None:
    text, build = with_model_paths(case["line"]), case.get("build")
    assert rules(text, build) == case["rules"]
    fixed_line = fixed(text, SCRIPT, here(build))
    assert fixed_line == with_model_paths(case["fixed"])
    assert rules(fixed_line, build) == case.get("left", [])


def test_there_are_at_least_forty_commands() -> None:
    assert len({c["line"] for c in CASES}) >= 40


STARTS = [c for c in CASES if c.get("drafts") is not None]
HERE_ONLY = [c for c in CASES if "build" not in c and "{models}" in c["line"]]


@pytest.mark.parametrize("case", STARTS, ids=case_name)
def test_a_fixed_command_starts_a_server_that_speculates(
    case: dict[str, Any], native: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert speculates(case["fixed"], native, log) is case["drafts"], log.read_text()[-3000:]


@pytest.mark.parametrize("case", HERE_ONLY, ids=case_name)
def test_a_real_server_behaves_as_the_findings_predict(
    case: dict[str, Any], native: Path, tmp_path: Path
) -> None:
    """A fatal finding makes the server exit (a batch that is too small: at the first request), and
    with a draft reported as without effect the server does not speculate."""
    (linted,) = lint_text(with_model_paths(case["line"]), SCRIPT, here(None))
    ends = [f for f in linted.findings if f.effect == ENDS and not f.words.startswith("-b ")]
    off = [f for f in linted.findings if f.rule in OFF]
    found = speculates(case["line"], native, tmp_path / "log")
    if ends:
        assert found is None
    elif off:
        assert found is False
    else:
        assert found is not None


OFF = ("no-spec-type", "no-draft", "misfit", "none-in-list")


def speculates(line: str, native: Path, log: Path) -> bool | None:
    """`speculative` in /slots of the server that a line starts; None if the server exits."""
    words = shlex.split(with_model_paths(line))
    at = next(i for i, w in enumerate(words) if w.endswith("llama-server"))
    variables = dict(w.split("=", 1) for w in words[:at] if "=" in w)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    own = ["--host", "127.0.0.1", "--port", str(port), "-t", "1"]
    own += [] if "-c" in words else ["-c", "1024"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(native), *(w for w in words[at + 1 :] if w != "&"), *own],
            stdout=out,
            stderr=out,
            env={**os.environ, **variables},
        )
    try:
        slots = response(f"http://127.0.0.1:{port}/slots", server, log)
        return None if slots is None else bool(slots[0]["speculative"])
    finally:
        server.terminate()
        server.wait(20)


def response(url: str, server: subprocess.Popen[bytes], log: Path) -> Any:
    """The response of a server once it is loaded; None if it exits before."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if server.poll() is not None:
            return None
        try:
            with urllib.request.urlopen(url, timeout=5) as r:
                return json.loads(r.read())
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace")[-3000:])
