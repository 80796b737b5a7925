"""What lint reads, how it writes a text back, and what it makes of input that is none."""

from __future__ import annotations

import ast
import contextlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specllama.cli.app import run
from specllama.engine.capabilities import describe, read_capabilities
from specllama.engine.locate import locate
from specllama.errors import UsageError
from specllama.formats import flags, known_builds, lint_flags
from specllama.formats.commands import (
    DOCKERFILE,
    PLIST,
    PRESET,
    SCRIPT,
    UNIT,
    WINDOWS,
    YAML,
    kind_of,
    read,
)
from specllama.formats.finding import Finding
from specllama.formats.lint import LintContext, fixed, lint
from specllama.formats.shell_words import split
from specllama.gguf import ModelInfo, inspect
from tests import help_render
from tests.support import MODELS

FILES = Path(__file__).parent / "data/lint"


def model(name: str) -> ModelInfo | None:
    return inspect(Path(name)) if Path(name).is_file() else None


HERE = LintContext(lambda build: known_builds.capabilities(build or known_builds.NEWEST), model)


def rules(text: str, kind: str = SCRIPT, here: LintContext = HERE) -> list[str]:
    return [f.rule for linted in lint(text, kind, here) for f in linted.findings]


def on(build: int) -> LintContext:
    return LintContext(lambda _: known_builds.capabilities(build), model)


# ---- files


@pytest.mark.parametrize(
    "name",
    [
        "run.sh", "run.ps1", "run.bat", "swap.yaml", "compose.yaml", "k8s.yaml", "preset.ini",
        "llama.service", "Dockerfile",
    ],
)  # fmt: skip
def test_a_file_is_put_right_and_the_rest_of_it_stays(name: str) -> None:
    text = (FILES / name).read_bytes().decode()
    kind = kind_of(name, text)
    assert rules(text, kind)
    done = fixed(text, kind, HERE)
    assert done == (FILES / "fixed" / name).read_bytes().decode()
    assert rules(done, kind) == []


def test_kinds_are_told_by_name_and_by_content() -> None:
    assert kind_of("docker-compose.yml", "") == YAML
    assert kind_of("Dockerfile", "") == DOCKERFILE
    assert kind_of("gpu.Dockerfile", "") == DOCKERFILE
    assert kind_of("llama.service", "") == UNIT
    assert kind_of("override.conf", "[Service]\nExecStart=x\n") == UNIT
    assert kind_of("models.ini", "") == PRESET
    assert kind_of("start.cmd", "") == WINDOWS
    assert kind_of("stdin", "models:\n  a: b\n") == YAML
    assert kind_of("stdin", "#!/bin/sh\nmodels:\n") == SCRIPT
    assert kind_of("start", "llama-server -m x") == SCRIPT


def test_fixed_yaml_stays_yaml_with_the_same_keys() -> None:
    for name in ("swap.yaml", "compose.yaml", "k8s.yaml"):
        before = yaml.safe_load((FILES / name).read_text())
        after = yaml.safe_load((FILES / "fixed" / name).read_text())
        assert _keys(before) - {"LLAMA_ARG_DRAFT_MAX"} <= _keys(after)


def _keys(data: object) -> set[str]:
    if isinstance(data, dict):
        return {str(k) for k in data} | {x for v in data.values() for x in _keys(v)}
    return {x for v in data for x in _keys(v)} if isinstance(data, list) else set()


def test_a_command_of_a_quoted_yaml_text_is_written_anew() -> None:
    text = 'a:\n  cmd: "llama-server -m \\"/x y.gguf\\" --draft-model d.gguf"\n'
    done = yaml.safe_load(fixed(text, YAML, HERE))
    assert shlex.split(done["a"]["cmd"]) == [
        *("llama-server", "-m", "/x y.gguf", "-md", "d.gguf", "--spec-type", "draft-simple"),
    ]


def test_json_for_vllm_does_not_end_a_plain_yaml_text() -> None:
    text = "s:\n  image: vllm/vllm-openai:v0.33.0\n  command: --model X --speculative-model Y\n"
    done = yaml.safe_load(fixed(text, YAML, HERE))
    words = shlex.split(done["s"]["command"])
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == "Y"


def test_a_change_after_which_nothing_could_be_read_is_not_made() -> None:
    text = 's:\n  command: ["sh", "-c", "vllm serve X --speculative-model Y"]\n'
    assert fixed(text, YAML, HERE) == text


