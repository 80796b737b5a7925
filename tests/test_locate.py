"""Which engine is used, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specllama import config
from specllama.engine import locate as module
from specllama.engine.errors import EngineError
from specllama.engine.locate import locate
from specllama.errors import UsageError
from tests.support import script


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(
        module, "_standard_locations", lambda: iter([tmp_path / "usual" / "llama-server"])
    )


def server(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return script(folder / "llama-server", "")


def test_the_order_in_which_engines_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locate().embedded
    assert "no llama-server on PATH" in locate().reason
    usual = server(tmp_path / "usual")
    assert (locate().identity, locate().reason) == (usual, "found in a standard location")
    path = server(tmp_path / "bin")
    assert (locate().identity, locate().reason) == (path, "found on PATH")
    in_config = server(tmp_path / "conf")
    config.path().parent.mkdir(parents=True)
    config.path().write_text(f'llama_server = "{in_config.as_posix()}"\n')
    assert locate().identity == in_config
    assert "config.toml" in locate().reason
    by_env = server(tmp_path / "env")
    monkeypatch.setenv("SPECLLAMA_LLAMA_SERVER", str(by_env))
    assert (locate().identity, locate().reason) == (by_env, "set by SPECLLAMA_LLAMA_SERVER")
    explicit = server(tmp_path / "explicit")
    assert locate(str(explicit)).reason == "set by --llama-server"
    assert locate(str(explicit.parent)).identity == explicit
    assert locate("embedded").embedded


def test_a_named_engine_must_exist_and_be_executable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        locate(str(tmp_path / "nope"))
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(UsageError, match="not executable") as e:
        locate(str(plain))
    assert "chmod +x" in e.value.hint


def test_a_named_engine_is_called_what_the_user_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    found = locate("./link")
    assert (found.label, found.argv, found.identity) == ("./link", (f"{tmp_path}/link",), real)
    assert locate("./real").label == "./real/llama-server"
    with pytest.raises(UsageError, match=re.escape("--llama-server: ./nope does not exist")):
        locate("./nope")
    with pytest.raises(UsageError, match=re.escape("--llama-server: ~/nope does not exist")):
        locate("~/nope")


def test_without_any_engine_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_embedded_file", lambda: None)
    with pytest.raises(EngineError, match="no llama-server found"):
        locate()
    with pytest.raises(EngineError, match="xllamacpp is not installed"):
        locate("embedded")


@pytest.mark.parametrize(
    ("text", "message"),
    [("llama_srver = 'x'", "unknown setting 'llama_srver'"), ("llama_server = 3", "must be a string"), ("[", "not valid TOML")],
)  # fmt: skip
def test_mistakes_in_the_config_are_errors(text: str, message: str) -> None:
    config.path().parent.mkdir(parents=True)
    config.path().write_text(text)
    with pytest.raises(UsageError, match=message):
        locate()


def test_standard_locations_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    places = list(module._standard_locations())
    assert len(places) > 5
    assert all(p.is_absolute() and p.name.startswith("llama-server") for p in places)


def test_a_path_in_the_current_folder_is_not_looked_up_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./llama-server` loses its folder as a path, and would then be looked up on PATH."""
    path = server(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert locate("./llama-server").argv == (str(path),)
