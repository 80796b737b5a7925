"""lint: parsing, fixing and bad input, for every kind of file."""

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
from specllama.formats.lint import LintContext, fixed, lint_text
from specllama.formats.shell_words import split_words
from specllama.gguf import ModelInfo, read_model
from tests import help_render
from tests.edited import edited
from tests.support import MODELS

FILES = Path(__file__).parent / "data/lint"


def model(name: str) -> ModelInfo | None:
    return read_model(Path(name)) if Path(name).is_file() else None


HERE = LintContext(lambda build: known_builds.capabilities(build or known_builds.NEWEST), model)


def rules(text: str, kind: str = SCRIPT, here: LintContext = HERE) -> list[str]:
    return [f.rule for linted in lint_text(text, kind, here) for f in linted.findings]


def for_build(build: int) -> LintContext:
    return LintContext(lambda _: known_builds.capabilities(build), model)


# ---- files


@pytest.mark.parametrize(
    "name",
    [
        "run.sh", "run.ps1", "run.bat", "swap.yaml", "compose.yaml", "k8s.yaml", "preset.ini",
        "llama.service", "Dockerfile",
    ],
)  # fmt: skip
def test_fix_changes_only_the_wrong_parts_of_a_file(name: str) -> None:
    text = (FILES / name).read_bytes().decode()
    kind = kind_of(name, text)
    assert rules(text, kind)
    fixed_text = fixed(text, kind, HERE)
    assert fixed_text == (FILES / "fixed" / name).read_bytes().decode()
    assert rules(fixed_text, kind) == []


def test_file_kinds_are_detected_by_name_and_content() -> None:
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


def test_a_command_in_a_quoted_yaml_string_is_fixed_and_quoted_again() -> None:
    text = 'a:\n  cmd: "llama-server -m \\"/x y.gguf\\" --draft-model d.gguf"\n'
    done = yaml.safe_load(fixed(text, YAML, HERE))
    assert shlex.split(done["a"]["cmd"]) == [
        *("llama-server", "-m", "/x y.gguf", "-md", "d.gguf", "--spec-type", "draft-simple"),
    ]


def test_json_for_vllm_is_quoted_in_a_plain_yaml_scalar() -> None:
    text = "s:\n  image: vllm/vllm-openai:v0.33.0\n  command: --model X --speculative-model Y\n"
    done = yaml.safe_load(fixed(text, YAML, HERE))
    words = shlex.split(done["s"]["command"])
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == "Y"


def test_the_last_items_of_a_flow_list_go_with_their_comma() -> None:
    text = 's:\n  image: ghcr.io/ggml-org/llama.cpp:server\n  command: ["-m", "t", "--draft-max", "16"]\n'
    assert fixed(text, YAML, HERE) == text.replace(', "--draft-max", "16"', "")
    first = text.replace('"-m", "t", "--draft-max", "16"', '"--draft-max", "16", "-m", "t"')
    assert fixed(first, YAML, HERE) == text.replace(', "--draft-max", "16"', "")


def test_json_is_not_written_into_quoted_text() -> None:
    text = 'B="--speculative-model Y --num-speculative-tokens 3"\nvllm serve X $B\n'
    (linted,) = lint_text(text, SCRIPT, HERE)
    assert fixed(text, SCRIPT, HERE) == text
    assert any("quotes cannot be nested in it" in f.fix for f in linted.findings)


def test_fix_makes_no_change_that_could_not_be_parsed_again() -> None:
    text = "s:\n  command: sh -c 'vllm serve X --speculative-model Y'\n"
    assert fixed(text, YAML, HERE) == text


def test_the_build_is_read_from_an_image_tag() -> None:
    text = "docker run ghcr.io/ggml-org/llama.cpp:server-cuda-b8900 -m t -md d --spec-draft-n-max 4"
    assert rules(text) == ["too-new-flag"]
    assert rules(text.replace("-b8900", "")) == ["no-spec-type"]


def test_an_exported_variable_applies_to_all_later_servers() -> None:
    text = "export LLAMA_ARG_DRAFT_MAX=3\nllama-server -m x\nllama-server -m y\n"
    for linted in lint_text(text, SCRIPT, HERE):
        assert [f.rule for f in linted.findings] == ["fatal-variable"]
    assert fixed(text, SCRIPT, HERE) == text.replace("_DRAFT_MAX", "_SPEC_DRAFT_N_MAX")
    assert rules(text.replace("\nllama", "\nunset LLAMA_ARG_DRAFT_MAX\nllama", 1)) == []