def test_an_images_tag_names_the_build() -> None:
    text = "docker run ghcr.io/ggml-org/llama.cpp:server-cuda-b8900 -m t -md d --spec-draft-n-max 4"
    assert rules(text) == ["too-new-flag"]
    assert rules(text.replace("-b8900", "")) == ["no-spec-type"]


def test_a_variable_of_a_script_counts_for_every_server_behind_it() -> None:
    text = "export LLAMA_ARG_DRAFT_MAX=3\nllama-server -m x\nllama-server -m y\n"
    for linted in lint(text, SCRIPT, HERE):
        assert [f.rule for f in linted.findings] == ["fatal-variable"]
    assert fixed(text, SCRIPT, HERE) == text.replace("_DRAFT_MAX", "_SPEC_DRAFT_N_MAX")
    assert rules(text.replace("\nllama", "\nunset LLAMA_ARG_DRAFT_MAX\nllama", 1)) == []


def test_variables_of_the_environment_are_said_and_left() -> None:
    here = LintContext(HERE.builds, model, {"LLAMA_ARG_DRAFT_MIN": "1", "PATH": "/bin"})
    (linted,) = lint("llama-server -m x", SCRIPT, here)
    (finding,) = linted.findings
    assert (finding.rule, finding.fix) == ("fatal-variable", "unset LLAMA_ARG_DRAFT_MIN")
    assert fixed("llama-server -m x", SCRIPT, here) == "llama-server -m x"


def test_options_in_a_shell_variable_may_be_anything() -> None:
    """Nothing is surely missing, and nothing surely idle."""
    assert rules("llama-server $ARGS -md d.gguf") == []
    assert rules('llama-server "${ARGS[@]}" --spec-draft-n-max 4') == []
    assert rules("llama-server $ARGS --draft-max 4") == ["removed-flag"]


def test_heredocs_comments_and_redirections_are_no_arguments() -> None:
    text = (
        "cat <<'EOF' > x\nit's --draft-max\nEOF\nllama-server -m x 2>&1 >log # it's --draft-max 4\n"
    )
    (command,) = read(text)
    assert [w.text for w in command.words] == ["-m", "x"]


def test_a_server_is_only_what_is_started() -> None:
    for text in (
        "cmake --build build --target llama-server -j",
        "cp build/bin/llama-server /usr/local/bin",
        "pkill -f llama-server",
        "which llama-server || exit",
        'if [ -x ./llama-server ]; then echo "no llama-server -md here"; fi',
        "LLAMA=./llama-server",
        "curl -L https://x/llama-server -o llama-server",
    ):
        assert [c for c in read(text) if c.words] == [], text
    for text in (
        "sudo nice -n 5 ./llama-server -m x",
        "if true; then exec /opt/llama-server -m x; fi",
        "numactl -N 0 llama-server.exe -m x",
        "X=1 env Y=2 llama-server -m x",
        "llama serve -m x",
        "docker run --rm ghcr.io/ggml-org/llama.cpp:full --server -m x",
    ):
        (command,) = read(text)
        assert [w.text for w in command.words] == ["-m", "x"], text


def test_arrays_and_variables_of_a_script_are_put_in() -> None:
    text = (
        "BIN=./llama-server\nDRAFT=/m/mtp-x.gguf\nARGS=(\n  -m t.gguf  # it's the target\n"
        '  -md "$DRAFT"\n  --draft-max 16\n)\nMORE="--mlock -fa"\n"$BIN" "${ARGS[@]}" $MORE --port 1\n'
    )
    done = fixed(text, SCRIPT, HERE)
    assert '  -md "$DRAFT" --spec-type draft-mtp\n  --spec-draft-n-max 16\n)' in done
    assert 'MORE="-lm mmap+mlock -fa on"' in done
    assert rules(done) == []


def test_an_array_that_holds_itself_ends() -> None:
    assert rules('A=("${A[@]}" -md d)\nllama-server "${A[@]}"\n') == []


def script(text: str) -> tuple[list[str], str]:
    return rules(text), fixed(text, SCRIPT, HERE)


