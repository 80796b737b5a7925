"""`specllama profiles`: the list, and new profiles from the user's prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama import workloads
from specllama.cli.app import run
from specllama.own_profiles import create_profile
from specllama.prompts import as_text
from specllama.workloads import load_workload


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty config folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def profiles_json(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict[str, Any]:
    assert run([*map(str, args), "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def chat(prompt: str, response: str, **more: Any) -> str:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    return json.dumps({"messages": messages, **more})


def test_profiles_lists_every_profile(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profiles"]) == 0
    alone = capsys.readouterr().out
    assert run(["profiles", "list"]) == 0
    assert capsys.readouterr().out == alone
    for name in workloads.names():
        assert name in alone
    listed = profiles_json(capsys, "profiles", "list")
    assert [p["name"] for p in listed["profiles"]] == workloads.names()
    assert listed["broken"] == {}


def test_show_prints_a_profile_and_its_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profiles", "show", "reasoning", "-v"]) == 0
    out = capsys.readouterr().out
    assert "thinking on" in out
    assert "reasoning.toml" in out
    assert out.count("\n=====\n") == 24
    assert len(profiles_json(capsys, "profiles", "show", "code,chat")["files"]) == 2


def test_new_takes_temperature_and_length_from_the_records(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "log.jsonl"
    lines = [
        chat("a?", "x" * 400, temperature=0.1),
        chat("b?", "x" * 800, temperature=0.3),
        json.dumps({"prompt": "c?", "max_tokens": 100}),
        json.dumps({"prompt": "d?"}),
    ]
    file.write_text("\n".join(lines))
    made = profiles_json(capsys, "profiles", "new", "mine", "--from", file, "--like", "rag")
    assert made["prompts"] == 4
    assert made["temperature"] == 0.2
    assert "2 records" in made["temperature_because"]
    assert made["max_tokens"] == 150  # of 100, 100 and 200 tokens
    w, rag = workloads.load_workload("mine"), workloads.load_workload("rag")
    assert [as_text(p) for p in w.prompts] == ["a?", "b?", "c?", "d?"]
    assert (w.methods, w.ngram, w.n_max) == (rag.methods, rag.ngram, rag.n_max)
    assert w.sampling == {**rag.sampling, "temperature": 0.2}
    assert w.max_tokens == 150


def test_new_takes_missing_values_from_the_like_profile(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "texts.txt"
    file.write_text("one\n---\ntwo")
    assert run(["profiles", "new", "mine", "--from", str(file), "--like", "reasoning"]) == 0
    out = capsys.readouterr().out
    assert "temperature 0.6: from reasoning" in out
    assert "measured up to 512 tokens: from reasoning" in out
    w = workloads.load_workload("mine")
    assert w.sampling == workloads.load_workload("reasoning").sampling  # thinking too


def test_a_folder_gives_one_prompt_per_text_file(home: Path) -> None:
    folder = home / "prompts"
    folder.mkdir()
    (folder / "b.txt").write_text("first\n---\nstill the first\n")
    (folder / "a.md").write_text("# Title")
    (folder / "c.jsonl").write_text('{"prompt": "third"}\n{"prompt": "fourth"}\n')
    (folder / "empty.txt").write_text("\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("no")
    made = create_profile("mine", folder, "chat")
    assert len(made.sizes) == 4
    assert workloads.load_workload("mine").prompts == (
        "# Title", "first\n---\nstill the first", "third", "fourth"
    )  # fmt: skip


def test_a_copy_of_a_built_in_profile_is_the_same(home: Path) -> None:
    create_profile("mine", None, "edit")
    mine, edit = workloads.load_workload("mine"), workloads.load_workload("edit")
    assert (mine.prompts, mine.sampling, mine.max_tokens) == (
        edit.prompts,
        edit.sampling,
        edit.max_tokens,
    )


def test_a_copy_names_the_profile_it_came_from(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profiles", "new", "mine"]) == 0
    out = capsys.readouterr().out
    assert ": from chat\n" in out
    assert "record" not in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["new", "Mine"], "not a valid profile name"),
        (["new", "../x"], "not a valid profile name"),
        (["new", "a,b"], "not a valid profile name"),
        (["new", "x" * 41], "not a valid profile name"),
        (["new", "code"], "profile code already exists"),
        (["new", "mine", "--like", "nope"], "--like nope: no profile called 'nope'"),
        (["new", "mine", "--from", "missing.txt"], "--from missing.txt: cannot be read"),
        (["new", "mine", "--from", "{empty}"], "no prompts found"),
        (["new", "mine", "--from", "{bad}"], "line 1 has neither a prompt nor messages"),
        (["show", "nope"], "no workload called 'nope'"),
        (["bogus"], "No such command"),
        (["list", "--", "-c", "1"], "takes no arguments after --"),
    ],
)
def test_bad_arguments_exit_with_2_and_write_nothing(
    home: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "empty").mkdir()
    (home / "bad.jsonl").write_text("{}\n")
    paths = {"{empty}": str(home / "empty"), "{bad}": str(home / "bad.jsonl")}
    assert run(["profiles", *(paths.get(a, a) for a in args)]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
    assert len(output.err.splitlines()) <= 2
    assert not (home / "config").exists()  # nothing half-written


def test_an_existing_name_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_profile("mine", None, "edit")
    assert run(["profiles", "new", "mine"]) == 2
    assert "mine already" in capsys.readouterr().err


def test_a_profile_may_override_a_built_in_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/profiles.md says so, and `profiles new code` was refused."""
    shipped = load_workload("code")
    source = home / "mine.txt"
    source.write_text("My own prompt.\n")
    assert run(["profiles", "new", "code", "--from", str(source)]) == 0
    assert "note     used instead of the built-in profile code" in capsys.readouterr().out
    now = load_workload("code")
    assert (now.methods, now.sampling, now.n_max) == (
        shipped.methods,
        shipped.sampling,
        shipped.n_max,
    )
    assert load_workload("code").prompts == ("My own prompt.",)
    assert run(["profiles", "new", "code"]) == 2
    assert "code already exists: " in capsys.readouterr().err