def test_environment_variables_are_reported_but_not_fixed() -> None:
    here = LintContext(HERE.builds, model, {"LLAMA_ARG_DRAFT_MIN": "1", "PATH": "/bin"})
    (linted,) = lint_text("llama-server -m x", SCRIPT, here)
    (finding,) = linted.findings
    assert (finding.rule, finding.fix) == ("fatal-variable", "unset LLAMA_ARG_DRAFT_MIN")
    assert fixed("llama-server -m x", SCRIPT, here) == "llama-server -m x"


def test_unknown_shell_variables_suppress_findings_about_missing_options() -> None:
    """An option may be in the variable, so none is called missing or without effect."""
    assert rules("llama-server $ARGS -md d.gguf") == []
    assert rules('llama-server "${ARGS[@]}" --spec-draft-n-max 4') == []
    assert rules("llama-server $ARGS --draft-max 4") == ["removed-flag"]


def test_heredocs_comments_and_redirections_are_not_arguments() -> None:
    text = (
        "cat <<'EOF' > x\nit's --draft-max\nEOF\nllama-server -m x 2>&1 >log # it's --draft-max 4\n"
    )
    (command,) = read(text)
    assert [w.text for w in command.words] == ["-m", "x"]


def test_only_started_servers_are_linted() -> None:
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


def test_arrays_and_variables_of_a_script_are_expanded() -> None:
    text = (
        "BIN=./llama-server\nDRAFT=/m/mtp-x.gguf\nARGS=(\n  -m t.gguf  # it's the target\n"
        '  -md "$DRAFT"\n  --draft-max 16\n)\nMORE="--mlock -fa"\n"$BIN" "${ARGS[@]}" $MORE --port 1\n'
    )
    done = fixed(text, SCRIPT, HERE)
    assert '  -md "$DRAFT" --spec-type draft-mtp\n  --spec-draft-n-max 16\n)' in done
    assert 'MORE="-lm mmap+mlock -fa on"' in done
    assert rules(done) == []


def test_an_array_that_contains_itself_terminates() -> None:
    assert rules('A=("${A[@]}" -md d)\nllama-server "${A[@]}"\n') == []


def rules_and_fixed(text: str) -> tuple[list[str], str]:
    return rules(text), fixed(text, SCRIPT, HERE)


def test_additions_to_a_variable_are_followed() -> None:
    for text in (
        'ARGS="-m t"\nARGS="$ARGS -md d"\nARGS+=" --draft-max 4"\nllama-server $ARGS\n',
        'ARGS=(-m t)\nARGS+=(-md d)\nARGS=("${ARGS[@]}" --draft-max 4)\nllama-server "${ARGS[@]}"\n',
        'set -- -m t\nset -- "$@" -md d --draft-max 4\nllama-server "$@"\n',
        'CMD=(llama-server -m t)\nCMD+=(-md d --draft-max 4)\nexec "${CMD[@]}"\n',
        'A="-md d"\nB="$A --draft-max 4"\nA=\nllama-server -m t $A $B\n',
    ):
        found, done = rules_and_fixed(text)
        assert found == ["removed-flag", "no-spec-type"], text
        new = text.replace("--draft-max", "--spec-draft-n-max")
        assert done == new.replace("-md d", "-md d --spec-type draft-simple"), text


@pytest.mark.parametrize("first", ['B=\nB="$B --mlock"', 'B="--mlock "'])
def test_blanks_around_the_only_word_of_a_variable_do_not_count(first: str) -> None:
    """Once ` --mlock` was called a stray word."""
    text = f"{first}\nllama-server -m t $B\n"
    assert rules_and_fixed(text) == (
        ["removed-flag"],
        text.replace("--mlock", "-lm mmap+mlock"),
    )


def test_each_server_gets_the_value_a_variable_has_at_that_point() -> None:
    text = (
        "A=--mlock\nllama-server -m t $A\nA=--metrics\nllama-server -m t $A\nA=\nllama-server $A\n"
    )
    first, second, third = lint_text(text, SCRIPT, HERE)
    assert [f.rule for f in first.findings] == ["removed-flag"]
    assert second.findings == third.findings == ()
    assert third.unseen == ()


def test_every_branch_of_a_script_is_checked() -> None:
    text = 'if x; then A=(--spec-type none); else A=(-md d); fi\nllama-server -md d "${A[@]}"\n'
    found, done = rules_and_fixed(text)
    assert found == ["no-spec-type"]
    assert done == text.replace("(-md d)", "(-md d --spec-type draft-simple)")


def test_a_flag_needed_by_one_branch_is_not_removed() -> None:
    text = """A=(-m t)
[ -n "$DRAFT" ] && A+=(-md "$DRAFT" --spec-type draft-simple)
case "$1" in
  fast) A+=(--spec-draft-n-max 8) ;;
  *) A+=(-np 1) ;;
esac
llama-server "${A[@]}" --spec-draft-p-min 0.5
"""
    assert rules_and_fixed(text) == ([], text)


