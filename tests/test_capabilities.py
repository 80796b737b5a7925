"""Capabilities of a build, read from real and rendered help texts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import capabilities as module
from specllama.engine.capabilities import Tristate, describe, read_capabilities
from specllama.engine.errors import EngineError
from specllama.engine.helptext import parse_options, parse_version
from specllama.engine.locate import locate
from tests import help_render
from tests.support import script


@pytest.mark.parametrize("build", [*help_render.MAINLINE, "ik_llama"])
def test_names_and_hints_of_every_option_of_every_build_are_read(build: str) -> None:
    read = [(o.names, o.hint, o.removed) for o in parse_options(help_render.render(build))]
    expected = help_render.options(build)
    assert len(expected) >= 7
    assert read[: len(expected)] == expected


@pytest.mark.parametrize("build", help_render.MAINLINE)
def test_defaults_are_read(build: str) -> None:
    caps = help_render.capabilities(build)
    defaults = help_render.data()[build]["defaults"]
    assert defaults
    for name, value in defaults.items():
        option = caps.find(name)
        assert option is not None
        assert option.default is not None
        assert float(option.default) == value


@pytest.mark.parametrize(
    ("build", "number", "types"),
    [
        ("p0.3.9", None, ()),
        ("p0.3.19", None, "none ngram-cache ngram-simple ngram-map-k ngram-map-k4v ngram-mod"),
        ("b9113", 9113, "none draft eagle3 ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"),
        ("b9464", 9464, "none draft-simple draft-eagle3 draft-mtp ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"),
        ("b11434", 11434, "none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"),
    ],
)  # fmt: skip
def test_spec_types_and_build(build: str, number: int | None, types: str) -> None:
    caps = help_render.capabilities(build)
    assert caps.build == number
    assert caps.flavour == "mainline"
    assert caps.spec_types == (tuple(types.split()) if types else ())


def test_removed_options_are_listed_but_not_available() -> None:
    caps = help_render.capabilities("b11434")
    assert caps.has("--draft-max") is Tristate.NO
    assert any("--draft-max" in o.names for o in caps.options)
    assert help_render.capabilities("p0.3.16").has("--draft-max") is Tristate.YES


def test_ik_llama_is_recognised() -> None:
    caps = help_render.capabilities("ik_llama")
    assert caps.flavour == "ik_llama"
    assert {"draft", "mtp", "suffix"} <= set(caps.spec_types)
    assert caps.fact("eagle3_drafts") is Tristate.UNKNOWN


@pytest.mark.parametrize(
    ("text", "build", "commit"),
    [
        ("version: 9297 (b0df4c0cf)\nbuilt with cc for x", 9297, "b0df4c0cf"),
        ("version: 0.1.0-dev (build 10444, commit 037f2f344)", 10444, "037f2f344"),
        ("ggml_cuda_init: found 1\nversion: 0.6.0 (build 11434, commit 0c1e57098)", 11434, "0c1e57098"),
    ],
)  # fmt: skip
def test_both_version_formats(text: str, build: int, commit: str) -> None:
    version = parse_version(text)
    assert version is not None
    assert (version.build, version.commit) == (build, commit)


def test_the_options_bound_the_age_of_a_build_without_a_number() -> None:
    caps = describe("version: 1 (0c1e570)", help_render.render("b11434"))
    assert caps.build is None
    assert caps.at_least == 11368  # it lists --spec-draft-sampling
    assert caps.fact("eagle3_drafts") is Tristate.YES
    assert caps.fact("mtp_cannot_start") is Tristate.NO  # b10741 to b10748
    assert caps.mtp_graph("qwen4exp") is Tristate.YES
    older = describe("version: 1 (0c1e570)", help_render.render("b10878"))
    assert older.fact("slots_read_wrong_rows") is Tristate.UNKNOWN  # b10662 or later


def test_a_build_without_git_history_has_no_number() -> None:
    caps = describe("version: 1 (0c1e570)", help_render.render("b9246"))
    assert caps.build is None
    assert caps.fact("eagle3_drafts") is Tristate.UNKNOWN
    assert caps.mtp_graph("mimo2") is Tristate.UNKNOWN


@pytest.mark.parametrize(
    ("fact", "build", "answer"),
    [
        ("eagle3_drafts", "b9464", Tristate.NO),
        ("eagle3_drafts", "b9611", Tristate.YES),
        ("slots_read_wrong_rows", "b10289", Tristate.YES),
        ("slots_read_wrong_rows", "b11434", Tristate.NO),
        ("mtp_cannot_start", "b10878", Tristate.NO),
    ],
)
def test_facts_depend_on_first_and_last_builds(fact: str, build: str, answer: Tristate) -> None:
    assert help_render.capabilities(build).fact(fact) is answer


def test_mtp_support_by_build_and_architecture() -> None:
    old, new = help_render.capabilities("b9464"), help_render.capabilities("b11434")
    assert old.mtp_graph("qwen35") is Tristate.YES
    assert old.mtp_graph("mimo2") is Tristate.NO
    assert new.mtp_graph("mimo2") is Tristate.YES
    assert new.mtp_graph("exaone4") is Tristate.NO  # has the tensors, but llama.cpp has no graph


def test_capabilities_of_a_real_binary(native: Path) -> None:
    caps = read_capabilities(locate(str(native)))
    assert caps.problem == ""
    assert caps.flavour == "mainline"
    for name in ("-m", "-md", "-np", "-c", "--host", "--port", "--metrics", "--spec-type", "-fa"):
        assert caps.has(name) is Tristate.YES, name
    text = subprocess.run([native, "--help"], capture_output=True, text=True, check=True).stdout
    listed = [line for line in text.splitlines() if line.startswith("-") and "-----" not in line]
    assert len(caps.options) == len(listed)
    assert {"draft-simple", "draft-mtp", "ngram-simple"} <= set(caps.spec_types)
    option = caps.find("--spec-draft-n-max")
    assert option is not None
    assert (option.default, option.arity) == ("3", 1)
    assert caps.find("--metrics") is not None
    assert [o.arity for o in caps.options if "-ot" in o.names] == [1]


def test_capabilities_of_the_embedded_engine() -> None:
    caps = read_capabilities(locate("embedded"))
    assert caps.build is not None
    assert caps.build > 11000
    assert {"draft-simple", "draft-mtp", "ngram-mod"} <= set(caps.spec_types)


def test_capabilities_are_cached_until_the_file_changes(tmp_path: Path) -> None:
    count = tmp_path / "count"
    body = f"""