def test_what_a_script_adds_to_a_variable_is_followed() -> None:
    for text in (
        'ARGS="-m t"\nARGS="$ARGS -md d"\nARGS+=" --draft-max 4"\nllama-server $ARGS\n',
        'ARGS=(-m t)\nARGS+=(-md d)\nARGS=("${ARGS[@]}" --draft-max 4)\nllama-server "${ARGS[@]}"\n',
        'set -- -m t\nset -- "$@" -md d --draft-max 4\nllama-server "$@"\n',
        'CMD=(llama-server -m t)\nCMD+=(-md d --draft-max 4)\nexec "${CMD[@]}"\n',
        'A="-md d"\nB="$A --draft-max 4"\nA=\nllama-server -m t $A $B\n',
    ):
        found, done = script(text)
        assert found == ["removed-flag", "no-spec-type"], text
        new = text.replace("--draft-max", "--spec-draft-n-max")
        assert done == new.replace("-md d", "-md d --spec-type draft-simple"), text


def test_the_order_of_a_script_counts() -> None:
    text = (
        "A=--mlock\nllama-server -m t $A\nA=--metrics\nllama-server -m t $A\nA=\nllama-server $A\n"
    )
    first, second, third = lint(text, SCRIPT, HERE)
    assert [f.rule for f in first.findings] == ["removed-flag"]
    assert second.findings == third.findings == ()
    assert third.unseen == ()


def test_each_branch_of_a_script_is_looked_at() -> None:
    text = 'if x; then A=(--spec-type none); else A=(-md d); fi\nllama-server -md d "${A[@]}"\n'
    found, done = script(text)
    assert found == ["no-spec-type"]
    assert done == text.replace("(-md d)", "(-md d --spec-type draft-simple)")


def test_a_flag_that_one_branch_needs_stays() -> None:
    text = """A=(-m t)
[ -n "$DRAFT" ] && A+=(-md "$DRAFT" --spec-type draft-simple)
case "$1" in
  fast) A+=(--spec-draft-n-max 8) ;;
  *) A+=(-np 1) ;;
esac
llama-server "${A[@]}" --spec-draft-p-min 0.5
"""
    assert script(text) == ([], text)


def test_two_types_on_two_branches_are_not_repeated() -> None:
    text = """if gpu; then A="--spec-type draft-simple -md d"; else A="--spec-type ngram-mod"; fi
for m in a b; do llama-server -m "$m" $A --draft-max 4; done
"""
    found, done = script(text)
    assert found == ["removed-flag", "removed-flag"]
    assert done == text  # on one way it is the draft's length, on the other the n-grams'
    said = [f.fix for x in lint(text, SCRIPT, HERE) for f in x.findings]
    assert ["not changed by --fix: it is right on another path" in fix for fix in said] == [
        True,
        True,
    ]


def test_a_variable_of_two_servers_is_put_right_for_both() -> None:
    text = "A='-md d --draft-max 4'\nllama-server -m x $A\nllama-server -m y $A -c 512\n"
    found, done = script(text)
    assert found == ["removed-flag", "no-spec-type"] * 2
    new = "A='-md d --spec-type draft-simple --spec-draft-n-max 4'"
    assert done == text.replace("A='-md d --draft-max 4'", new)


def test_what_would_be_wrong_for_another_server_is_put_in_beside_the_variable() -> None:
    text = "A='-md d'\nllama-server -m x $A\nllama-server -m y $A --spec-type draft-simple\n"
    found, done = script(text)
    assert found == ["no-spec-type"]
    assert done == text.replace("llama-server -m x", "llama-server --spec-type draft-simple -m x")


def test_a_shared_variable_that_cannot_be_put_right_is_named() -> None:
    text = "A='--draft-max 4'\nllama-server -m x -md d --spec-type draft-simple $A\nllama-server -m y $A\n"
    first, second = lint(text, SCRIPT, HERE)
    assert "A is also used in line 3, where the change would be wrong" in first.findings[0].fix
    assert "A is also used in line 2, where the change would be wrong" in second.findings[0].fix
    assert fixed(text, SCRIPT, HERE) == text


def test_words_that_stand_apart_are_left_and_that_is_said() -> None:
    text = "A=(--draft-max)\nA+=(4)\nllama-server -m x -md d --spec-type draft-simple ${A[@]}\n"
    (linted,) = lint(text, SCRIPT, HERE)
    assert "are not next to each other" in linted.findings[0].fix
    assert fixed(text, SCRIPT, HERE) == text


def test_a_path_with_blanks_in_a_variable_is_one_word() -> None:
    text = 'M="/m/my model.gguf"\nllama-server -m "$M" --metrics\n'
    assert script(text) == ([], text)


def test_a_variable_in_quotes_is_one_argument() -> None:
    text = 'ARGS="-m t -md d"\nllama-server "$ARGS"\n'
    assert script(text) == (["quoted-options"], text)
    assert rules("llama-server '-m t'") == ["unknown-flag"]