def test_a_flag_with_different_fixes_per_branch_is_not_fixed() -> None:
    text = """if gpu; then A="--spec-type draft-simple -md d"; else A="--spec-type ngram-mod"; fi
for m in a b; do llama-server -m "$m" $A --draft-max 4; done
"""
    found, done = rules_and_fixed(text)
    assert found == ["removed-flag", "removed-flag"]
    assert done == text  # the draft's length in one branch, the n-grams' in the other
    fixes = [f.fix for x in lint_text(text, SCRIPT, HERE) for f in x.findings]
    assert ["not changed by --fix: it is right on another path" in fix for fix in fixes] == [
        True,
        True,
    ]


@pytest.mark.parametrize("otherwise", ["", '"--port 1"'])
def test_a_variable_with_other_words_on_another_path_is_not_replaced(otherwise: str) -> None:
    """Once the words of one path replaced $B, so that those of the other path were gone."""
    text = f"B={otherwise}\nif x; then B=--mlock; fi\nllama-server -m t $B\n"
    assert rules_and_fixed(text) == (["removed-flag"], text)
    (linted,) = lint_text(text, SCRIPT, HERE)
    assert "another path through the script has other words there" in linted.findings[0].fix
    nested = text.replace("llama", 'B="$B --metrics"\nllama')
    assert rules_and_fixed(nested) == (["removed-flag"], nested)


def test_a_variable_used_by_two_servers_is_fixed_for_both() -> None:
    text = "A='-md d --draft-max 4'\nllama-server -m x $A\nllama-server -m y $A -c 512\n"
    found, done = rules_and_fixed(text)
    assert found == ["removed-flag", "no-spec-type"] * 2
    new = "A='-md d --spec-type draft-simple --spec-draft-n-max 4'"
    assert done == text.replace("A='-md d --draft-max 4'", new)


def test_an_addition_wrong_for_another_server_goes_beside_the_variable() -> None:
    text = "A='-md d'\nllama-server -m x $A\nllama-server -m y $A --spec-type draft-simple\n"
    found, done = rules_and_fixed(text)
    assert found == ["no-spec-type"]
    assert done == text.replace("llama-server -m x", "llama-server --spec-type draft-simple -m x")


def test_a_shared_variable_that_cannot_be_fixed_is_named() -> None:
    text = "A='--draft-max 4'\nllama-server -m x -md d --spec-type draft-simple $A\nllama-server -m y $A\n"
    first, second = lint_text(text, SCRIPT, HERE)
    assert "A is also used in line 3, where the change would be wrong" in first.findings[0].fix
    assert "A is also used in line 2, where the change would be wrong" in second.findings[0].fix
    assert fixed(text, SCRIPT, HERE) == text


def test_a_flag_apart_from_its_value_is_reported_but_not_fixed() -> None:
    text = "A=(--draft-max)\nA+=(4)\nllama-server -m x -md d --spec-type draft-simple ${A[@]}\n"
    (linted,) = lint_text(text, SCRIPT, HERE)
    assert "are not next to each other" in linted.findings[0].fix
    assert fixed(text, SCRIPT, HERE) == text


def test_a_path_with_blanks_in_a_variable_is_one_word() -> None:
    text = 'M="/m/my model.gguf"\nllama-server -m "$M" --metrics\n'
    assert rules_and_fixed(text) == ([], text)


def test_a_variable_in_quotes_is_one_argument() -> None:
    text = 'ARGS="-m t -md d"\nllama-server "$ARGS"\n'
    assert rules_and_fixed(text) == (["quoted-options"], text)
    assert rules("llama-server '-m t'") == ["unknown-flag"]


def test_the_value_of_an_unknown_variable_is_not_judged() -> None:
    """Its name is not the value: `$Q` does not begin with the name of a quantisation."""
    line = "llama-server -m t -md d --spec-type draft-simple"
    assert rules(f'{line} -ctkd "q$Q"') == []
    assert rules(f"{line} -ctkd q8_0") == ["quantised-draft-cache"]


def test_two_heredocs_of_one_line_end_in_order() -> None:
    text = "cat <<A - <<B\nllama-server --draft-max 1\nA\nllama-server --draft-max 2\nB\nllama-server -m x\n"
    (command,) = read(text)
    assert [w.text for w in command.words] == ["-m", "x"]


def test_an_unquoted_list_of_types_is_told_apart_from_a_pipe() -> None:
    text = "llama-server -m t --spec-type ngram-mod|ngram-simple -np 1\nllama-server -m t --spec-type ngram-mod|tee log\n"
    found, done = rules_and_fixed(text)
    assert found == ["list-of-types"]
    assert done == text.replace("ngram-mod|ngram", "ngram-mod,ngram")


