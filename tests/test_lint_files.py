"""Options defined elsewhere in a file: anchors, macros, variables, env files. The servers of fixed
files start."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.cli.app import run
from specllama.errors import UsageError
from specllama.formats import known_builds
from specllama.formats.commands import DOCKERFILE, PLIST, PRESET, SCRIPT, UNIT, YAML, kind_of, read
from specllama.formats.lint import LintContext, fixed, lint_text
from specllama.formats.lint_merge import LintResult
from tests.support import MODELS
from tests.test_lint_corpus import speculates

FILES = {"/etc/llama.env": "# tuned\nLLAMA_ARG_DRAFT_MAX=8\nOPTS='-md /d.gguf --draft-max 4'\n"}
HERE = LintContext(
    lambda b: known_builds.capabilities(b or known_builds.NEWEST), lambda _: None, {}, FILES.get
)


def lint_results(text: str, kind: str) -> list[LintResult]:
    return list(lint_text(text, kind, HERE))


def rules(text: str, kind: str) -> list[str]:
    return [f.rule for linted in lint_results(text, kind) for f in linted.findings]


# ---- YAML


ANCHORS = """x-llama: &llama
  image: ghcr.io/ggml-org/llama.cpp:server
  environment: &env
    LLAMA_ARG_DRAFT_MAX: "8"
  command: &args ["-m", "/t.gguf", "-md", "/d.gguf", "--draft-max", "4"]
services:
  a:
    <<: *llama
  b:
    <<: [*llama]
    environment:
      <<: *env
      LLAMA_ARG_SPEC_TYPE: draft-simple
  c:
    image: ghcr.io/ggml-org/llama.cpp:server
    command: *args
"""


def test_a_shared_anchor_is_fixed_once_for_all_its_users() -> None:
    text = ANCHORS.replace("      LLAMA_ARG_SPEC_TYPE: draft-simple\n", "")
    assert [x.command.where for x in lint_results(text, YAML)] == ["a", "b", "c"]
    done = fixed(text, YAML, HERE)
    new = text.replace("LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_SPEC_DRAFT_N_MAX")
    new = new.replace('"/d.gguf"', '"/d.gguf", "--spec-type", "draft-simple"')
    assert done == new.replace("--draft-max", "--spec-draft-n-max")
    assert rules(done, YAML) == []


def test_a_fix_for_only_one_user_of_an_anchor_is_reported_but_not_made() -> None:
    a, b, c = lint_results(ANCHORS, YAML)
    assert "no-spec-type" not in [f.rule for f in b.findings]
    (only,) = (f for f in a.findings if f.rule == "no-spec-type")
    assert "not changed by --fix" in only.fix
    assert [f.rule for f in c.findings] == ["removed-flag", "no-spec-type"]
    assert "--spec-type" not in fixed(ANCHORS, YAML, HERE)


def test_an_anchor_that_merges_itself_terminates() -> None:
    assert rules("services:\n  a: &a\n    <<: *a\n    cmd: llama-server --mlock\n", YAML) == [
        "removed-flag"
    ]


_IN_LISTS = """spec:
  containers:
  - name: literal
    command: ["sh", "-c"]
    args:
    - |
      set -e
      # the server
      exec llama-server -m /t.gguf -md /d.gguf \\
        --draft-max 16 --port 8080
  - name: folded
    command:
    - /bin/bash
    - -lc
    - >-
      llama-server -m /t.gguf -md /d.gguf
      --draft-max 16
  - name: plain
    command: [sh, -ec]
    args:
    - llama-server -m /t.gguf -md /d.gguf --draft-max 16
  - name: escapes
    command: ["sh", "-c", "llama-server -m \\"/t.gguf\\" -md /d.gguf --draft-max 16"]
  - name: branch
    command:
    - sh
    - -c
    - |-
      if true; then
        llama-server -m /t.gguf -md /d.gguf --draft-max 16
      fi