def test_types_without_quotes_are_a_pipe() -> None:
    text = "llama-server -m t --spec-type ngram-mod|ngram-simple -np 1\nllama-server -m t --spec-type ngram-mod|tee log\n"
    found, done = script(text)
    assert found == ["list-of-types"]
    assert done == text.replace("ngram-mod|ngram", "ngram-mod,ngram")


def test_a_text_that_doubles_itself_ends() -> None:
    assert rules("A=x\n" + 'A="$A$A"\n' * 80 + "llama-server $A --mlock\n") == ["removed-flag"]


def test_a_variable_that_doubles_itself_ends() -> None:
    text = 'A="-c 1"\n' + 'A="$A $A"\n' * 40 + "llama-server $A\n"
    (linted,) = lint(text, SCRIPT, HERE)
    assert linted.unseen == ("$A",)


def test_many_branches_end() -> None:
    text = "A=\n" + 'if x; then A="$A -c 1"; fi\n' * 30 + "llama-server $A --mlock\n"
    assert "removed-flag" in rules(text)


def test_variables_say_what_options_say() -> None:
    text = """s:
  image: ghcr.io/ggml-org/llama.cpp:server
  environment:
    LLAMA_ARG_MODEL: /t.gguf
    LLAMA_ARG_SPEC_DRAFT_MODEL: /d.gguf
    LLAMA_ARG_N_PARALLEL: "4"
    LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K: q4_0
"""
    assert rules(text, YAML) == ["parallel", "quantised-draft-cache", "no-spec-type"]
    assert rules(text.replace("_N_PAR", "_SPEC_TYPE: draft-simple\n    X"), YAML) == [
        "quantised-draft-cache"
    ]


def test_a_length_where_nothing_drafts_goes() -> None:
    (linted,) = lint("llama-server -m t --draft-max 16", SCRIPT, HERE)
    assert [f.fix for f in linted.findings] == ["remove it: nothing drafts here"]
    assert fixed("llama-server -m t --draft-max 16", SCRIPT, HERE) == "llama-server -m t"


def test_a_preset_has_no_quotes_and_no_underscores() -> None:
    text = '[*]\nspec-type = draft-simple\n[a]\nmodel = "/x y.gguf"\nspec_type = ngram-mod\n'
    assert rules(text, PRESET) == ["quoted-value", "underscore-key"]
    done = "[*]\nspec-type = draft-simple\n[a]\nmodel = /x y.gguf\nspec-type = ngram-mod\n"
    assert fixed(text, PRESET, HERE) == done


def test_what_a_preset_sets_for_all_holds_in_each_section() -> None:
    text = (
        "[*]\nspec-type = draft-simple\n[a]\nmodel = t\nmodel-draft = d\nload-on-startup = true\n"
    )
    assert rules(text, PRESET) == []
    assert rules(text.replace("[*]", "[b]"), PRESET) == ["no-draft", "no-spec-type"]


def test_macros_of_llama_swap_hold_a_part_of_the_options() -> None:
    text = """macros:
  base: llama-server --port ${PORT} --spec-type draft-simple
models:
  a:
    cmd: ${base} -m t -md d --draft-max 4
"""
    assert rules(text, YAML) == ["removed-flag"]
    assert fixed(text, YAML, HERE) == text.replace("--draft-max", "--spec-draft-n-max")


# ---- builds


def test_a_line_is_judged_by_its_build() -> None:
    old = "llama-server -m t -md d --draft-max 8 -cd 4096 --mlock -fa"
    assert rules(old, here=on(6000)) == []
    assert rules(old, here=on(9000)) == ["removed-flag", "bare-flag"]
    assert rules(old, here=on(11434)) == [
        *("removed-flag", "removed-flag", "removed-flag", "bare-flag", "no-spec-type"),
    ]


def test_what_a_build_leaves_out_is_not_called_too_new() -> None:
    caps = known_builds.capabilities()
    without = replace(caps, options=tuple(o for o in caps.options if "--rpc" not in o.names))
    here = LintContext(lambda _: without, model)
    assert rules("llama-server -m t --rpc a:1", here=here) == ["unknown-flag"]


def test_what_was_removed_later_is_too_new_before_it_came() -> None:
    line = "llama-server -m t --spec-type ngram-simple --spec-ngram-size-n 8"
    assert rules(line, here=on(6000)) == ["too-new-flag", "too-new-flag"]
    assert rules(line, here=on(8500)) == []
    assert rules(line, here=on(9000)) == ["removed-flag"]