def test_a_word_that_doubles_itself_terminates() -> None:
    assert rules("A=x\n" + 'A="$A$A"\n' * 80 + "llama-server $A --mlock\n") == ["removed-flag"]


def test_options_that_double_themselves_terminate_as_unknown() -> None:
    text = 'A="-c 1"\n' + 'A="$A $A"\n' * 40 + "llama-server $A\n"
    (linted,) = lint_text(text, SCRIPT, HERE)
    assert linted.unseen == ("$A",)


def test_many_branches_terminate() -> None:
    text = "A=\n" + 'if x; then A="$A -c 1"; fi\n' * 30 + "llama-server $A --mlock\n"
    assert "removed-flag" in rules(text)


def test_variables_are_checked_like_options() -> None:
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


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-ngld 16", True),
        ("-ngld 17", False),  # layers
        ("-ngld 5 --spec-draft-n-max 3", False),
        ("-ngl 99 -ngld 5", False),  # both are layers
        ("-ngl auto -ngld 5", True),
    ],
)
def test_a_small_number_of_draft_layers_is_taken_for_a_length(words: str, found: bool) -> None:
    line = f"llama-server -m t -md d --spec-type draft-simple {words}"
    assert rules(line) == ["layers-as-length"] * found


@pytest.mark.parametrize("kind", ["q4_0", "iq4_nl"])
def test_a_quantised_draft_cache_needs_a_draft(kind: str) -> None:
    line = f"llama-server -m t -md d --spec-type draft-simple -ctkd {kind}"
    assert rules(line) == ["quantised-draft-cache"]
    assert rules(f"llama-server -m t --spec-type ngram-mod -ctkd {kind}") == ["idle-flag"]


@pytest.mark.parametrize(("type_", "longest"), [("ngram-simple", 48), ("ngram-mod", 64)])
def test_a_batch_must_hold_the_default_draft_of_ngrams(type_: str, longest: int) -> None:
    """common.h: size_m 48 and n_max 64; llama-server aborts if one token more does not fit."""
    line = f"llama-server -m t -np 1 --spec-type {type_} -b"
    assert rules(f"{line} {longest + 1}") == []
    assert rules(f"{line} {longest}") == ["refused"]


@pytest.mark.parametrize(
    "words", ['-b "$B"', "--mmproj /nowhere/mm.gguf", "--lora /nowhere/x.gguf"]
)
def test_unknown_values_and_files_of_another_machine_are_not_refused(words: str) -> None:
    assert rules(f"llama-server -m t {words}") == []


def test_the_old_name_of_a_draft_model_is_a_draft_method() -> None:
    """b9113 calls it `draft`."""
    assert rules("llama-server -m t -md d --spec-type draft", here=for_build(9113)) == []
    assert rules("llama-server -m t --spec-type draft", here=for_build(9113)) == ["no-draft"]


def test_a_sidecar_of_a_hub_repository_is_found_but_no_draft_model() -> None:
    hub = "llama-server -hf o/m-GGUF --spec-type"
    assert rules(f"{hub} draft-eagle3") == []
    assert rules(f"{hub} draft-simple") == ["no-draft"]


def test_a_draft_length_without_a_method_is_removed() -> None:
    (linted,) = lint_text("llama-server -m t --draft-max 16", SCRIPT, HERE)
    assert [f.fix for f in linted.findings] == ["remove it: nothing drafts here"]
    assert fixed("llama-server -m t --draft-max 16", SCRIPT, HERE) == "llama-server -m t"


def test_the_routers_own_keys_are_not_options_of_a_model() -> None:
    """server-models.cpp reads them from a preset itself."""
    text = "version = 1\n[a]\nmodel = /x\nload-on-startup = true\nstop-timeout = 10\n"
    assert rules(text, PRESET) == []


def test_quotes_and_underscores_in_a_preset_are_fixed() -> None:
    text = '[*]\nspec-type = draft-simple\n[a]\nmodel = "/x y.gguf"\nspec_type = ngram-mod\n'
    assert rules(text, PRESET) == ["quoted-value", "underscore-key"]
    done = "[*]\nspec-type = draft-simple\n[a]\nmodel = /x y.gguf\nspec-type = ngram-mod\n"
    assert fixed(text, PRESET, HERE) == done


def test_values_of_the_star_section_apply_to_every_section() -> None:
    text = (
        "[*]\nspec-type = draft-simple\n[a]\nmodel = t\nmodel-draft = d\nload-on-startup = true\n"
    )
    assert rules(text, PRESET) == []
    assert rules(text.replace("[*]", "[b]"), PRESET) == ["no-draft", "no-spec-type"]


