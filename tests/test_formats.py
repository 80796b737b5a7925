"""Each format of `plan` writes exactly the argv that serve would run, or is an error."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specllama import workloads
from specllama.engine.launch_options import read_launch_options
from specllama.engine.locate import Engine
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.formats import (
    FORMATS,
    HF_FORMATS,
    Decision,
    FormatError,
    commands,
    llama_swap,
    powershell,
    preset,
    systemd,
    write_format,
)
from specllama.formats.base import commented
from specllama.formats.lint import LintContext, fixed, lint_text
from specllama.formats.server import command
from specllama.gguf import read_model
from specllama.planning.choose import Choice
from specllama.planning.plan import Plan, make_plan
from tests import formats_read, help_render
from tests.support import MODELS, script

CAPS = help_render.capabilities("b11434")
AWKWARD = "a 'b' \"c\" 100% $HOME é"
SERVERS = [
    "shell",
    "powershell",
    "llama-swap",
    "preset",
    "systemd",
    "launchd",
    "compose",
    "kubernetes",
]
KEY = "sk-very-secret"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the tiny models and a name that every format has to quote."""
    folder = tmp_path / AWKWARD
    folder.mkdir()
    for name in ("target", "draft", "mtp"):
        shutil.copy(MODELS / f"{name}.gguf", folder)
    return folder


def plan(
    models: Path,
    spec: Speculation | None,
    *server_args: str,
    target: str = "target",
    **settings: Any,
) -> Plan:
    """A plan as prepare makes it, for a native llama-server b11434."""
    info = read_model(models / f"{target}.gguf")
    draft = read_model(spec.draft) if spec is not None and spec.draft is not None else None
    program = models.parent / "llama server"
    engine = Engine((str(program),), program, False, "named")
    choice = Choice(spec, "you named it", draft=draft)
    base_settings = replace(Settings(info.path, "127.0.0.1", 8080), **settings)
    launch_options = read_launch_options(server_args, CAPS, {})
    return make_plan(
        info,
        workloads.load_workload("code"),
        engine,
        CAPS,
        choice,
        base_settings,
        launch_options,
        False,
    )


def decision(*args: Any, **kwargs: Any) -> Decision:
    return Decision(plan(*args, **kwargs), ("method   it\nfits -- here", "note     #1; two"))


def drafting(models: Path) -> Speculation:
    return Speculation(("draft-simple",), models / "draft.gguf", n_max=4, p_min=0.5)


def kinds(models: Path) -> dict[str, tuple[str, Speculation | None]]:
    """Every kind of decision: the target, and the speculation settings."""
    copies = NgramSizes(12, 48)
    return {
        "off": ("target", None),
        "a draft model": ("target", drafting(models)),
        "the target's own head": ("mtp", Speculation(("draft-mtp",), n_max=2)),
        "n-grams": ("target", Speculation(("ngram-simple",), ngram=copies)),
        "both": (
            "target",
            replace(drafting(models), methods=("ngram-mod", "draft-simple"), ngram=copies),
        ),
    }


@pytest.fixture(params=["off", "a draft model", "the target's own head", "n-grams", "both"])
def made(request: pytest.FixtureRequest, models: Path) -> Decision:
    target, spec = kinds(models)[request.param]
    server_args = ("-t", "4", "--no-webui", "-ot", "exps=CPU", "--chat-template-kwargs", '{"a": 1}')
    return decision(models, spec, *server_args, target=target)


READERS: dict[str, Callable[[str], list[str]]] = {
    "shell": formats_read.shell,
    "powershell": formats_read.powershell,
    "systemd": formats_read.systemd,
    "launchd": formats_read.launchd,
}


@pytest.mark.parametrize("name", READERS)
def test_the_written_text_reads_back_as_the_argv(name: str, made: Decision) -> None:
    assert READERS[name](write_format(name, made).text) == list(made.plan.command.argv)


def test_llama_swap_starts_the_same_server_at_its_own_port(made: Decision) -> None:
    words = formats_read.llama_swap(write_format("llama-swap", made).text, 5800)
    argv = list(made.plan.at_address("127.0.0.1", 5800).command.argv)
    assert sorted(words) == sorted(argv)
    assert words[:5] == [argv[0], "--host", "127.0.0.1", "--port", "5800"]


def test_a_preset_has_every_option_except_the_routers(made: Decision) -> None:
    section, found = formats_read.preset(write_format("preset", made).text, CAPS)
    assert section == made.name
    for option in command(made).without("--host", "--port").options:
        off = option.words[0] == "--no-webui"
        expected = option.words[1] if len(option.words) > 1 else ("false" if off else "true")
        assert found.pop(option.option.names[0]) == expected
    assert found == {}


def test_compose_and_kubernetes_start_the_same_server_in_a_container(
    made: Decision, models: Path
) -> None:
    argv = list(made.plan.at_address("0.0.0.0", 8080).command.argv)[1:]
    service = formats_read.compose(write_format("compose", made).text)
    folders = {v["target"]: v["source"] for v in service["volumes"]}
    assert folders == {"/models": str(models)}
    pod = formats_read.kubernetes(write_format("kubernetes", made).text)
    for words in (service["command"], pod["args"]):
        assert sorted(formats_read.host_paths(words, folders)) == sorted(argv)