def test_md_alone_does_nothing_from_b9464_on() -> None:
    (at,) = (x.findings[0] for x in lint("llama-server -m t -md d", SCRIPT, on(9464)))
    (before,) = (x.findings[0] for x in lint("llama-server -m t -md d", SCRIPT, on(9463)))
    assert (at.effect, before.effect) == ("does nothing", "worse")
    assert rules("llama-server -m t -md d", here=on(9101)) == []


# Listed by the data, which has every program's options; llama-server does not take them.
OTHERS = {"--cpu-range-batch-draft", "--spec-draft-cpu-range-batch", "--parse-special"}
OTHERS |= {"--no-parse-special"}


@pytest.mark.parametrize("name", ["b9113", "b9246", "b9464", "b9611", "b10289", "b10878", "b11434"])
def test_the_table_agrees_with_the_options_read_from_each_build(name: str) -> None:
    table, read_from = known_builds.capabilities(int(name[1:])), help_render.capabilities(name)
    ours = {n: o for o in table.options if not o.removed for n in o.names}
    theirs = {n: o for o in read_from.options if not o.removed for n in o.names}
    assert {n for n in theirs if "spec" in n or "draft" in n} - set(ours) <= OTHERS
    assert set(ours) - set(theirs) <= {"-mmdev", "--mmproj-device"}
    differ = {n for n in ours if n in theirs and ours[n].arity != theirs[n].arity}
    assert differ <= {"--control-vector-layer-range"}  # two values; the data has one hint
    assert set(read_from.spec_types) - set(table.spec_types) <= {"draft-eagle3"}  # a stub
    assert {o.names for o in table.options if o.removed} == {
        o.names for o in read_from.options if o.removed
    }


def test_mainlines_spelling_becomes_ik_llamas() -> None:
    caps = describe("version: 0 (unknown)", help_render.render("ik_llama"))
    here = LintContext(lambda _: caps, model)
    line = "llama-server -m t -md d --spec-type draft-simple --spec-draft-n-max 4 --draft-p-min 0.5"
    assert set(rules(line, here=here)) == {"other-dialect"}
    done = fixed(line, SCRIPT, here)
    assert done == "llama-server -m t -md d --spec-type draft:n_max=4,n_min=0,p_min=0.5"
    assert rules(done, here=here) == []


def test_every_flag_called_wrong_is_none_of_the_newest_build() -> None:
    caps = known_builds.capabilities()
    assert [n for n in flags.wrong_flags() if caps.find(n)] == []
    assert [t for t in flags.type_aliases() if t in caps.spec_types] == []
    assert set(flags.type_aliases().values()) <= set(caps.spec_types)