def test_options_in_llama_swap_macros_are_checked_and_fixed() -> None:
    text = """macros:
  base: llama-server --port ${PORT} --spec-type draft-simple
models:
  a:
    cmd: ${base} -m t -md d --draft-max 4
"""
    assert rules(text, YAML) == ["removed-flag"]
    assert fixed(text, YAML, HERE) == text.replace("--draft-max", "--spec-draft-n-max")


# ---- builds


def test_findings_depend_on_the_build() -> None:
    old = "llama-server -m t -md d --draft-max 8 -cd 4096 --mlock -fa"
    assert rules(old, here=for_build(6000)) == []
    assert rules(old, here=for_build(9000)) == ["removed-flag", "bare-flag"]
    assert rules(old, here=for_build(11434)) == [
        *("removed-flag", "removed-flag", "removed-flag", "bare-flag", "no-spec-type"),
    ]


def test_an_option_not_compiled_in_is_unknown_but_not_too_new() -> None:
    caps = known_builds.capabilities()
    without = replace(caps, options=tuple(o for o in caps.options if "--rpc" not in o.names))
    here = LintContext(lambda _: without, model)
    assert rules("llama-server -m t --rpc a:1", here=here) == ["unknown-flag"]


def test_a_later_removed_option_is_too_new_before_its_introduction() -> None:
    line = "llama-server -m t --spec-type ngram-simple --spec-ngram-size-n 8"
    assert rules(line, here=for_build(6000)) == ["too-new-flag", "too-new-flag"]
    assert rules(line, here=for_build(8500)) == []
    assert rules(line, here=for_build(9000)) == ["removed-flag"]


@pytest.mark.parametrize(
    ("build", "bad"), [(10429, False), (10430, True), (10435, True), (10436, False)]
)
def test_a_bad_build_is_reported_from_the_first_to_the_last(build: int, bad: bool) -> None:
    line = "llama-server -m t -md d --spec-type draft-simple"
    assert rules(line, here=for_build(build)) == ["known-bad-build"] * bad


def test_md_alone_does_nothing_from_b9464_on() -> None:
    (at,) = (x.findings[0] for x in lint_text("llama-server -m t -md d", SCRIPT, for_build(9464)))
    (before,) = (
        x.findings[0] for x in lint_text("llama-server -m t -md d", SCRIPT, for_build(9463))
    )
    assert (at.effect, before.effect) == ("does nothing", "worse")
    assert rules("llama-server -m t -md d", here=for_build(9101)) == []


# The data has the options of every program; llama-server does not accept these.
OTHERS = {"--cpu-range-batch-draft", "--spec-draft-cpu-range-batch", "--parse-special"}
OTHERS |= {"--no-parse-special"}


@pytest.mark.parametrize("name", ["b9113", "b9246", "b9464", "b9611", "b10289", "b10878", "b11434"])
def test_the_table_agrees_with_the_options_read_from_each_build(name: str) -> None:
    table, read_from = known_builds.capabilities(int(name[1:])), help_render.capabilities(name)
    in_table = {n: o for o in table.options if not o.removed for n in o.names}
    in_help = {n: o for o in read_from.options if not o.removed for n in o.names}
    assert {n for n in in_help if "spec" in n or "draft" in n} - set(in_table) <= OTHERS
    assert set(in_table) - set(in_help) <= {"-mmdev", "--mmproj-device"}
    differ = {n for n in in_table if n in in_help and in_table[n].arity != in_help[n].arity}
    assert differ <= {"--control-vector-layer-range"}  # two values; the data has one hint
    assert set(read_from.spec_types) - set(table.spec_types) <= {"draft-eagle3"}  # a stub
    assert {o.names for o in table.options if o.removed} == {
        o.names for o in read_from.options if o.removed
    }


def test_llama_cpp_options_are_converted_to_ik_llama() -> None:
    caps = describe("version: 0 (unknown)", help_render.render("ik_llama"))
    here = LintContext(lambda _: caps, model)
    line = "llama-server -m t -md d --spec-type draft-simple --spec-draft-n-max 4 --draft-p-min 0.5"
    assert set(rules(line, here=here)) == {"other-dialect"}
    done = fixed(line, SCRIPT, here)
    assert done == "llama-server -m t -md d --spec-type draft:n_max=4,n_min=0,p_min=0.5"
    assert rules(done, here=here) == []


def test_flags_called_wrong_do_not_exist_in_the_newest_build() -> None:
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
    (command,) = split_words(text)
    assert [w.text for w in command] == ["x", *words]
    assert all(shlex.split(text[w.start : w.end]) == [w.text] for w in command)