@pytest.mark.parametrize("name", SERVERS)
def test_api_keys_are_not_written_and_a_note_says_how_to_set_them(name: str, models: Path) -> None:
    made = decision(models, drafting(models), api_key=KEY)
    written = write_format(name, made)
    assert KEY not in written.text + "".join(written.notes)
    assert re.search("api[-_]key", written.text, re.I)
    assert any(re.search("api[- _]key", note, re.I) for note in written.notes)


@pytest.mark.parametrize("name", SERVERS)
def test_reasons_are_written_as_comments(name: str, models: Path) -> None:
    text = write_format(name, decision(models, None)).text
    lines = [x for x in text.splitlines() if "it fits" in x]
    (line,) = lines  # a line break in a reason does not end the comment
    if name == "launchd":
        comment = re.search(r"<!--(.*?)-->", text, re.S)
        assert comment is not None
        assert line in comment[1]
    else:
        assert line[0] == (";" if name == "preset" else "#")


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in HF_FORMATS])
def test_a_file_names_the_program_that_made_it(name: str, made: Decision) -> None:
    assert "made by `specllama plan`" in write_format(name, made).text[:400]


# Values that a format cannot express.


@pytest.mark.parametrize("bad", ["a#b", "a;b", "a\nb", " a"])
def test_a_preset_rejects_values_that_would_be_cut_off(bad: str, models: Path) -> None:
    with pytest.raises(FormatError, match="would be cut off") as e:
        write_format("preset", decision(models, None, "--alias", bad))
    assert e.value.exit_code == 2


def test_a_preset_needs_a_router(models: Path) -> None:
    made = decision(models, None)
    old = replace(made.plan, capabilities=help_render.capabilities("p0.3.16"))
    with pytest.raises(FormatError, match="no router that reads presets"):
        write_format("preset", Decision(old))


def test_repeated_options_are_one_line_of_a_preset(models: Path) -> None:
    made = decision(models, None, "-ot", "a=CPU", "-ot", "b=CPU", "-t", "4", "-t", "2")
    found = formats_read.preset(write_format("preset", made).text, CAPS)[1]
    assert (found["-ot"], found["-t"]) == ("a=CPU,b=CPU", "2")


@pytest.mark.parametrize("bad", ["${HOME}", "a\nb", "a\x1bb", "a\u2028b", "a\x85b", "a\x80b"])
def test_llama_swap_rejects_macros_and_line_breaks(bad: str, models: Path) -> None:
    with pytest.raises(FormatError, match="llama-swap cannot hold"):
        write_format("llama-swap", decision(models, None, "--alias", bad))


@pytest.mark.parametrize("bad", ["a\x01b", "a\rb"])
def test_a_property_list_rejects_control_characters(bad: str, models: Path) -> None:
    with pytest.raises(FormatError, match="control character"):
        write_format("launchd", decision(models, None, "--alias", bad))


@pytest.mark.parametrize("name", SERVERS)
def test_bytes_that_are_not_utf8_are_rejected(name: str, models: Path) -> None:
    with pytest.raises(FormatError, match="is not valid UTF-8"):
        write_format(name, decision(models, None, "--alias", "caf\udce9"))


@pytest.mark.parametrize("name", ["shell", "powershell", "systemd", "compose", "kubernetes"])
def test_line_breaks_are_kept_by_formats_that_can_express_them(name: str, models: Path) -> None:
    made = decision(models, None, "--alias", "one\ntwo\ttab")
    readers: dict[str, Callable[[str], list[str]]] = {
        **READERS,
        "compose": lambda text: list(formats_read.compose(text)["command"]),
        "kubernetes": lambda text: list(formats_read.kubernetes(text)["args"]),
    }
    assert "one\ntwo\ttab" in readers[name](write_format(name, made).text)


# Any text.

_WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


@given(st.lists(_WORDS.filter(bool), min_size=1, max_size=4))
def test_any_words_are_quoted_for_systemd(words: list[str]) -> None:
    line = " ".join([systemd.quoted("/x", program=True), *map(systemd.quoted, words)])
    assert formats_read.systemd_words(line) == ["/x", *words]


@given(_WORDS)
def test_any_word_is_quoted_for_powershell(word: str) -> None:
    assert formats_read.powershell(f"& {powershell.quoted(word)}") == [word]


@given(_WORDS)
def test_any_word_is_quoted_for_llama_swap_or_rejected(word: str) -> None:
    try:
        quoted = llama_swap.quoted(("/x", word))
    except FormatError:
        assert "${" in word or not word.isprintable()
        return
    text = f"models:\n  a:\n    cmd: |\n      {quoted}\n"
    assert formats_read.llama_swap(text, 1) == ["/x", word]