def test_every_rule_is_in_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs/lint.md").read_text(encoding="utf-8")
    rules = set()
    for path in Path(lint_flags.__file__).parent.glob("lint*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                found = (c.value for c in ast.walk(node.args[0]) if isinstance(c, ast.Constant))
                rules |= {value for value in found if isinstance(value, str)}
    assert len(rules) > 40
    assert {r for r in rules if f"`{r}`" not in page} == set()


# ---- words


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0\r"), max_size=12)))
def test_quoted_words_are_read_as_shlex_reads_them(words: list[str]) -> None:
    text = "x " + shlex.join(words)
    (command,) = split(text)
    assert [w.text for w in command] == ["x", *words]
    assert all(shlex.split(text[w.start : w.end]) == [w.text] for w in command)


@given(
    st.text(max_size=200), st.sampled_from([SCRIPT, WINDOWS, YAML, PRESET, UNIT, DOCKERFILE, PLIST])
)
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    with contextlib.suppress(UsageError):
        lint(text, kind, HERE)


PIECES = [
    "llama-server", "vllm serve", "-m", "-md", "x.gguf", "--draft-max", "--draft-max=3", "--draft-self",
    "--spec-type", "draft-simple", "ngram-mod,draft-mtp", "none", "-np", "4", "-fa", "-ngld", "5", "-cd",
    "--mlock", "--no-mmap", "-dio", "--speculative-config", "{}", "'[1]'", "'{\"method\": 3}'", "$X", "&&",
    "--spec-draft-n-max", "--spec-replace", "--speculative-model", "--lookup", "|", "\\\n", "#", "-b", "0",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([8000, 9000, 9300, 11434]))
def test_any_mix_of_flags_is_understood_and_fixing_ends(pieces: list[str], build: int) -> None:
    text = "llama-server " + " ".join(pieces)
    try:
        done = fixed(text, SCRIPT, on(build))
    except UsageError:
        return
    assert fixed(done, SCRIPT, on(build)) == done


FLAWED = [
    "--draft-max 3",
    "-md d",
    "--mlock",
    "-fa",
    "--spec-type ngram-mod",
    "--spec-type none",
    "-np 4",
]
MARKED = ["--port {n}", "--alias '{n} x'", "--tags {n}"]


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Variables and arrays, set, added to, in branches; servers that use some of them."""
    lines = ["A=()", "B="]
    for n in range(draw(st.integers(1, 8))):
        words = " ".join(draw(st.lists(st.sampled_from([*FLAWED, *MARKED]), max_size=3)))
        words = words.format(n=n)
        plain = words.replace("'", "").replace(" x", "")
        line = draw(
            st.sampled_from(
                [
                    f"A=({words})", f"A+=({words})", f'A=("${{A[@]}}" {words})', f'B="{plain}"',
                    f'B+=" {plain}"', f'B="$B {plain}"', f'llama-server -m t "${{A[@]}}" {words}',
                    f"llama-server $B {words}", 'llama-server "${A[@]}" $B',
                ]
            )
        )  # fmt: skip
        choices = [
            line,
            f"if x; then {line}; fi",
            f"x && {line}",
            f"for i in 1 2; do\n  {line}\ndone",
        ]
        lines.append(draw(st.sampled_from(choices)))
    return "\n".join(lines) + "\n"


def marks(text: str) -> list[list[list[str]]]:
    """For each server, what its marked options are on each way to it."""
    servers: dict[int, list[list[str]]] = {}
    for c in read(text):
        own = [w.text for w in c.words]
        marked = [own[i + 1] for i, w in enumerate(own) if w in ("--port", "--alias", "--tags")]
        ways = servers.setdefault(c.place[0], [])
        ways += [] if marked in ways else [marked]
    return list(servers.values())


@settings(max_examples=25, deadline=None)
@given(scripts())
def test_no_server_loses_a_word_that_was_right(text: str) -> None:
    assume(all(w.fixed for c in read(text) for w in c.words))  # too many ways to tell apart
    done = fixed(text, SCRIPT, HERE)
    assert marks(done) == marks(text)
    assert fixed(done, SCRIPT, HERE) == done


def test_many_servers_of_one_file_are_all_put_right() -> None:
    line = "LLAMA_ARG_DRAFT_MAX=3 llama-server -m t -md d \\\n --draft-max 4 --mlock -fa -cd 3\n"
    done = fixed(line * 60, SCRIPT, HERE)
    assert done == fixed(line, SCRIPT, HERE) * 60


def test_long_texts_take_no_time_to_speak_of() -> None:
    lists = "".join(f"a{n}: &a{n}\n  <<: [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    assert lint("a0: &a0 {x: 1}\n" + lists, YAML, HERE) == ()
    macros = "".join(f"  m{n}: ${{m{n - 1}}} ${{m{n - 1}}}\n" for n in range(1, 40))
    text = f"macros:\n  m0: x y\n{macros}models:\n  a:\n    cmd: llama-server ${{m39}}\n"
    assert [bool(x.unseen) for x in lint(text, YAML, HERE)] == [True]
    assert lint("a " * 5000 + "A=1 " * 5000, SCRIPT, HERE) == ()


# ---- the command


def test_exit_codes_say_whether_something_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "llama-server -m x --draft-max 4 -md y"]) == 1
    assert run(["lint", "llama-server -m x"]) == 0
    assert run(["lint", "--fix", "llama-server -m x --draft-max 4 -md y"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "llama-server -m x --spec-draft-n-max 4 -md y --spec-type draft-simple"


def test_a_home_of_nobody_is_a_path_like_another(tmp_path: Path) -> None:
    assert run(["lint", "llama-server -m ~nouser/a -md ~nouser/b --spec-type draft-simple"]) == 0
    (tmp_path / "s.service").write_text(
        "[Service]\nEnvironmentFile=~nouser/e\nExecStart=llama-server -m x\n"
    )
    assert run(["lint", str(tmp_path / "s.service")]) == 0


def test_the_command_may_stand_behind_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--", "llama-server", "-m", "x y", "-md", "d"]) == 1
    assert "no-spec-type: -md d" in capsys.readouterr().out


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--json", "--fix", "llama-server -m x -md y --bogus"]) == 1
    data = json.loads(capsys.readouterr().out)
    (command,) = data["commands"]
    assert [(f["rule"], f["fixable"]) for f in command["findings"]] == [
        ("unknown-flag", False),
        ("no-spec-type", True),
    ]
    assert data["fixed"] == "llama-server -m x -md y --spec-type draft-simple --bogus"
    assert data["left"] == 1


def test_a_files_models_are_found_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("target.gguf", "other-vocab.gguf"):
        (tmp_path / name).write_bytes((MODELS / name).read_bytes())
    script = tmp_path / "run.sh"
    script.write_text("llama-server -m target.gguf -md other-vocab.gguf --spec-type draft-simple\n")
    assert run(["lint", str(script)]) == 1
    assert "misfit" in capsys.readouterr().out


def test_a_file_that_is_no_model_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    assert run(["lint", f"llama-server -m {shlex.quote(str(page))}"]) == 1
    assert "refused-file" in capsys.readouterr().out


BAD = [
    (["lint"], "one command or one file"),
    (["lint", "/nowhere/run.sh"], "no such file"),
    (["lint", "no server here"], "no llama-server"),
    (["lint", "llama-server -m 'x"], "unclosed quote"),
    (["lint", "--build", "new", "llama-server -m x"], "--build new"),
    (["lint", "--build", "9000", "--llama-server", "x", "llama-server -m x"], "cannot be combined"),
    (["lint", "--llama-server", "/nowhere", "llama-server -m x"], "does not exist"),
    (["lint", "llama-server -m x", "--", "-md", "y"], "one command or one file"),
]


@pytest.mark.parametrize(("argv", "said"), BAD, ids=lambda v: str(v)[:50])
def test_bad_input_ends_with_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


BAD_FILES = [
    ("a.yaml", b"a: [", "invalid YAML"),
    ("a.yaml", b"a: 1\n b: 2\n", "invalid YAML"),
    ("a.yaml", b"", "no llama-server"),
    ("a.ini", b"[x]\nmodel\n", "neither `key = value` nor [section]"),
    ("Dockerfile", b'CMD ["a", \n', "is not a list of strings"),
    ("a.sh", b"\xff\xfe\x00", "is not UTF-8 text"),
    ("a.sh", b"a\0b", "NUL"),
    ("a.sh", b"x" * (2 << 20), "a.sh: lint reads text files of up to 1 MiB"),
    ("a.service", b"[Service]\nExecStart=llama-server 'x\n", "unclosed quote"),
]


@pytest.mark.parametrize(("name", "raw", "said"), BAD_FILES, ids=lambda v: str(v)[:20])
def test_files_that_cannot_be_read_end_with_2(
    name: str, raw: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    assert run(["lint", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("build", [10068, 10434])
def test_the_table_agrees_with_real_builds(build: int, old_builds: Path) -> None:
    """Where only trees some builds apart were read, the table takes more than the build."""
    caps = read_capabilities(locate(str(old_builds / f"b{build}" / "llama-server")))
    table = known_builds.capabilities(build)
    ours = {n: o for o in table.options if not o.removed for n in o.names}
    theirs = {n: o for o in caps.options if not o.removed for n in o.names}
    assert set(ours) == set(theirs)
    assert {n: o.arity for n, o in ours.items()} == {n: o.arity for n, o in theirs.items()}
    assert set(table.spec_types) == set(caps.spec_types)
    assert {o.names for o in table.options if o.removed} == {
        o.names for o in caps.options if o.removed
    }


def test_variables_of_options_that_are_gone_do_nothing() -> None:
    assert rules("LLAMA_ARG_MLOCK=1 llama-server -m t") == ["renamed-variable"]
    assert rules("LLAMA_ARG_MLOCK=1 llama-server -m t", here=on(10877)) == []


def test_an_engine_says_itself_what_it_takes(
    native: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ["lint", "--llama-server", str(native)]
    assert run([*engine, "llama-server -m x -md y --spec-type draft-simple --mlock"]) == 1
    assert "removed-flag: --mlock" in capsys.readouterr().out
    assert run([*engine, "llama-server -m x --metrics --spec-default"]) == 0


# ---- what other engines have not


def findings(text: str) -> list[Finding]:
    return [f for linted in lint(text, SCRIPT, HERE) for f in linted.findings]


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--speculative-draft y", "--speculative-draft-model"),  # begins several: argparse ends
        ("--speculative-nonsense 3", "--speculative-"),
        ("--speculative_num_step_s=3", "--speculative-num-steps"),
        ("--spec-draft-p-min 0.5", "--speculative-"),
    ],
)
def test_flags_of_speculation_that_sglang_has_not_are_found(flag: str, near: str) -> None:
    (found,) = findings(f"python -m sglang.launch_server --model x {flag}")
    assert found.rule == "unknown-flag"
    assert f"did you mean {near}" in found.fix


@pytest.mark.parametrize(
    "flag",
    [
        "--speculative-algorithm EAGLE3",
        "--speculative-algo EAGLE3",  # argparse takes what begins one option only
        "--speculative_draft_model y",
        "--speculative-draft-model-path=y",
        "--spec-trace-dir z",
    ],
)
def test_flags_of_speculation_that_sglang_has_are_not_found(flag: str) -> None:
    assert findings(f"python -m sglang.launch_server --model x {flag}") == []


def test_a_misspelt_flag_of_sglang_is_put_right() -> None:
    text = "python -m sglang.launch_server --model x --speculative-algoritm EAGLE3"
    assert fixed(text, SCRIPT, HERE).endswith("--speculative-algorithm EAGLE3")


def test_flags_of_speculation_that_vllm_has_not_are_found() -> None:
    (found,) = findings("vllm serve x --speculative-draft-model y --speculative-prompt-lookup 3")[
        1:
    ]
    assert found.rule == "unknown-flag"
    assert "--speculative-config" in found.fix
    config = """vllm serve x --speculative-config.method mtp -sc.num_speculative_tokens 3"""
    assert findings(config) == []


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ('"num_spec_tokens": 3', "did you mean num_speculative_tokens?"),
        ('"zzz": 3', "remove it"),
        (
            '"num_spec_tokens": 3, "zzz": 1',
            "num_spec_tokens: did you mean num_speculative_tokens?; zzz: remove it",
        ),
    ],
)
def test_the_key_that_was_meant_is_said(keys: str, fix: str) -> None:
    (found,) = findings(f"""vllm serve x --speculative-config '{{"method": "eagle3", {keys}}}'""")
    assert found.fix == fix


# ---- commands of Windows, and of others


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (r"C:\models\d.gguf", r"C:\models\d.gguf"),
        (r"C:\\models\\d.gguf", r"C:\models\d.gguf"),
        (r".\d.gguf", r".\d.gguf"),
        (r"--model=D:\d.gguf", r"--model=D:\d.gguf"),
        (r"C:\my\ models\d.gguf", r"C:\my models\d.gguf"),
        (r"my\ models/d.gguf", "my models/d.gguf"),
    ],
)
def test_paths_of_windows_keep_their_backslashes(written: str, read_as: str) -> None:
    assert [w.text for w in split(f"x {written} y")[0]] == ["x", read_as, "y"]


def test_a_path_of_windows_is_said_as_it_is_written() -> None:
    text = r"llama-server -m C:\models\t.gguf -md C:\models\d.gguf"
    said = " ".join(f"{f.words} {f.happens} {f.fix}" for f in findings(text))
    assert r"C:\models\d.gguf" in said
    assert "C:models" not in said


@pytest.mark.parametrize("command", ["llama-cli -m x", "ollama run x"])
def test_a_command_of_another_program_is_none(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lint", command]) == 2
    assert "error: no llama-server, vLLM or SGLang command found\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: &a [*a, *a]\n"),
        ("a.yaml", "macros:\n  ? [x]\n  : llama-server\n"),
        ("compose.yaml", "services:\n  s:\n    environment:\n    - ? [x]\n      : y\n"),
        ("Dockerfile", "FROM \nRUN x\n"),
        ("Dockerfile", "FROM --platform=linux/amd64\n"),
        ("s.service", "[Service]\nEnvironment=LL\\AMA_ARG_DRAFT_MAX=1\nExecStart=/bin/x\n"),
    ],
)
def test_odd_files_end_in_a_line(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert run(["lint", str(file)]) == 2
    assert f"error: {file}: no llama-server, vLLM or SGLang command" in capsys.readouterr().err


def test_what_could_not_be_followed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    file = tmp_path / "run.sh"
    file.write_text('ARGS="$(cat args)"\nARGS="$ARGS -md b"\nllama-server -m "$M" $ARGS\n')
    assert run(["lint", str(file)]) == 0
    assert "not checked, as their values are unknown: $ARGS" in capsys.readouterr().out