def test_a_backslash_in_double_quotes_escapes_a_quote_and_a_dollar() -> None:
    (command,) = split_words(r'''x "a\"b c" "\$5" "$5"''')
    assert [(w.text, w.fixed) for w in command] == [
        ("x", True),
        ('a"b c', True),
        ("$5", True),
        ("$5", False),
    ]


def test_a_substitution_ends_at_its_own_bracket() -> None:
    (command,) = split_words("x a$(b (c) d)e f")
    assert [(w.text, w.fixed) for w in command] == [
        ("x", True),
        ("a$(b (c) d)e", False),
        ("f", True),
    ]


@given(
    st.text(max_size=200), st.sampled_from([SCRIPT, WINDOWS, YAML, PRESET, UNIT, DOCKERFILE, PLIST])
)
def test_any_text_is_linted_or_a_usage_error(text: str, kind: str) -> None:
    with contextlib.suppress(UsageError):
        lint_text(text, kind, HERE)


PIECES = [
    "llama-server", "vllm serve", "-m", "-md", "x.gguf", "--draft-max", "--draft-max=3", "--draft-self",
    "--spec-type", "draft-simple", "ngram-mod,draft-mtp", "none", "-np", "4", "-fa", "-ngld", "5", "-cd",
    "--mlock", "--no-mmap", "-dio", "--speculative-config", "{}", "'[1]'", "'{\"method\": 3}'", "$X", "&&",
    "--spec-draft-n-max", "--spec-replace", "--speculative-model", "--lookup", "|", "\\\n", "#", "-b", "0",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([8000, 9000, 9300, 11434]))
def test_fixing_any_mix_of_flags_is_idempotent(pieces: list[str], build: int) -> None:
    text = "llama-server " + " ".join(pieces)
    try:
        done = fixed(text, SCRIPT, for_build(build))
    except UsageError:
        return
    assert fixed(done, SCRIPT, for_build(build)) == done