import sys
open({str(count)!r}, "a").write("x")
if "--version" in sys.argv: print("version: 9297 (abc)", file=sys.stderr)
else: print({help_render.render("b9246")!r})
"""
    engine = locate(str(script(tmp_path / "llama-server", body)))
    first = read_capabilities(engine)
    assert read_capabilities(engine) == first
    assert count.read_text() == "xx"
    script(tmp_path / "llama-server", body + "# changed\n")
    read_capabilities(engine)
    assert count.read_text() == "xxxx"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("import time; time.sleep(60)", "--version did not finish within"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "it crashed (SIGSEGV) on --version",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "built for another CPU"),
        ("import sys; sys.exit('bad cpu')", "exited with code 1 (bad cpu)"),
        ("pass", "lists no options"),
    ],
)
def test_an_engine_that_fails_has_unknown_capabilities_not_cached(
    tmp_path: Path, body: str, problem: str
) -> None:
    engine = locate(str(script(tmp_path / "llama-server", body)))
    caps = read_capabilities(engine, timeout=1)
    assert problem in caps.problem
    assert caps.has("-m") is Tristate.UNKNOWN
    assert not module._cache_file(engine).exists()


def test_a_file_that_is_not_a_program_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("not a program")
    path.chmod(0o755)
    with pytest.raises(EngineError, match="could not run"):
        read_capabilities(locate(str(path)))


@given(st.text())
def test_any_text_is_parsed_as_help(text: str) -> None:
    for option in describe(text, text).options:
        assert option.names


@given(st.lists(st.sampled_from([*"-abc ,[]()\n", "--", "  ", "\n--x, ", " " * 40])))
def test_any_text_similar_to_help_is_parsed(parts: list[str]) -> None:
    for option in parse_options("".join(parts)):
        assert all(n.startswith("-") for n in option.names)