"""
_IN_LINES = """services:
  one:
    entrypoint: sh -c "llama-server -m /t.gguf -md /d.gguf --draft-max 16"
  block:
    command: |
      sh -c "
        llama-server -m /t.gguf -md /d.gguf \\
          --draft-max 16
      "
"""


@pytest.mark.parametrize("text", [_IN_LISTS, _IN_LINES], ids=["lists", "lines"])
def test_a_script_in_yaml_is_checked_and_fixed_in_place(text: str) -> None:
    found = lint_results(text, YAML)
    names = re.findall(r"(?:name: |^  )(\w+):?$", text, re.M)
    assert [r.command.where for r in found] == [n for n in names if n != "containers"]
    assert all([f.rule for f in r.findings] == ["removed-flag", "no-spec-type"] for r in found)
    assert [text.splitlines()[r.command.line - 1].count("llama-server") for r in found] == (
        [1] * len(found)
    )
    correct = text.replace("-md /d.gguf", "-md /d.gguf --spec-type draft-simple")
    assert fixed(text, YAML, HERE) == correct.replace("--draft-max", "--spec-draft-n-max")


def test_a_folded_script_in_quotes_becomes_one_line() -> None:
    """The shell sees one line, the file has two: the scalar is written again, up to its end."""
    text = """services:
  a:
    command: >
      sh -c "llama-server -m /t.gguf
      -md /d.gguf --draft-max 16"
  b:
    image: other
"""
    after = yaml.safe_load(fixed(text, YAML, HERE))["services"]
    words = "llama-server -m /t.gguf -md /d.gguf --spec-type draft-simple --spec-draft-n-max 16"
    assert after == {"a": {"command": f'sh -c "{words}"\n'}, "b": {"image": "other"}}


def test_a_script_in_brackets_is_quoted_again() -> None:
    """A comma would end it."""
    text = "a:\n  command: [sh, -c, llama-server -m /t.gguf --spec-type ngram]\n"
    after = 'a:\n  command: [sh, -c, "llama-server -m /t.gguf --spec-type ngram-simple"]\n'
    assert fixed(text, YAML, HERE) == after


def test_a_command_in_escaped_quotes_is_reported_but_not_fixed() -> None:
    text = 's:\n  command: sh -c "llama-server -m \\"/a t.gguf\\" --draft-max 16"\n'
    (found,) = lint_results(text, YAML)
    (finding,) = found.findings
    assert finding.rule == "removed-flag"
    assert "the quotes inside the quoted command are escaped" in finding.fix
    assert found.command.line == 2
    assert fixed(text, YAML, HERE) == text


@pytest.mark.parametrize(
    "before", ['"powershell", "-Command"', '"cmd", "/c"', '"env", "-S"', '"bash", "-c", "--"']
)
def test_a_server_in_an_item_of_a_list_is_found_after_any_program(before: str) -> None:
    (found,) = lint_results(f'command: [{before}, "llama-server -m t --draft-max 4"]\n', YAML)
    assert [f.words for f in found.findings] == ["--draft-max 4"]


def test_an_anchored_script_is_read_once() -> None:
    items = "".join(f"  - llama-server -m t{i} --draft-max 4\n" for i in range(20))
    uses = "".join(f"s{i}:\n  command: *s\n" for i in range(20))
    assert len(lint_results(f"x: &s\n{items}{uses}", YAML)) == 19  # the first item is the program


def test_env_files_are_read_or_listed_as_not_checked() -> None:
    text = "services:\n  a:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    env_file: {file}\n    command: -m x\n"
    (known,) = lint_results(text.format(file="/etc/llama.env"), YAML)
    assert [f.fix for f in known.findings] == ["LLAMA_ARG_SPEC_DRAFT_N_MAX=8 in /etc/llama.env"]
    (missing,) = lint_results(text.format(file="[{path: ./other.env}]"), YAML)
    assert (missing.findings, missing.unseen) == ((), ("env_file ./other.env",))


def test_env_files_of_docker_run_are_listed_as_not_checked() -> None:
    text = "docker run --env-file my.env ghcr.io/ggml-org/llama.cpp:server -m t\n"
    (linted,) = lint_results(text, SCRIPT)
    assert linted.unseen == ("--env-file my.env",)


def test_llama_swap_macros_are_expanded_and_fixed() -> None:
    text = """macros:
  server: /opt/llama-server --port ${PORT}
  draft: "-md /d.gguf --draft-max 4"
  "both-of": ${server} ${draft} --metrics
