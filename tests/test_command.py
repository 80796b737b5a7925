"""Settings → argv, for every build in the data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine import embedded, embedded_options
from specllama.engine.capabilities import Capabilities, describe, read_capabilities
from specllama.engine.command import (
    LaunchCommand,
    build,
    check_methods,
    size_options,
    unsupported_reason,
)
from specllama.engine.launch_options import LaunchOptions, read_launch_options
from specllama.engine.locate import Engine, locate
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.errors import UsageError
from specllama.workloads import METHODS
from tests import help_render

ENGINE = Engine(("llama-server",), Path("llama-server"), False, "test")
BASE = Settings(Path("m.gguf"), "127.0.0.1", 8080, context=4096)
SPEC = Speculation(
    ("draft-simple",), Path("d.gguf"), n_max=5, n_min=1, p_min=0.5, draft_layers="99"
)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(8, 32))


def argv(
    caps: Capabilities, spec: Speculation | None, user: LaunchOptions | None = None
) -> list[str]:
    command = build(ENGINE, caps, replace(BASE, speculation=spec), user or LaunchOptions())
    return list(command.argv[1:])


COMMON = "-np 1 -c 4096 --host 127.0.0.1 --port 8080 --metrics"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p0.3.9", "-md d.gguf -ngld 99 --draft-max 5 --draft-min 1 --draft-p-min 0.5"),
        ("p0.3.19", "-md d.gguf -ngld 99 --draft-max 5 --draft-min 1 --draft-p-min 0.5"),
        ("p0.3.22", "-md d.gguf -ngld 99 --spec-draft-n-max 5 --spec-draft-n-min 1 --spec-draft-p-min 0.5"),
        ("b9113", "--spec-type draft -md d.gguf -ngld 99 --spec-draft-n-max 5 --spec-draft-n-min 1 --spec-draft-p-min 0.5"),
        ("b9464", "--spec-type draft-simple -md d.gguf -ngld 99 --spec-draft-n-max 5 --spec-draft-n-min 1 --spec-draft-p-min 0.5"),
        ("b11434", "--spec-type draft-simple -md d.gguf -ngld 99 --spec-draft-n-max 5 --spec-draft-n-min 1 --spec-draft-p-min 0.5"),
    ],
)  # fmt: skip
def test_draft_model_options_of_every_build(name: str, expected: str) -> None:
    got = argv(help_render.capabilities(name), SPEC)
    assert " ".join(got).startswith(f"-m m.gguf {expected} -np 1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p0.3.19", "--spec-type ngram-simple --draft-max 32 --spec-ngram-size-n 8 --spec-ngram-size-m 32"),
        ("b9113", "--spec-type ngram-simple --spec-ngram-simple-size-n 8 --spec-ngram-simple-size-m 32"),
        ("b11434", "--spec-type ngram-simple --spec-ngram-simple-size-n 8 --spec-ngram-simple-size-m 32"),
    ],
)  # fmt: skip
def test_ngram_size_options_of_every_build(name: str, expected: str) -> None:
    got = argv(help_render.capabilities(name), NGRAM)
    assert " ".join(got).startswith(f"-m m.gguf {expected} -np 1")


def test_a_shorter_ngram_does_not_shorten_the_draft_of_a_build_with_one_limit() -> None:
    """p0.3.19 has --draft-max for both."""
    both = replace(SPEC, methods=("draft-simple", "ngram-simple"), ngram=NgramSizes(8, 3))
    got = argv(help_render.capabilities("p0.3.19"), both)
    assert got[got.index("--draft-max") + 1] == "5"
    longer = replace(both, ngram=NgramSizes(8, 32))
    got = argv(help_render.capabilities("p0.3.19"), longer)
    assert got[got.index("--draft-max") + 1] == "32"


def test_several_methods_are_one_comma_separated_list() -> None:
    spec = replace(SPEC, methods=("draft-mtp", "ngram-mod"), draft=None, ngram=NgramSizes(12, 48))
    got = argv(help_render.capabilities("b11434"), spec)
    assert got.count("--spec-type") == 1
    assert got[got.index("--spec-type") + 1] == "draft-mtp,ngram-mod"
    assert got[got.index("--spec-ngram-mod-n-match") + 1] == "12"


def test_min_hits_only_for_methods_that_use_it() -> None:
    sizes = NgramSizes(8, 32, min_hits=2)
    caps = help_render.capabilities("b11434")
    k4v = argv(caps, Speculation(("ngram-map-k4v",), ngram=sizes))
    assert k4v[k4v.index("--spec-ngram-map-k4v-min-hits") + 1] == "2"
    assert not any("min-hits" in a for a in argv(caps, Speculation(("ngram-map-k",), ngram=sizes)))


def test_the_baseline_has_no_speculation_flags() -> None:
    for name in help_render.MAINLINE:
        got = argv(help_render.capabilities(name), None)
        assert " ".join(got).startswith("-m m.gguf -np 1")
        assert not any("spec" in a or "draft" in a for a in got), name


@pytest.mark.parametrize("name", help_render.MAINLINE)
@pytest.mark.parametrize("method", METHODS)
def test_only_options_that_the_build_lists_are_used(name: str, method: str) -> None:
    caps = help_render.capabilities(name)
    if unsupported_reason(caps, method):
        assert method != "draft-simple"  # every build with speculation has -md
        return
    got = argv(caps, replace(SPEC, methods=(method,), ngram=NgramSizes(8, 32)))
    at = 0
    while at < len(got):
        option = caps.find(got[at])
        assert option is not None, got[at]
        at += 1 + option.arity
    if "--spec-type" in got:
        assert got[got.index("--spec-type") + 1] in caps.spec_types


@pytest.mark.parametrize("method", METHODS)
def test_the_embedded_engine_accepts_all_used_options(method: str) -> None:
    caps = read_capabilities(locate("embedded"))
    spec = replace(SPEC, methods=(method,), ngram=NgramSizes(8, 32))
    xllamacpp = pytest.importorskip("xllamacpp")
    known = embedded_options.supported_options(xllamacpp.CommonParams())
    assert embedded.parse(argv(caps, spec), known)


@pytest.mark.parametrize("name", [*help_render.MAINLINE, "ik_llama"])
def test_only_a_trial_uses_the_trace_log_level(name: str) -> None:
    """In builds where level 4 is "debug", it logs prompts."""
    caps = help_render.capabilities(name)
    for trace in (False, True):
        command = build(ENGINE, caps, replace(BASE, speculation=SPEC, trace=trace), LaunchOptions())
        new = name in ("b9246", "b9464", "b9611", "b10289", "b10878", "b11434")
        assert ("-lv 4" in " ".join(command.argv)) == (trace and new)


def test_a_build_whose_level_4_is_debug_has_no_trace_level() -> None:
    """As b9113 prints them, and b9209, whose help was wrong (llama.cpp issue 23290)."""
    lines = ["-m,    --model FNAME", "-lv,   --verbosity, --log-verbosity N"]
    lines += [" " * 40 + s for s in ("Values:", " - 3: info", " - 4: debug", "(default: 3)")]
    caps = describe("version: 9113 (abc)", "\n".join(lines))
    assert caps.find("-lv") is not None
    assert not caps.traces


def test_unsupported_methods_name_the_required_build() -> None:
    assert "≥ b9180" in unsupported_reason(help_render.capabilities("b9113"), "draft-mtp")
    assert "≥ b9611" in unsupported_reason(help_render.capabilities("b9464"), "draft-eagle3")
    assert "≥ b10173" in unsupported_reason(help_render.capabilities("b9611"), "draft-dspark")
    broken = replace(help_render.capabilities("b10878"), build=10745)
    assert "b10741–b10748" in unsupported_reason(broken, "draft-mtp")


@pytest.mark.parametrize(("hint", "passed"), [("MiB", "3000"), ("MiB0,MiB1,...", "2000,3000,1000")])
def test_one_fit_target_is_that_of_the_fullest_gpu(hint: str, passed: str) -> None:
    """Builds before llama.cpp PR 18679 accept one number for all GPUs."""
    caps = describe("version: 9999 (abc)", f"--fit-target {hint}\n" + " " * 40 + "margin\n")
    settings = replace(BASE, fit_target=(2000, 3000, 1000))
    command = build(ENGINE, caps, settings, LaunchOptions())
    assert command.argv[command.argv.index("--fit-target") + 1] == passed


def test_methods_that_cannot_be_combined() -> None:
    ik = describe("version: 0 (unknown)", help_render.render("ik_llama"))
    assert check_methods(ik, ("ngram-simple", "ngram-mod")) == ""
    new = help_render.capabilities("b11434")
    assert check_methods(new, ["draft-mtp", "ngram-mod"]) == ""
    assert "one draft context" in check_methods(new, ["draft-mtp", "draft-simple"])
    assert "one n-gram type" in check_methods(
        help_render.capabilities("p0.3.22"), ["ngram-simple", "ngram-mod"]
    )


def test_options_of_ik_llama() -> None:
    caps = help_render.capabilities("ik_llama")
    spec = replace(SPEC, methods=("draft-simple", "ngram-simple"), ngram=NgramSizes(8, 32))
    got = argv(caps, spec)
    assert [got[i + 1] for i, a in enumerate(got) if a == "--spec-type"] == [
        "ngram-simple:ngram_size_n=8,ngram_size_m=32",
        "draft:n_max=5,n_min=1,p_min=0.5",
    ]
    assert got[got.index("-md") + 1] == "d.gguf"
    assert not any(a.startswith(("--spec-draft", "--draft")) for a in got)
    assert "no equivalent" in unsupported_reason(caps, "draft-eagle3")
    assert "-ngld" not in got  # this build has no GPU support
    assert "-ctkd" in argv(caps, replace(spec, cache_type="q8_0"))


def test_n_gram_sizes_are_converted_for_ik_llama() -> None:
    caps = help_render.capabilities("ik_llama")
    spec = replace(SPEC, methods=("draft-simple", "ngram-map-k4v"), ngram=NgramSizes(8, 32, 2))
    words = [w for flag in size_options(caps, spec) for w in flag]
    other = replace(spec, ngram=NgramSizes(12, 48))
    got = argv(caps, other, read_launch_options(words, caps))
    assert [got[i + 1] for i, a in enumerate(got) if a == "--spec-type"] == [
        "ngram-map-k4v:ngram_size_n=8,ngram_size_m=32,ngram_min_hits=2",
        "draft:n_max=5,n_min=1,p_min=0.5",
    ]
    assert size_options(caps, SPEC) == []


def test_values_of_ik_llama_options_whose_help_shows_none() -> None:
    """Its help has `-mla, --mla-use` without a hint, though a number follows."""
    caps = help_render.capabilities("ik_llama")
    given = read_launch_options(["-mla", "3", "-rtr", "-dsatk", "-1", "-fa", "on"], caps)
    assert [f.words for f in given.flags] == [
        ("-mla", "3"),
        ("-rtr",),
        ("-dsatk", "-1"),
        ("-fa", "on"),
    ]


@pytest.mark.parametrize(
    ("build", "passed"),
    [("p0.3.16", True), ("p0.3.19", False), ("b11434", False), ("ik_llama", True)],
)
def test_jinja_is_passed_if_off_by_default(build: str, passed: bool) -> None:
    assert ("--jinja" in argv(help_render.capabilities(build), None)) == passed


def test_unified_kv_is_passed_to_builds_that_default_to_four_slots() -> None:
    assert "-kvu" in argv(help_render.capabilities("p0.3.16"), None)
    assert "-kvu" not in argv(help_render.capabilities("b11434"), None)
    command = build(
        ENGINE, help_render.capabilities("p0.3.16"), replace(BASE, parallel=4), LaunchOptions()
    )
    assert "-kvu" not in command.argv


# ---- the user's own arguments -----------------------------------------------

NEW = help_render.capabilities("b11434")


def command_with(*words: str) -> LaunchCommand:
    return build(ENGINE, NEW, replace(BASE, speculation=SPEC), read_launch_options(words, NEW))


def test_a_draft_after_the_dashes_that_nothing_uses_is_reported() -> None:
    stays = "-md d stays: llama-server may load it, but drafts nothing with it"
    for words, found in ((("-md", "d"), (stays,)), (("-md", "d", "--spec-type", "none"), ())):
        assert build(ENGINE, NEW, BASE, read_launch_options(words, NEW)).changes == found
    assert stays not in command_with("-md", "d").changes


def test_the_users_arguments_win_and_changes_are_reported() -> None:
    command = command_with("--ctx-size", "8192", "--spec-draft-n-max", "9", "-fa", "on")
    assert command.argv.count("-c") == 0
    assert command.argv[-6:] == ("--ctx-size", "8192", "--spec-draft-n-max", "9", "-fa", "on")
    assert "-c 4096 → --ctx-size 8192" in command.changes
    assert "--spec-draft-n-max 5 → --spec-draft-n-max 9" in command.changes
    assert len(command.changes) == 2


def test_the_users_spec_type_replaces_ours() -> None:
    command = command_with("--spec-type", "ngram-mod")
    assert [a for a in command.argv if a == "--spec-type"] == ["--spec-type"]


def test_the_last_of_the_users_repeated_options_replaces_ours() -> None:
    command = command_with("-c", "512", "--ctx-size", "8192")
    assert "-c 4096 → --ctx-size 8192" in command.changes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "4"], "--parallel N"),
        (["--parallel", "4"], "--parallel N"),
        (["-m", "x.gguf"], "first argument"),
        (["-hf", "a/b"], "first argument"),
        (["--draft-max", "4"], "removed"),
        (["--spec-draft-nmax", "4"], "--spec-draft-n-max"),
        (["--port=80"], "--port 80"),
        (["-c"], "requires a value"),
        (["stray"], "not a llama-server option"),
    ],
)
def test_invalid_server_arguments_are_errors(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as e:
        read_launch_options(words, NEW)
    assert message in f"{e.value.message} {e.value.hint}"
    assert e.value.exit_code == 2


def test_api_keys_are_moved_from_argv_to_the_environment() -> None:
    command = command_with("--api-key", "s3cret", "-c", "8192")
    assert "s3cret" not in " ".join(command.argv)
    assert "s3cret" not in command.display()
    assert "s3cret" not in repr(command)
    assert command.env["LLAMA_API_KEY"] == "s3cret"


def test_conflicting_environment_variables_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = [
        "LLAMA_ARG_DRAFT_MAX",
        "LLAMA_ARG_HFD_REPO",
        "LLAMA_ARG_MODEL_DRAFT",
        "LLAMA_ARG_N_PARALLEL",
        "LLAMA_ARG_SPEC_TYPE",
    ]
    for name in [*dropped, "LLAMA_ARG_THREADS"]:
        monkeypatch.setenv(name, "1")
    command = build(
        ENGINE, NEW, replace(BASE, speculation=SPEC), read_launch_options((), NEW, os.environ)
    )
    assert [d.split(" (")[0] for d in command.dropped] == dropped
    assert not [n for n in command.env if n.startswith("LLAMA_ARG_")]
    assert command.argv[-2:] == ("--threads", "1")