@given(_WORDS)
def test_any_comment_is_valid_yaml(word: str) -> None:
    assert yaml.safe_load(commented([word]) + "a: 1\n") == {"a": 1}


@given(_WORDS)
def test_any_value_is_written_to_a_preset_or_rejected(value: str) -> None:
    option = read_launch_options(("--alias", "x"), CAPS, {}).flags[0]
    try:
        key, written = preset.line(replace(option, words=("--alias", value)))
    except FormatError:
        assert re.search(r"[#;\n\r]", value) or value != value.strip()
        return
    found = formats_read.preset(f"[a]\n{key} = {written}\n", CAPS)[1]
    assert found == {"-a" if "-a" in option.option.names else option.option.names[0]: value}


# The real programs.


def test_a_shell_runs_the_written_script(models: Path) -> None:
    made = decision(models, drafting(models))
    script(Path(made.plan.engine.argv[0]), "import json, sys; print(json.dumps(sys.argv[1:]))")
    file = models.parent / "run.sh"
    file.write_text(write_format("shell", made).text, encoding="utf-8")
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    for sh in ("sh", "bash"):
        done = subprocess.run([sh, file], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == list(made.plan.command.argv[1:])


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that other users can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("for_machine", [True, False])
@pytest.mark.parametrize("key", [KEY, None])
def test_systemd_verifies_the_unit(
    for_machine: bool, key: str | None, models: Path, readable: Path
) -> None:
    made = decision(models, drafting(models), api_key=key)
    script(Path(made.plan.engine.argv[0]), "")
    file = readable / "a-name.service"
    file.write_text(systemd.unit(made, for_machine).text, encoding="utf-8")
    runtime = readable / "run"
    runtime.mkdir()
    manager = [] if for_machine else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", *manager, "verify", file],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        0,
        "",
    )  # systemd only warns about unknown keys, in stderr


SYSTEMD = Path("/lib/systemd/systemd")


@pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd here")
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs another user")
def test_systemd_itself_reads_the_argv(models: Path, readable: Path) -> None:
    made = decision(models, drafting(models), "--alias", '50% of $5, {x}; it\'s \\ "so"')
    units = readable / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "it.service").write_text(systemd.unit(made, False).text, encoding="utf-8")
    (readable / "run").mkdir()
    shutil.chown(readable / "run", 65534)
    done = subprocess.run(
        [
            *("setpriv", "--reuid=65534", "--clear-groups", SYSTEMD),
            *("--user", "--test", "--unit=it.service"),
        ],
        capture_output=True,
        text=True,
        env={"XDG_RUNTIME_DIR": str(readable / "run"), "XDG_CONFIG_HOME": str(readable)},
        check=False,
    )
    found = re.search(
        r"Unit it\.service:.*?Command Line: ([^\n]*)", done.stdout + done.stderr, re.S
    )
    assert found is not None, done.stdout + done.stderr
    argv = list(made.plan.command.argv)
    # the output is quoted for a shell, and $$ is not yet $
    shown = shlex.split(found[1].replace("\\$", "$"))
    assert [w.replace("$$", "$") for w in shown] == argv


def test_llama_swap_files_follow_its_schema(made: Decision) -> None:
    schema = json.loads((Path(__file__).parent / "data" / "llama-swap.json").read_text())
    keyed = replace(
        made, plan=replace(made.plan, settings=replace(made.plan.settings, api_key="k"))
    )
    for each in (made, keyed):
        config = yaml.safe_load(write_format("llama-swap", each).text)
        jsonschema.Draft7Validator(schema).validate(config)
    bad = {"models": {"a": {"cmd": ""}}, "healthCheckTimeout": 5}
    assert len(list(jsonschema.Draft7Validator(schema).iter_errors(bad))) == 2


def test_compose_files_follow_the_specification(made: Decision) -> None:
    folder = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(
        yaml.safe_load(write_format("compose", made).text)
    )


def test_kubernetes_manifests_are_valid(made: Decision) -> None:
    for doc in yaml.safe_load_all(write_format("kubernetes", made).text):
        kubernetes_validate.validate(doc, "1.37", strict=True)


def test_every_format_has_a_module() -> None:
    for where in FORMATS.values():
        module, _, function = where.partition(":")
        assert callable(getattr(import_module(f"specllama.formats.{module}"), function or "write"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("shell", commands.SCRIPT),
        ("powershell", commands.WINDOWS),
        ("llama-swap", commands.YAML),
        ("preset", commands.PRESET),
        ("systemd", commands.UNIT),
        ("compose", commands.YAML),
        ("kubernetes", commands.YAML),
    ],
)
def test_lint_finds_the_server_in_written_files_without_findings(
    name: str, kind: str, made: Decision
) -> None:
    text = write_format(name, made).text.replace("llama server", "llama-server")
    here = LintContext(
        lambda _: CAPS, lambda file: read_model(Path(file)) if Path(file).is_file() else None
    )
    (linted,) = lint_text(text, kind, here)
    assert linted.findings == ()
    assert len(linted.command.words) > 10
    assert fixed(text, kind, here) == text