models:
  a:
    cmd: ${both-of} -m /t.gguf
  b:
    macros:
      draft: --spec-type draft-simple -md /other.gguf
    cmd: |
      # the one with its own draft
      ${server} -m /m/${MODEL_ID}.gguf
      ${draft}
"""
    a, b = lint_results(text, YAML)
    assert [f.rule for f in a.findings] == ["removed-flag", "no-spec-type"]
    assert b.findings == ()
    assert [w.text for w in b.command.words][2:4] == ["-m", "/m/b.gguf"]
    done = fixed(text, YAML, HERE)
    new = '"-md /d.gguf --spec-type draft-simple --spec-draft-n-max 4"'
    assert done == text.replace('"-md /d.gguf --draft-max 4"', new)


def test_a_macro_with_escapes_is_reported_but_not_fixed() -> None:
    text = 'macros:\n  d: "-md \\"/d.gguf\\" --draft-max 4"\nmodels:\n  a:\n    cmd: llama-server ${d}\n'
    (linted,) = lint_results(text, YAML)
    assert "macro d is not spelled out in this file" in linted.findings[0].fix
    assert yaml.safe_load(fixed(text, YAML, HERE))["macros"] == yaml.safe_load(text)["macros"]


def test_commands_of_llama_swap_and_compose_are_parsed_without_a_shell() -> None:
    text = (
        "models:\n  a:\n    cmd: llama-server -m t --spec-type ngram-mod|ngram-simple --metrics\n"
    )
    assert rules(text, YAML) == ["list-of-types"]
    assert fixed(text, YAML, HERE) == text.replace("|", ",")
    text = "services:\n  a:\n    entrypoint: [sh, -c]\n    command: |\n      cd /x\n      llama-server -m t --mlock\n"
    assert rules(text, YAML) == ["removed-flag"]


# ---- systemd


def test_env_and_environment_files_of_a_unit_are_checked() -> None:
    text = """[Service]
EnvironmentFile=-/etc/llama.env
EnvironmentFile=/etc/away.env
ExecStart=/usr/bin/env LLAMA_ARG_DRAFT_MIN=1 /opt/llama-server -m /t.gguf \\
  # a comment between
  ; another
  --mlock
"""
    (linted,) = lint_results(text, UNIT)
    assert [(f.rule, f.words) for f in linted.findings] == [
        ("removed-flag", "--mlock"),
        ("fatal-variable", "LLAMA_ARG_DRAFT_MAX=8"),
        ("fatal-variable", "LLAMA_ARG_DRAFT_MIN=1"),
    ]
    assert linted.unseen == ("EnvironmentFile=/etc/away.env",)
    done = fixed(text, UNIT, HERE)
    assert done == text.replace("DRAFT_MIN", "SPEC_DRAFT_N_MIN").replace(
        "--mlock", "-lm mmap+mlock"
    )


def test_variables_of_a_unit_are_expanded() -> None:
    text = """[Service]
