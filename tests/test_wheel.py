"""The wheel that users install: it has every file that the package opens, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(built) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


# Opens every packaged file the way the commands do, and prints the paths.
_READ_ALL = """
import contextlib, json, os, sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, args: opened.append(os.path.abspath(args[0])) if event == "open" else None)
from specllama import resources, workloads
from specllama.cli.report import html
from specllama.drafts import families
from specllama.formats import engine_config, flags, known_builds
from specllama.gguf.files import read_model
for name in workloads.names():
    workloads.load_workload(name)
for name in ("target", "draft"):
    read_model(resources.demo_model(f"{name}.gguf"))
families._data(), known_builds._rows(), engine_config._records(), flags._data()
with contextlib.suppress(Exception):  # the template is read first, then finds no result
    html(())
print(json.dumps(opened))
"""


def test_the_wheel_has_every_file_that_the_package_opens(wheel: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, str(tmp_path / "report.html")],
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    opened = {Path(path) for path in json.loads(done.stdout)}
    packaged = _data_files(wheel / "specllama")
    assert {p.name for p in packaged - opened} == {"py.typed"}, "nothing else is packaged unused"
    assert [p for p in opened if p.is_relative_to(ROOT)] == [], "and nothing is read elsewhere"
    profiles = wheel / "specllama" / "profiles"
    assert {p.relative_to(profiles) for p in _data_files(profiles)} == {
        p.relative_to(ROOT / "profiles") for p in _data_files(ROOT / "profiles")
    }


def _data_files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}


def test_the_wheel_has_all_modules_and_no_tests(wheel: Path) -> None:
    in_repository = {p.relative_to(ROOT).as_posix() for p in (ROOT / "specllama").rglob("*.py")}
    in_wheel = {p.relative_to(wheel).as_posix() for p in wheel.rglob("*.py")}
    assert in_wheel == in_repository


def test_the_wheel_installs_completions_and_the_man_page(wheel: Path) -> None:
    (data,) = wheel.glob("*.data")
    share = data / "data" / "share"
    assert {p.relative_to(share).as_posix() for p in share.rglob("*") if p.is_file()} == {
        "bash-completion/completions/specllama",
        "fish/vendor_completions.d/specllama.fish",
        "man/man1/specllama.1",
        "zsh/site-functions/_specllama",
    }
