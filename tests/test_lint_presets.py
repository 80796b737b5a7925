"""Findings in presets, and that llama-server's router behaves as they say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.cli.app import run
from specllama.errors import UsageError
from specllama.formats import known_builds
from specllama.formats.commands import PRESET, UNIT, kind_of
from specllama.formats.lint import LintContext, fixed, lint_text
from specllama.formats.preset_file import same_id, sections

HERE = LintContext(
    lambda build: known_builds.capabilities(build or known_builds.NEWEST), lambda _: None
)
Models = dict[str, list[str]]


class Trap(NamedTuple):
    """`before`: the router's models with this text; `after`: with the fixed text. None: it exits."""

    text: str
    rules: list[str]
    fixed: str
    before: Models | None
    after: Models | None


def with_model(*words: str) -> list[str]:
    return [*words, "--model", "/x"]


TRAPS = [
    Trap(
        "[a]\nmodel = /m/a#b.gguf\n", ["cut-value"], "[a]\nmodel = /m/a#b.gguf\n",
        {"a": ["--model", "/m/a"]}, {"a": ["--model", "/m/a"]},
    ),
    Trap(
        "[a]\nmodel = /m/a ;b.gguf\n", ["cut-value"], "[a]\nmodel = /m/a ;b.gguf\n",
        {"a": ["--model", "/m/a"]}, {"a": ["--model", "/m/a"]},
    ),
    Trap(
        "[a]\nmodel = /x\nsamplers = top_k;temperature\n", ["cut-value"],
        "[a]\nmodel = /x\nsampler-seq = kt\n",
        {"a": with_model("--samplers", "top_k")}, {"a": with_model("--sampling-seq", "kt")},
    ),
    Trap(
        "[a]\nmodel = /x ; a comment\nc = 4096# tokens\n", [],
        "[a]\nmodel = /x ; a comment\nc = 4096# tokens\n",
        {"a": ["--ctx-size", "4096", "--model", "/x"]}, {"a": ["--ctx-size", "4096", "--model", "/x"]},
    ),
    Trap(
        "[a]\nmodel = /x\nno-jinja = yes\n", ["odd-switch"], "[a]\nmodel = /x\nno-jinja = true\n",
        {"a": with_model("--jinja")}, {"a": with_model("--no-jinja")},
    ),
    Trap(
        "[a]\nmodel = /x\njinja = no\n", ["odd-switch"], "[a]\nmodel = /x\njinja = false\n",
        {"a": with_model("--jinja")}, {"a": with_model("--no-jinja")},
    ),
    Trap(
        "[a]\nmodel = /x\nno-jinja =\n", ["odd-switch"], "[a]\nmodel = /x\nno-jinja = true\n",
        {"a": with_model("--jinja")}, {"a": with_model("--no-jinja")},
    ),
    Trap(
        "[a]\nmodel = /x\nmetrics = False\n", ["odd-switch"], "[a]\nmodel = /x\nmetrics = false\n",
        {"a": with_model("--metrics")}, {"a": with_model()},
    ),
    Trap(
        "[a]\nmodel = /x\njinja = yes\nmetrics = True\n", [], "[a]\nmodel = /x\njinja = yes\nmetrics = True\n",
        {"a": ["--jinja", "--metrics", "--model", "/x"]}, {"a": ["--jinja", "--metrics", "--model", "/x"]},
    ),
    Trap(
        "[a]\nmodel = /x\n\n[b]\nmodel = /y\n[a]\nc = 3\n", ["repeated-section"],
        "[b]\nmodel = /y\n[a]\nc = 3\nmodel = /x\n",
        {"a": ["--ctx-size", "3"], "b": ["--model", "/y"]},
        {"a": ["--ctx-size", "3", "--model", "/x"], "b": ["--model", "/y"]},
    ),
    Trap(
        "[a]\nmodel = /x\n[a]\nmodel = /y\n", ["repeated-section"], "[a]\nmodel = /x\n[a]\nmodel = /y\n",
        {"a": ["--model", "/y"]}, {"a": ["--model", "/y"]},
    ),
    Trap(
        "[m:q8_0]\nmodel = /x\n[m:Q8_0]\nmodel = /y\n", ["repeated-section"],
        "[m:q8_0]\nmodel = /x\n[m:Q8_0]\nmodel = /y\n",
        {"m:Q8_0": with_model()}, {"m:Q8_0": with_model()},
    ),
    Trap(
        "[a]\nmodel = /x\nhost = 0.0.0.0\nport = 9\napi-key = k\nmodels-max = 3\n", ["dropped-key"] * 4,
        "[a]\nmodel = /x\n", {"a": with_model()}, {"a": with_model()},
    ),
    Trap("\ufeff[a]\nmodel = /x\n", ["byte-order-mark"], "[a]\nmodel = /x\n", None, {"a": with_model()}),
    Trap(
        "[a]\nmodel = /x\nctx-size = 10\nc = 20\nLLAMA_ARG_CTX_SIZE = 30\n", ["repeated-key"] * 2,
        "[a]\nmodel = /x\nctx-size = 10\n",
        {"a": ["--ctx-size", "10", "--model", "/x"]}, {"a": ["--ctx-size", "10", "--model", "/x"]},
    ),
    Trap(
        "[a]\nmodel = /x\nc = 10\nc = 20\n", ["repeated-key"], "[a]\nmodel = /x\nc = 20\n",
        {"a": ["--ctx-size", "20", "--model", "/x"]}, {"a": ["--ctx-size", "20", "--model", "/x"]},
    ),
    Trap("[a]\nmodel = /x\n  metrics = on\n", ["refused-line"], "[a]\nmodel = /x\nmetrics = on\n",
         None, {"a": with_model("--metrics")}),
    Trap("[a]\n--model = /x\n", ["refused-line"], "[a]\nmodel = /x\n", None, {"a": with_model()}),
    Trap("[a]\nmodel /x\nmetrics ; shows\n", ["refused-line"] * 2, "[a]\nmodel = /x\nmetrics = true ; shows\n",
         None, {"a": with_model("--metrics")}),
    Trap(
        "metrics = on\n[a]\nmodel = /x\n", ["no-section"], "[*]\nmetrics = on\n[a]\nmodel = /x\n",
        {"a": with_model(), "default": ["--metrics"]}, {"a": with_model("--metrics")},
    ),
    Trap("[ a ]\nmodel = /x\n", ["blank-in-name"], "[a]\nmodel = /x\n", {"a ": with_model()}, {"a": with_model()}),
    Trap(
        "[a]\nmodel = /x\ncontrol-vector-layer-range = 1 2\n", ["two-values"], "[a]\nmodel = /x\n",
        None, {"a": with_model()},
    ),
    Trap(
        "[a]\nmodel = /x\nno-mmap = true\n", ["removed-flag"], "[a]\nmodel = /x\nlm = none\n",
        None, {"a": with_model("--load-mode", "none")},
    ),
]  # fmt: skip