Environment="OPTS=-md /d.gguf --draft-max 4" 'MODEL=/my model.gguf'
ExecStart=
ExecStart=/opt/llama-server -m ${MODEL} $OPTS
"""
    assert rules(text, UNIT) == ["removed-flag", "no-spec-type"]
    new = "-md /d.gguf --spec-type draft-simple --spec-draft-n-max 4"
    assert fixed(text, UNIT, HERE) == text.replace("-md /d.gguf --draft-max 4", new)
    away = text.replace("Environment=", "#").replace(
        "ExecStart=\n", "EnvironmentFile=/etc/llama.env\n"
    )
    (linted,) = lint_results(away, UNIT)
    assert [f.rule for f in linted.findings][:1] == ["removed-flag"]
    assert "OPTS of /etc/llama.env is not spelled out" in linted.findings[0].fix


_SCRIPT = "llama-server -m /t.gguf -md /d.gguf --draft-max 16"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (UNIT, f"[Service]\nExecStart=/bin/sh -c 'exec {_SCRIPT}'\n"),
        (DOCKERFILE, f'FROM x\nENTRYPOINT ["sh", "-c", "exec {_SCRIPT}"]\n'),
        (DOCKERFILE, f'FROM ghcr.io/ggml-org/llama.cpp:server\nENTRYPOINT ["sh", "-c", "{_SCRIPT}"]\n'),
        (DOCKERFILE, f'FROM x\nENTRYPOINT exec sh -c "{_SCRIPT}"\n'),
    ],
)  # fmt: skip
def test_a_script_in_quotes_is_checked_and_fixed(kind: str, text: str) -> None:
    assert rules(text, kind) == ["removed-flag", "no-spec-type"]
    new = _SCRIPT.replace("--draft-max", "--spec-type draft-simple --spec-draft-n-max")
    assert fixed(text, kind, HERE) == text.replace(_SCRIPT, new)


def test_units_are_parsed_without_a_shell() -> None:
    text = "[Service]\nExecStart=/opt/llama-server -m /t.gguf --spec-type ngram-mod|ngram-simple\n"
    assert rules(text, UNIT) == ["list-of-types"]


# ---- launchd


def agent(*words: str, **variables: str) -> str:
    job = {"Label": "x", "ProgramArguments": list(words), "EnvironmentVariables": variables}
    return plistlib.dumps(job, sort_keys=False).decode()


def test_a_property_list_is_fixed() -> None:
    text = agent(
        "/opt/llama-server",
        "-m",
        "/a & b.gguf",
        "-md",
        "/d",
        "--draft-max",
        "4",
        "-fa",
        LLAMA_ARG_DRAFT_MIN="1",
    )
    assert kind_of("x.plist", text) == kind_of("stdin", text) == PLIST
    assert rules(text, PLIST) == ["removed-flag", "bare-flag", "fatal-variable", "no-spec-type"]
    job = plistlib.loads(fixed(text, PLIST, HERE).encode())
    assert job["ProgramArguments"][1:] == [
        *("-m", "/a & b.gguf", "-md", "/d", "--spec-type", "draft-simple"),
        *("--spec-draft-n-max", "4", "-fa", "on"),
    ]
    assert job["EnvironmentVariables"] == {"LLAMA_ARG_SPEC_DRAFT_N_MIN": "1"}


def test_a_script_in_a_property_list_is_checked() -> None:
    assert rules(agent("/bin/sh", "-c", "cd /m; llama-server -m x --mlock"), PLIST) == [
        "removed-flag"
    ]


@pytest.mark.parametrize("text", ["<plist", "<plist><dict><key>a</key></dict></plist>", "bplist00"])
def test_an_invalid_property_list_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid property list"):
        read(text, PLIST)


FRAGMENTS = [["-fa", "on"], ["--mlock"], ["-md", "d"], ["--draft-max", "3"]]
MARKED = [["--alias", "a<b&c"], ["--tags", "x y"], ["--api-prefix", "/é"], ["--metrics"]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*FRAGMENTS, *MARKED]), max_size=6))
def test_a_fixed_property_list_is_valid_and_keeps_correct_options(parts: list[list[str]]) -> None:
    done = fixed(agent("llama-server", *(w for p in parts for w in p)), PLIST, HERE)
    arguments = plistlib.loads(done.encode())["ProgramArguments"]
    marks = [w for p in MARKED for w in p]
    assert [w for w in arguments if w in marks] == [w for p in parts for w in p if w in marks]
    assert fixed(done, PLIST, HERE) == done


# ---- Dockerfiles


def test_arguments_and_variables_of_a_dockerfile_are_expanded() -> None:
    text = """ARG BUILD=b11434