WRONG = [
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
    """Scripts that set and extend variables and arrays, in branches, and servers that use them."""
    lines = ["A=()", "B="]
    for n in range(draw(st.integers(1, 8))):
        words = " ".join(draw(st.lists(st.sampled_from([*WRONG, *MARKED]), max_size=3)))
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


def marked_options(text: str) -> list[list[list[str]]]:
    """The marked options of each server, for each path through the branches."""
    servers: dict[int, list[list[str]]] = {}
    for c in read(text):
        own = [w.text for w in c.words]
        marked = [own[i + 1] for i, w in enumerate(own) if w in ("--port", "--alias", "--tags")]
        paths = servers.setdefault(c.place[0], [])
        paths += [] if marked in paths else [marked]
    return list(servers.values())


@settings(max_examples=25, deadline=None)
@given(scripts())
def test_fix_keeps_every_correct_option(text: str) -> None:
    assume(all(w.fixed for c in read(text) for w in c.words))  # too many paths to distinguish
    done = fixed(text, SCRIPT, HERE)
    assert marked_options(done) == marked_options(text)
    assert fixed(done, SCRIPT, HERE) == done


def test_many_servers_in_one_file_are_all_fixed() -> None:
    line = "LLAMA_ARG_DRAFT_MAX=3 llama-server -m t -md d \\\n --draft-max 4 --mlock -fa -cd 3\n"
    done = fixed(line * 60, SCRIPT, HERE)
    assert done == fixed(line, SCRIPT, HERE) * 60


def test_deeply_nested_texts_terminate() -> None:
    lists = "".join(f"a{n}: &a{n}\n  <<: [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    assert lint_text("a0: &a0 {x: 1}\n" + lists, YAML, HERE) == ()
    macros = "".join(f"  m{n}: ${{m{n - 1}}} ${{m{n - 1}}}\n" for n in range(1, 40))
    text = f"macros:\n  m0: x y\n{macros}models:\n  a:\n    cmd: llama-server ${{m39}}\n"
    assert [bool(x.unseen) for x in lint_text(text, YAML, HERE)] == [True]
    assert lint_text("a " * 5000 + "A=1 " * 5000, SCRIPT, HERE) == ()


# ---- the command


def test_exit_code_is_1_while_findings_remain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "llama-server -m x --draft-max 4 -md y"]) == 1
    assert run(["lint", "llama-server -m x"]) == 0
    assert run(["lint", "--fix", "llama-server -m x --draft-max 4 -md y"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "llama-server -m x --spec-draft-n-max 4 -md y --spec-type draft-simple"


def test_the_home_of_an_unknown_user_is_an_ordinary_path(tmp_path: Path) -> None:
    assert run(["lint", "llama-server -m ~nouser/a -md ~nouser/b --spec-type draft-simple"]) == 0
    (tmp_path / "s.service").write_text(
        "[Service]\nEnvironmentFile=~nouser/e\nExecStart=llama-server -m x\n"
    )
    assert run(["lint", str(tmp_path / "s.service")]) == 0


@pytest.mark.parametrize("kind", [SCRIPT, WINDOWS, UNIT, YAML])
@pytest.mark.parametrize("quoted", [False, True])
def test_the_embedded_engine_is_a_llama_server(kind: str, quoted: bool) -> None:
    """As `specllama plan` writes it."""
    line = "/v/bin/python -m specllama.engine.embedded -m x -md y"
    line = f"/bin/sh -c '{line}'" if quoted else line
    text = {UNIT: f"[Service]\nExecStart={line}\n", YAML: f'models:\n  m:\n    cmd: "{line}"\n'}
    assert rules(text.get(kind, line), kind) == ["no-spec-type"]


def test_the_command_may_follow_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--", "llama-server", "-m", "x y", "-md", "d"]) == 1
    assert "no-spec-type: -md d" in capsys.readouterr().out


def test_json_lists_findings_and_the_fixed_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--json", "--fix", "llama-server -m x -md y --bogus"]) == 1
    data = json.loads(capsys.readouterr().out)
    (command,) = data["commands"]
    assert [(f["rule"], f["fixable"]) for f in command["findings"]] == [
        ("unknown-flag", False),
        ("no-spec-type", True),
    ]
    assert data["fixed"] == "llama-server -m x -md y --spec-type draft-simple --bogus"
    newest = f"llama-server b{known_builds.NEWEST} (the newest build known to lint) has no option"
    assert command["findings"][0]["happens"].startswith(newest)
    assert data["left"] == 1


def test_relative_model_paths_start_at_the_files_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("target.gguf", "other-vocab.gguf"):
        (tmp_path / name).write_bytes((MODELS / name).read_bytes())
    script = tmp_path / "run.sh"
    script.write_text("llama-server -m target.gguf -md other-vocab.gguf --spec-type draft-simple\n")
    assert run(["lint", str(script)]) == 1
    assert "misfit" in capsys.readouterr().out


def test_a_copy_of_the_target_is_not_larger_than_it(tmp_path: Path) -> None:
    """Such a draft is odd, but swapping the two would change nothing."""
    names = []
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes((MODELS / "draft.gguf").read_bytes())
        names.append(shlex.quote(str(tmp_path / name)))
    assert rules("llama-server -m {} -md {} --spec-type draft-simple".format(*names)) == []


def test_sidecar_types_are_detected_from_b10423_on() -> None:
    line = f"llama-server -m {MODELS / 'mtp-trunk.gguf'} -md {MODELS / 'mtp-head.gguf'}"
    assert rules(line, here=for_build(10423)) == []
    assert rules(line, here=for_build(10422)) == ["no-spec-type"]


def test_the_last_of_repeated_options_counts() -> None:
    line = "llama-server -m t -md d --spec-type draft-simple"
    assert rules(f"{line} -np 4 -np 1") == []
    assert rules(f"{line} -np 1 --parallel 4") == ["parallel"]


def test_a_draft_model_that_does_not_fit_does_nothing() -> None:
    """The server logs that the vocabularies differ and serves without drafting."""
    line = f"llama-server -m {MODELS / 'target.gguf'} -md {MODELS / 'other-vocab.gguf'}"
    (linted,) = lint_text(f"{line} --spec-type draft-simple", SCRIPT, HERE)
    assert [(f.rule, f.effect) for f in linted.findings] == [("misfit", "does nothing")]


def test_override_kv_may_repair_a_file(tmp_path: Path) -> None:
    """llama.cpp reads it before the file, also for a missing key."""
    path = edited(MODELS / "target.gguf", tmp_path / "m.gguf", drop=["llama.context_length"])
    line = f"llama-server -m {shlex.quote(str(path))}"
    assert rules(line) == ["refused-file"]
    assert rules(f"{line} --override-kv llama.context_length=int:512") == []


def test_a_model_file_that_is_not_gguf_is_a_finding(
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


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda v: str(v)[:50])
def test_bad_input_exits_with_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    err = capsys.readouterr().err
    assert message in err
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


@pytest.mark.parametrize(("name", "raw", "message"), BAD_FILES, ids=lambda v: str(v)[:20])
def test_unreadable_files_exit_with_2(
    name: str, raw: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    assert run(["lint", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_instead_of_a_file_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lint", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("build", [10068, 10434])
def test_the_table_agrees_with_real_builds(build: int, old_builds: Path) -> None:
    """Between the builds whose options were read, the table may accept more than a build does."""
    caps = read_capabilities(locate(str(old_builds / f"b{build}" / "llama-server")))
    table = known_builds.capabilities(build)
    in_table = {n: o for o in table.options if not o.removed for n in o.names}
    in_build = {n: o for o in caps.options if not o.removed for n in o.names}
    assert set(in_table) == set(in_build)
    assert {n: o.arity for n, o in in_table.items()} == {n: o.arity for n, o in in_build.items()}
    assert set(table.spec_types) == set(caps.spec_types)
    assert {o.names for o in table.options if o.removed} == {
        o.names for o in caps.options if o.removed
    }


def test_variables_of_removed_options_are_findings() -> None:
    assert rules("LLAMA_ARG_MLOCK=1 llama-server -m t") == ["renamed-variable"]
    assert rules("LLAMA_ARG_MLOCK=1 llama-server -m t", here=for_build(10877)) == []


def test_options_are_read_from_the_given_engine(
    native: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ["lint", "--llama-server", str(native)]
    assert run([*engine, "llama-server -m x -md y --spec-type draft-simple --mlock"]) == 1
    assert "removed-flag: --mlock" in capsys.readouterr().out
    assert run([*engine, "llama-server -m x --metrics --spec-default"]) == 0


# ---- flags that other engines lack


def findings(text: str) -> list[Finding]:
    return [f for linted in lint_text(text, SCRIPT, HERE) for f in linted.findings]


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--speculative-draft y", "--speculative-draft-model"),  # ambiguous prefix
        ("--speculative-nonsense 3", "--speculative-"),
        ("--speculative_num_step_s=3", "--speculative-num-steps"),
        ("--spec-draft-p-min 0.5", "--speculative-"),
    ],
)
def test_unknown_sglang_speculation_flags_are_findings(flag: str, near: str) -> None:
    (found,) = findings(f"python -m sglang.launch_server --model x {flag}")
    assert found.rule == "unknown-flag"
    assert f"did you mean {near}" in found.fix


@pytest.mark.parametrize(
    "flag",
    [
        "--speculative-algorithm EAGLE3",
        "--speculative-algo EAGLE3",  # argparse accepts an unambiguous prefix
        "--speculative_draft_model y",
        "--speculative-draft-model-path=y",
        "--spec-trace-dir z",
    ],
)
def test_known_sglang_speculation_flags_are_accepted(flag: str) -> None:
    assert findings(f"python -m sglang.launch_server --model x {flag}") == []


def test_a_misspelt_sglang_flag_is_fixed() -> None:
    text = "python -m sglang.launch_server --model x --speculative-algoritm EAGLE3"
    assert fixed(text, SCRIPT, HERE).endswith("--speculative-algorithm EAGLE3")


def test_unknown_vllm_speculation_flags_are_findings() -> None:
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
def test_unknown_keys_of_a_vllm_config_get_a_suggestion(keys: str, fix: str) -> None:
    (found,) = findings(f"""vllm serve x --speculative-config '{{"method": "eagle3", {keys}}}'""")
    assert found.fix == fix


# ---- Windows commands, and other programs


@pytest.mark.parametrize(
    ("argument", "read_as"),
    [
        (r"C:\models\d.gguf", r"C:\models\d.gguf"),
        (r"C:\\models\\d.gguf", r"C:\models\d.gguf"),
        (r".\d.gguf", r".\d.gguf"),
        (r"--model=D:\d.gguf", r"--model=D:\d.gguf"),
        (r"C:\my\ models\d.gguf", r"C:\my models\d.gguf"),
        (r"my\ models/d.gguf", "my models/d.gguf"),
    ],
)
def test_windows_paths_keep_their_backslashes(argument: str, read_as: str) -> None:
    assert [w.text for w in split_words(f"x {argument} y")[0]] == ["x", read_as, "y"]


def test_windows_paths_are_printed_as_typed() -> None:
    text = r"llama-server -m C:\models\t.gguf -md C:\models\d.gguf"
    output = " ".join(f"{f.words} {f.happens} {f.fix}" for f in findings(text))
    assert r"C:\models\d.gguf" in output
    assert "C:models" not in output


@pytest.mark.parametrize("command", ["llama-cli -m x", "ollama run x"])
def test_a_command_of_another_program_exits_with_2(
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
def test_odd_files_without_a_server_are_one_error_line(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert run(["lint", str(file)]) == 2
    assert f"error: {file}: no llama-server, vLLM or SGLang command" in capsys.readouterr().err


def test_unknown_shell_values_are_listed_as_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.cli.app import run

    file = tmp_path / "run.sh"
    file.write_text('ARGS="$(cat args)"\nARGS="$ARGS -md b"\nllama-server -m "$M" $ARGS\n')
    assert run(["lint", str(file)]) == 0
    assert "not checked, as their values are unknown: $ARGS" in capsys.readouterr().out
