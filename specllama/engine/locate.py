"""Which llama-server runs: the user's, one found on this machine, or the embedded one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from specllama import config
from specllama.engine.errors import EngineError
from specllama.errors import SpecllamaError, UsageError
from specllama.storage import expand_user

ENV = "SPECLLAMA_LLAMA_SERVER"
EMBEDDED = "embedded"
_EXE = "llama-server.exe" if sys.platform == "win32" else "llama-server"


@dataclass(frozen=True)
class Engine:
    """A way to start llama-server. `argv` is what precedes its own arguments;
    `identity` is the file whose change means another engine; `why` says how it was found."""

    argv: tuple[str, ...]
    identity: Path
    embedded: bool
    why: str

    @property
    def label(self) -> str:
        return "embedded llama-server (xllamacpp)" if self.embedded else str(self.identity)


def locate(explicit: str | None = None) -> Engine:
    """The engine to use. Order: `--llama-server`, the environment, the config file,
    PATH, usual places, the embedded engine. `embedded` is accepted as a name.

    Raises UsageError when a named one is not there or not executable, EngineError
    when nothing is found at all.
    """
    for value, source in (
        (explicit, "--llama-server"),
        (os.environ.get(ENV), ENV),
        (config.load().llama_server, f"llama_server in {config.path()}"),
    ):
        if value:
            return _named(value, source)
    found = shutil.which(_EXE)
    if found:
        return _native(Path(found), "found on PATH")
    for place in _usual_places():
        if _runnable(place):
            return _native(place, "found in a usual place")
    if _embedded_file() is not None:
        return _embedded("no llama-server on PATH or in the usual places")
    raise EngineError(
        "no llama-server found, and the embedded engine (xllamacpp) is not installed",
        f"Install llama.cpp, or name a binary with --llama-server or {ENV}, or `pip install xllamacpp`.",
    )


def everything(
    explicit: str | None = None,
) -> tuple[tuple[Engine, ...], tuple[SpecllamaError, ...]]:
    """(all engines of this machine, the one that `locate` takes first; what is wrong with those
    that are named and cannot be used). With `explicit` only that one."""
    found: dict[Path, Engine] = {}
    wrong: list[SpecllamaError] = []

    def name(value: str | None, source: str) -> None:
        try:
            if value:
                engine = _named(value, source)
                found.setdefault(engine.identity, engine)
        except SpecllamaError as e:
            wrong.append(e)

    name(explicit, "--llama-server")
    if explicit:
        return tuple(found.values()), tuple(wrong)
    name(os.environ.get(ENV), ENV)
    try:
        name(config.load().llama_server, f"llama_server in {config.path()}")
    except UsageError as e:
        wrong.append(e)
    on_path = (Path(folder) / _EXE for folder in os.get_exec_path())
    for why, places in (("found on PATH", on_path), ("found in a usual place", _usual_places())):
        for place in places:
            if _runnable(place):
                engine = _native(place, why)
                found.setdefault(engine.identity, engine)
    if _embedded_file() is not None:
        engine = _embedded("no llama-server on PATH or in the usual places")
        found.setdefault(engine.identity, engine)
    return tuple(found.values()), tuple(wrong)


def _named(value: str, source: str) -> Engine:
    if value == EMBEDDED:
        if _embedded_file() is None:
            raise EngineError(
                f"{source} asks for the embedded engine, but xllamacpp is not installed",
                "Run `pip install xllamacpp`.",
            )
        return _embedded(f"asked for by {source}")
    path = expand_user(value)
    if os.path.isdir(path):
        path = path / _EXE
    if not os.path.exists(path) and os.sep not in value:
        path = Path(shutil.which(value) or path)
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise UsageError(
            f"{source}: {path} {what}",
            "Give the llama-server binary, the folder it lies in, or `embedded`.",
        )
    if not _runnable(path):
        raise UsageError(f"{source}: {path} is not executable", f"Try `chmod +x {path}`.")
    return _native(path, f"named by {source}")


def _native(path: Path, why: str) -> Engine:
    # without a folder before it, a name would be looked up on PATH
    return Engine((str(path.absolute()),), path.resolve(), embedded=False, why=why)


def _embedded(why: str) -> Engine:
    file = _embedded_file()
    assert file is not None
    argv = (sys.executable, "-m", "specllama.engine.embedded")
    return Engine(argv, file, embedded=True, why=why)


def _embedded_file() -> Path | None:
    spec = find_spec("xllamacpp")
    return Path(spec.origin) if spec and spec.origin else None


def embedded_build() -> int | None:
    """llama.cpp's build in the installed wheel (the last part of its version); None without one.
    Starts nothing."""
    try:
        last = version("xllamacpp").rsplit(".", 1)[-1]
    except PackageNotFoundError:
        return None
    return int(last) if last.isdecimal() else None


def _runnable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _usual_places() -> Iterator[Path]:
    """Where installers and builds put llama-server when it is not on PATH."""
    home = expand_user("~")
    for folder in (
        home / ".local" / "bin",
        Path("/opt/homebrew/bin"),  # Homebrew on Apple silicon
        Path("/usr/local/bin"),  # Homebrew on Intel, make install
        Path("/home/linuxbrew/.linuxbrew/bin"),
        home / "llama.cpp" / "build" / "bin",
        home / "src" / "llama.cpp" / "build" / "bin",
        Path("/opt/llama.cpp/build/bin"),
        home / "llama.cpp" / "build" / "bin" / "Release",  # Visual Studio
    ):
        yield folder / _EXE
    local = os.environ.get("LOCALAPPDATA")
    if local:
        winget = Path(local) / "Microsoft" / "WinGet"
        yield winget / "Links" / _EXE
        yield from sorted(winget.glob(f"Packages/ggml.llamacpp_*/**/{_EXE}"), reverse=True)
    for root in (home / ".lmstudio", home / ".cache" / "lm-studio"):
        yield from sorted(root.glob(f"extensions/backends/**/{_EXE}"), reverse=True)