FROM ghcr.io/ggml-org/llama.cpp:server-${BUILD}
ARG K=8
ENV LLAMA_ARG_DRAFT_MAX=$K \\
    # between
    OPTS="-md /d.gguf --draft-max 4"
ENTRYPOINT /app/llama-server -m /t.gguf $OPTS
"""
    (linted,) = lint_results(text, DOCKERFILE)
    assert linted.command.build == 11434
    assert [f.rule for f in linted.findings] == ["removed-flag", "fatal-variable", "no-spec-type"]
    assert linted.findings[1].words == "LLAMA_ARG_DRAFT_MAX=8"
    done = fixed(text, DOCKERFILE, HERE)
    new = text.replace(
        "-md /d.gguf --draft-max 4", "-md /d.gguf --spec-type draft-simple --spec-draft-n-max 4"
    )
    assert done == new.replace("LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_SPEC_DRAFT_N_MAX")


def test_a_build_argument_is_not_visible_at_run_time() -> None:
    text = "FROM ghcr.io/ggml-org/llama.cpp:server\nARG OPTS=-fa\nENTRYPOINT llama-server $OPTS\n"
    (linted,) = lint_results(text, DOCKERFILE)
    assert linted.unseen == ("$OPTS",)


def test_variables_in_an_exec_form_list_are_not_expanded() -> None:
    text = 'FROM x\nENV O=--metrics\nENTRYPOINT ["llama-server", "-m", "x", "$O"]\n'
    assert rules(text, DOCKERFILE) == ["stray-word"]


# ---- values of variables


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SCRIPT, "export LLAMA_ARG_N_PARALLEL='4'\nllama-server -m t --spec-type ngram-mod\n"),
        (UNIT, '[Service]\nEnvironment="LLAMA_ARG_N_PARALLEL=4"\nExecStart=/x/llama-server --spec-type ngram-mod\n'),
        (YAML, "s:\n  image: ghcr.io/ggml-org/llama.cpp:server\n  environment:\n    LLAMA_ARG_N_PARALLEL: '4'\n  command: --spec-type ngram-mod\n"),
        (YAML, "s:\n  image: ghcr.io/ggml-org/llama.cpp:server\n  environment: [LLAMA_ARG_N_PARALLEL=4]\n  command: --spec-type ngram-mod\n"),
        (YAML, "image: ghcr.io/ggml-org/llama.cpp:server\nargs: [--spec-type, ngram-mod]\nenv:\n- name: LLAMA_ARG_N_PARALLEL\n  value: \"4\"\n"),
        (DOCKERFILE, "FROM ghcr.io/ggml-org/llama.cpp:server\nENV LLAMA_ARG_N_PARALLEL=4\nCMD --spec-type ngram-mod\n"),
        (PLIST, agent("llama-server", "--spec-type", "ngram-mod", LLAMA_ARG_N_PARALLEL="4")),
    ],
)  # fmt: skip
def test_the_value_of_a_variable_is_fixed_in_place(kind: str, text: str) -> None:
    assert rules(text, kind) == ["parallel"]
    assert fixed(text, kind, HERE) == text.replace("4", "1")


def test_a_value_wrong_for_another_server_is_not_written() -> None:
    text = "export LLAMA_ARG_N_PARALLEL=4\nllama-server -m t --spec-type ngram-mod\nllama-server -m u\n"
    first, second = lint_results(text, SCRIPT)
    note = "(not changed by --fix: LLAMA_ARG_N_PARALLEL is also used in line 3, where the change would be wrong)"
    assert first.findings[0].fix.endswith(note)
    assert second.findings == ()
    assert fixed(text, SCRIPT, HERE) == text


# ---- the servers start


OLD = "-m {m}/target.gguf -md {m}/draft.gguf --draft-max 4 -fa --mlock"
STARTED = [
    (SCRIPT, f"ARGS='{OLD}'\nARGS+=' -np 4'\nllama-server $ARGS\n"),
    (YAML, f"macros:\n  a: {OLD}\nmodels:\n  x:\n    cmd: llama-server ${{a}} -np 4\n"),
    (YAML, f"x-a: &a\n  image: ghcr.io/ggml-org/llama.cpp:server\n  command: {OLD}\nservices:\n  x:\n    <<: *a\n"),
    (UNIT, f'[Service]\nEnvironment="A={OLD}"\nExecStart=/usr/bin/env llama-server $A\n'),
    (DOCKERFILE, f'FROM ghcr.io/ggml-org/llama.cpp:server\nENV A="{OLD}"\nENTRYPOINT llama-server $A\n'),
    (PLIST, agent("llama-server", *OLD.split())),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), STARTED, ids=lambda v: v if v.isalpha() else "")
def test_the_server_of_a_fixed_file_starts_and_drafts(
    kind: str, text: str, native: Path, tmp_path: Path
) -> None:
    done = fixed(text.replace("{m}", str(MODELS)), kind, HERE)
    assert rules(done, kind) == []
    (command,) = read(done, kind)
    line = shlex.join(["llama-server", *(w.text for w in command.words)])
    assert speculates(line, native, tmp_path / "log") is True


def test_environment_files_are_looked_for_beside_the_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "llama.service"
    unit.write_text(
        "[Service]\nEnvironmentFile=llama.env\nExecStart=/opt/llama-server -m /t.gguf\n"
    )
    assert run(["lint", str(unit)]) == 0
    assert (
        "not checked, as their values are unknown: EnvironmentFile=llama.env"
        in capsys.readouterr().out
    )
    (tmp_path / "llama.env").write_text("LLAMA_ARG_DRAFT_MAX=3\n")
    assert run(["lint", str(unit)]) == 1
    assert f"in llama.env{os.linesep}" in capsys.readouterr().out.replace("\n", os.linesep)


# ---- large files


def _calls(text: str, kind: str) -> int:
    """The number of calls made to lint and fix a text."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        fixed(text, kind, HERE)
    finally:
        sys.setprofile(None)
    return count