def rules(text: str) -> list[str]:
    return [f.rule for linted in lint_text(text, PRESET, HERE) for f in linted.findings]


@pytest.mark.parametrize(
    ("name", "router"),
    [("m", "m"), ("o/m:q8_0", "o/m:Q8_0"), ("m:UD-q4_k_m", "m:Q4_K_M"), ("m:a.q4", "m:Q4")],
)
def test_the_routers_id_has_the_last_part_of_the_tag(name: str, router: str) -> None:
    assert same_id(name) == router


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: repr(t.text)[1:-1])
def test_each_trap_is_found_and_fixed(trap: Trap) -> None:
    assert rules(trap.text) == trap.rules
    assert fixed(trap.text, PRESET, HERE) == trap.fixed
    assert rules(trap.fixed) == ([] if trap.fixed != trap.text else trap.rules)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: repr(t.text)[1:-1])
def test_a_router_behaves_as_the_findings_predict(trap: Trap, native: Path, tmp_path: Path) -> None:
    assert router(trap.text, native, tmp_path) == trap.before
    assert router(trap.fixed, native, tmp_path) == trap.after


def router(text: str, native: Path, folder: Path) -> Models | None:
    """Each model's arguments without those that every model gets; None: the router exited."""
    file = folder / "preset.ini"
    file.write_bytes(text.encode())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [
        str(native),
        "--models-preset",
        str(file),
        "--no-models-autoload",
        "--port",
        str(port),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    clean["HF_HOME"] = clean["LLAMA_CACHE"] = str(folder)
    server = subprocess.Popen([*command, "--host", "127.0.0.1"], env=clean, **quiet)  # type: ignore[call-overload]
    try:
        end = time.monotonic() + 30
        while server.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/models", timeout=5) as r:
                    return {
                        m["id"]: own_arguments(m["status"]["args"])
                        for m in json.loads(r.read())["data"]
                    }
            except OSError:
                time.sleep(0.02)
        return None
    finally:
        server.terminate()
        server.wait(20)


def own_arguments(words: list[str]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    shared = ("--host", "--port", "--alias")
    return [
        w for i, (w, _) in enumerate(pairs) if i and w not in shared and words[i - 1] not in shared
    ]


def test_fixing_section_names_loses_no_model() -> None:
    text = "[ a ]\nmodel = /x\n[b] ; x\nhost = x\n[ a ]\nc = 1\n"
    done = fixed(text, PRESET, HERE)
    assert done == "[b] ; x\nhost = x\n[a]\nc = 1\nmodel = /x\n"
    assert fixed(done, PRESET, HERE) == done


def test_joined_sections_keep_the_line_ends_of_the_file() -> None:
    text = "[a]\r\nmodel = /x\r\nc = 3\r\nmetrics = on\r\n[a]\r\nc = 3\r\n"
    assert fixed(text, PRESET, HERE) == "[a]\r\nc = 3\r\nmodel = /x\r\nmetrics = on\r\n"


def test_a_preset_is_detected_by_its_text() -> None:
    assert kind_of("stdin", "[*]\nmetrics = true\n") == PRESET
    assert kind_of("stdin", "[Service]\nExecStart=x\n") == UNIT


def test_a_section_without_a_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="names no model"):
        lint_text("[]\nmodel = /x\n", PRESET, HERE)


def test_a_star_section_at_the_end_applies_to_earlier_sections() -> None:
    assert rules("[a]\nmodel = /x\nmodel-draft = /d\n[*]\nspec-type = draft-simple\n") == []


def test_a_byte_order_mark_is_reported_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "preset.ini"
    file.write_bytes(b"\xef\xbb\xbf[a]\nmodel = /x\n")
    assert run(["lint", "--fix", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == "[a]\nmodel = /x\n"
    assert "byte-order-mark" in err


KEYS = [
    "c",
    "ctx-size",
    "LLAMA_ARG_CTX_SIZE",
    "jinja",
    "no-jinja",
    "model",
    "host",
    "draft-max",
    "md",
]
VALUES = ["1", "yes", "no", "", "True", "/a#b.gguf", "'x'", "8 ; c"]
LINE = st.builds(
    lambda space, key, equals, value: f"{space}{key}{equals}{value}",
    st.sampled_from(["", " ", "--"]),
    st.sampled_from(KEYS),
    st.sampled_from([" = ", "=", " "]),
    st.sampled_from(VALUES),
)
HEADER = st.sampled_from(["[a]", "[b] ; x", "[ a ]", "[*]", "# c", ""])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(LINE, HEADER), max_size=10), st.sampled_from(["\n", "\r\n"]))
def test_fixing_a_preset_is_idempotent_and_keeps_its_models(lines: list[str], end: str) -> None:
    text = end.join(lines) + end
    try:
        names = {s.name.strip() for s in sections(text) if s.options}
        done = fixed(text, PRESET, HERE)
    except UsageError:
        return
    assert {s.name.strip() for s in sections(done)} <= names | {"", "*", "a", "b"}
    assert fixed(done, PRESET, HERE) == done
