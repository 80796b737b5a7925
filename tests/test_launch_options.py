"""The user's llama-server options: arguments, variables and config file as one object."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.engine.capabilities import Capabilities, describe
from specllama.engine.launch_options import LaunchOptions, is_number, read_launch_options
from specllama.errors import UsageError
from specllama.planning.memory_inputs import tool_flags

HELP = """\
----- common params -----

-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
                                        (env: LLAMA_ARG_UBATCH)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        KV cache offloading (default: enabled)
                                        (env: LLAMA_ARG_KV_OFFLOAD)
--repack, -nr, --no-repack              weight repacking (default: enabled)
                                        (env: LLAMA_ARG_REPACK)
-cmoe, --cpu-moe                        keep all MoE weights in the CPU
                                        (env: LLAMA_ARG_CPU_MOE)
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
                                        (env: LLAMA_ARG_OVERRIDE_TENSOR)
-dev,  --device <dev1,dev2,..>          devices (env: LLAMA_ARG_DEVICE)
--rpc SERVERS                           list of RPC servers (env: LLAMA_ARG_RPC)
--host HOST                             ip address to listen (env: LLAMA_ARG_HOST)
-np,   --parallel N                     number of server slots (env: LLAMA_ARG_N_PARALLEL)
--spec-type none,draft-simple           types (env: LLAMA_ARG_SPEC_TYPE)
--spec-draft-n-max N                    tokens (env: LLAMA_ARG_SPEC_DRAFT_N_MAX)
-mu,   --model-url MODEL_URL            model download url (env: LLAMA_ARG_MODEL_URL)
--api-key KEY                           API key (env: LLAMA_API_KEY)
"""
CAPS: Capabilities = describe("version: 10999 (abc)", HELP)


def options(*words: str, **variables: str) -> LaunchOptions:
    return read_launch_options(words, CAPS, variables)


def test_variables_become_arguments_before_those_of_the_user() -> None:
    found = options("-ub", "64", LLAMA_ARG_UBATCH="128", LLAMA_ARG_OVERRIDE_TENSOR="exps=CPU")
    assert found.argv == ["--override-tensor", "exps=CPU", "--ubatch-size", "128", "-ub", "64"]
    assert found.value("--ubatch-size") == "64"
    sources = [g.source for g in found.from_outside]
    assert sources == ["LLAMA_ARG_OVERRIDE_TENSOR", "LLAMA_ARG_UBATCH"]


def test_repeatable_options_keep_all_values_in_order() -> None:
    found = options("-ot", "a=CPU", "-ot", "b=CPU", LLAMA_ARG_OVERRIDE_TENSOR="c=CPU")
    assert found.values("-ot") == ["c=CPU", "a=CPU", "b=CPU"]


def test_rpc_servers_come_before_the_options_that_name_their_devices() -> None:
    """llama-server exits with an error for `-dev RPC0 --rpc …`, but not for the two variables."""
    found = options("-dev", "RPC0", "--rpc", "b:2", LLAMA_ARG_DEVICE="RPC1", LLAMA_ARG_RPC="a:1")
    assert found.argv[:4] == ["--rpc", "a:1", "--rpc", "b:2"]
    assert found.values("--device") == ["RPC1", "RPC0"]
    assert tool_flags(found, draft=False)[:4] == tool_flags(found, draft=True)[:4]
    assert tool_flags(found, draft=True) == ["--rpc", "a:1", "--rpc", "b:2"]


@pytest.mark.parametrize(
    ("words", "variables", "on"),
    [
        ((), {}, False),
        (("-nkvo",), {}, True),
        (("--no-kv-offload", "-kvo"), {}, False),
        ((), {"LLAMA_ARG_KV_OFFLOAD": "0"}, True),
        ((), {"LLAMA_ARG_KV_OFFLOAD": "on"}, False),
        ((), {"LLAMA_ARG_NO_KV_OFFLOAD": "anything"}, True),
        (("--kv-offload",), {"LLAMA_ARG_KV_OFFLOAD": "off"}, False),
    ],
)
def test_the_last_of_a_switch_and_its_opposite_wins(
    words: tuple[str, ...], variables: dict[str, str], on: bool
) -> None:
    assert options(*words, **variables).on("--no-kv-offload") is on


def test_short_names_of_an_opposite_are_recognised() -> None:
    assert options("-nr").on("--no-repack")
    assert not options("-nr").on("--repack")


def test_a_switch_without_an_opposite_may_be_on_or_off() -> None:
    assert options(LLAMA_ARG_CPU_MOE="1").argv == ["--cpu-moe"]
    assert options(LLAMA_ARG_CPU_MOE="false").argv == []
    with pytest.raises(UsageError, match="LLAMA_ARG_CPU_MOE: 'maybe'"):
        options(LLAMA_ARG_CPU_MOE="maybe")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "4294967297"])
def test_numbers_out_of_every_options_range_are_errors(value: str) -> None:
    with pytest.raises(UsageError, match="is not a number that llama-server accepts"):
        options("-c", value)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", True), ("999999999", True), ("9999999999", False), ("-1", False), ("\u0665", False)],
)
def test_a_count_is_made_of_digits_that_fit_an_int(text: str, number: bool) -> None:
    assert is_number(text) is number


def test_a_removed_option_is_not_suggested() -> None:
    removed = HELP + "--draft-max N                           the argument has been removed\n"
    caps = describe("version: 10999 (abc)", removed)
    with pytest.raises(UsageError) as e:
        read_launch_options(("--draft-mas", "3"), caps)
    assert e.value.hint == "Did you mean --spec-draft-n-max?"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LLAMA_ARG_SPEC_TYPE", "--method"),
        ("LLAMA_ARG_N_PARALLEL", "--parallel"),
        ("LLAMA_ARG_MODEL", "first argument"),
        ("LLAMA_ARG_SOMETHING_NEW", "not supported"),
    ],
)
def test_ignored_variables_have_a_reason(name: str, reason: str) -> None:
    found = options(**{name: "1"})
    assert found.argv == []
    assert reason in found.ignored[name]


def test_empty_variables_are_not_passed_to_the_server() -> None:
    found = options(LLAMA_ARG_UBATCH="", LLAMA_ARG_CPU_MOE=" ")
    assert (found.argv, set(found.ignored.values())) == ([], {"empty"})


def test_variables_for_host_port_and_context_are_left_to_our_own_options() -> None:
    found = options(LLAMA_ARG_HOST="0.0.0.0", LLAMA_ARG_PORT="1", LLAMA_ARG_CTX_SIZE="5")
    assert (found.argv, dict(found.ignored)) == ([], {})


def test_variables_missing_in_a_help_are_derived_from_option_names() -> None:
    without_variables = describe("version: 9999 (abc)", "\n".join(HELP.splitlines()[:9:2]))
    found = read_launch_options((), without_variables, {"LLAMA_ARG_UBATCH": "32"})
    assert found.argv == ["--ubatch-size", "32"]


def test_a_key_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xff\xfe")
    help_text = HELP + "--api-key-file FNAME                    path to file with API keys\n"
    caps = describe("version: 9999 (abc)", help_text)
    for path in (file, tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="--api-key-file"):
            _ = read_launch_options(("--api-key-file", str(path)), caps).api_key


def with_config_file(folder: Path, text: str, *words: str, **variables: str) -> LaunchOptions:
    file = folder / "llama.cpp" / "config.ini"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return read_launch_options(words, CAPS, {"XDG_CONFIG_HOME": str(folder), **variables})


def test_llama_cpps_config_file_comes_before_variables(tmp_path: Path) -> None:
    text = "; mine\nub = 16\nno-kv-offload = on\n[other-model]\nubatch-size = 1\n[*]\nrepack=off\n"
    found = with_config_file(tmp_path, text, LLAMA_ARG_UBATCH="32")
    assert found.argv == [
        "--no-repack", "--ubatch-size", "16", "--no-kv-offload", "--ubatch-size", "32"
    ]  # fmt: skip
    assert found.value("-ub") == "32"
    assert found.from_outside[0].source.endswith("config.ini")


@pytest.mark.parametrize("key", ["spec-type = draft-simple", "model-url = http://x/y.gguf"])
def test_config_values_that_no_argument_can_undo_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"sets {key.split()[0]}"):
        with_config_file(tmp_path, key)


def test_draft_options_without_an_effect_are_passed_on(tmp_path: Path) -> None:
    found = with_config_file(tmp_path, "spec-type = none\nspec-draft-n-max = 5\nctx-size =\n")
    assert found.argv == ["--spec-type", "none", "--spec-draft-n-max", "5"]


def test_an_api_key_in_the_config_file_is_not_put_on_the_command_line(tmp_path: Path) -> None:
    found = with_config_file(tmp_path, "api-key = s3cret ; mine\n")
    assert (found.argv, dict(found.secrets)) == ([], {"LLAMA_API_KEY": "s3cret"})
    assert found.api_key == "s3cret"


def test_comments_and_sections_are_parsed_like_llama_cpp(tmp_path: Path) -> None:
    text = "[default]\nub = 2 # two\n[*]\nub = 1\n[other] ; a router's model\nub = 32\n"
    assert with_config_file(tmp_path, text).values("-ub") == ["1", "2"]


@pytest.mark.parametrize("text", ["", "=", "[", "a", "\x00=1", "m = x.gguf\nport = 1", "c = \n"])
def test_any_text_in_the_config_file_is_accepted(tmp_path: Path, text: str) -> None:
    assert [w for w in with_config_file(tmp_path, text).argv if w not in ("--ctx-size", "")] == []


def test_the_config_file_is_ignored_for_older_builds(tmp_path: Path) -> None:
    with_config_file(tmp_path, "ub = 16")
    old = describe("version: 9999 (abc)", HELP)
    assert read_launch_options((), old, {"XDG_CONFIG_HOME": str(tmp_path)}).argv == []


def test_an_option_missing_in_this_build_is_not_called_a_typo() -> None:
    with pytest.raises(UsageError, match="no option --rpc") as e:
        read_launch_options(
            ("--rpc", "10.0.0.2:50052"), describe("version: 10999 (abc)", "-r, --repack  x\n"), {}
        )
    assert "GGML_RPC=ON" in e.value.hint