_SERVER = "llama-server -m t{i} -md d{i} --draft-max 4"
_LARGE = {
    "one long command": ("llama-server -m t", " -md d{i} --draft-max 4", SCRIPT),
    "a script": ("", _SERVER + "\n", SCRIPT),
    "a shared variable": ("A='-md d --draft-max 4'\n", "llama-server -m t{i} $A\n", SCRIPT),
    "a block scalar": ("a:\n  cmd: |\n", "    " + _SERVER + "\n", YAML),
    "a quoted scalar": ('a:\n  cmd: "a\\nb', " \\n" + _SERVER, YAML),
    "compose": (
        "services:\n",
        "  s{i}:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    command: [-m, t, -md, d, --draft-max, '4']\n",
        YAML,
    ),
    "macros": (
        "macros:\n  a: -md d --draft-max 4\nmodels:\n",
        "  m{i}:\n    cmd: llama-server -m t${{a}}\n",
        YAML,
    ),
    "a unit": (
        "[Service]\n",
        "Environment=LLAMA_X{i}=1 LLAMA_ARG_THREADS={i}\n"
        "ExecStart=/bin/llama-server -m t -md d{i} --draft-max 4\n",
        UNIT,
    ),
    "presets": ("[*]\nc = 1\n", "[m{i}]\nmodel = t{i}\nmodel-draft = d\ndraft-max = 4\n", PRESET),
}


@pytest.mark.parametrize("name", _LARGE)
def test_the_number_of_calls_grows_linearly_with_the_text(name: str) -> None:
    head, part, kind = _LARGE[name]
    tail = '"' if name == "a quoted scalar" else ""

    def text(count: int) -> str:
        return head + "".join(part.format(i=i) for i in range(1000, 1000 + count)) + tail

    _calls(text(10), kind)  # fills the caches
    small, middle, large = (_calls(text(n), kind) for n in (10, 30, 50))
    assert large - middle < 1.1 * (middle - small)