def test_prompts_without_settings_are_not_overwritten(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = create_profile("mine", None, "edit")
    made.file.unlink()
    before = made.prompts.read_bytes()
    assert run(["profiles", "new", "mine", "--like", "code"]) == 2
    assert str(made.prompts) in capsys.readouterr().err
    assert made.prompts.read_bytes() == before


def test_a_folder_that_cannot_be_created_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    assert run(["profiles", "new", "mine"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_broken_profile_does_not_hide_the_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_profile("mine", None, "edit").file.write_text("title = 1\n")
    assert run(["profiles", "list"]) == 0
    out = capsys.readouterr().out
    assert "broken   " in out
    assert "mine.toml" in out
    assert "code" in out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_any_prompt_is_stored_unchanged(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    expected = [p for p in prompts if p.strip()]
    if not expected:
        return
    home = tmp_path_factory.mktemp("home")
    (home / "p.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in expected))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        create_profile("mine", home / "p.jsonl", "chat")
        assert list(workloads.load_workload("mine").prompts) == expected[:200]


def test_the_page_about_profiles_lists_all_with_their_temperature() -> None:
    page = (Path(__file__).parent.parent / "docs" / "profiles.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    documented = {r[1].strip(" `"): r[3].strip() for r in rows if len(r) == 5}
    assert set(documented) == set(workloads.names())
    for name, temperature in documented.items():
        assert float(temperature) == workloads.load_workload(name).sampling["temperature"]


@pytest.mark.parametrize("name", ["nul", "con", "aux", "prn", "com1", "lpt9", "com0"])
def test_windows_device_names_are_errors(
    home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["profiles", "new", name]) == 2
    assert "Windows reserves it for a device" in capsys.readouterr().err
    assert not workloads.user_profiles_dir().exists()


@pytest.mark.parametrize("name", ["mine.", "mine ", " mine", "mi/ne", "nul.toml", "CON", "x" * 41])
def test_names_invalid_on_some_system_are_errors(
    home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["profiles", "new", name]) == 2
    assert "is not a valid profile name" in capsys.readouterr().err
    assert not workloads.user_profiles_dir().exists()


def test_a_name_that_starts_like_a_device_name_is_valid(home: Path) -> None:
    assert run(["profiles", "new", "console"]) == 0
    assert workloads.load_workload("console").prompts
