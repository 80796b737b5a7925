"""Which llama-server to run: a configured one, one found on this machine, or the embedded one."""

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
_OPTION = "--llama-server"
_EXE = "llama-server.exe" if sys.platform == "win32" else "llama-server"
_ON_PATH, _IN_STANDARD_LOCATION = "found on PATH", "found in a standard location"
_NONE_FOUND = "no llama-server on PATH or in the standard locations"
NOT_FOUND = (  # message and hint
    "no llama-server found, and the embedded engine (xllamacpp) is not installed",
    f"Install llama.cpp, set a binary with --llama-server or {ENV}, or `pip install xllamacpp`.",
)


@dataclass(frozen=True)
class Engine:
    """A way to start llama-server. `argv` is what precedes its own arguments;
    `identity` is the file whose change means another engine; `reason`: how it was found; `name`: its
    path as the user knows it, links not resolved."""

    argv: tuple[str, ...]
    identity: Path
    embedded: bool
    reason: str
    name: str = ""

    @property
    def label(self) -> str:
        if self.embedded:
            return "embedded llama-server (xllamacpp)"
        return self.name or str(self.identity)

    @property
    def option(self) -> tuple[str, ...]:
        """The user's --llama-server, to repeat it in commands that we print; () if not set."""
        if self.reason != f"set by {_OPTION}":
            return ()
        return (_OPTION, EMBEDDED if self.embedded else self.label)


def locate(explicit: str | None = None) -> Engine:
    """The engine to use. Order: `--llama-server`, the environment, the config file,
    PATH, standard locations, the embedded engine. `embedded` is accepted as a name.

    Raises UsageError when a configured one is missing or not executable, EngineError
    when none is found.
    """
    for value, source in (
        (explicit, _OPTION),
        (os.environ.get(ENV), ENV),
        (config.load().llama_server, f"llama_server in {config.path()}"),
    ):
        if value:
            return _configured(value, source)
    found = shutil.which(_EXE)
    if found:
        return _native(Path(found), _ON_PATH)
    for file in _standard_locations():
        if _runnable(file):
            return _native(file, _IN_STANDARD_LOCATION)
    if _embedded_file() is not None:
        return _embedded(_NONE_FOUND)
    raise EngineError(*NOT_FOUND)


def everything(
    explicit: str | None = None,
) -> tuple[tuple[Engine, ...], tuple[SpecllamaError, ...]]:
    """(all engines on this machine, the one `locate` picks first; errors of configured ones that
    cannot be used). With `explicit` only that one."""
    found: dict[Path, Engine] = {}
    errors: list[SpecllamaError] = []

    def add(value: str | None, source: str) -> None:
        try:
            if value:
                engine = _configured(value, source)
                found.setdefault(engine.identity, engine)
        except SpecllamaError as e:
            errors.append(e)

    add(explicit, _OPTION)
    if explicit:
        return tuple(found.values()), tuple(errors)
    add(os.environ.get(ENV), ENV)
    try:
        add(config.load().llama_server, f"llama_server in {config.path()}")
    except UsageError as e:
        errors.append(e)
    on_path = (Path(folder) / _EXE for folder in os.get_exec_path())
    for why, files in ((_ON_PATH, on_path), (_IN_STANDARD_LOCATION, _standard_locations())):
        for file in files:
            if _runnable(file):
                engine = _native(file, why)
                found.setdefault(engine.identity, engine)
    if _embedded_file() is not None:
        engine = _embedded(_NONE_FOUND)
        found.setdefault(engine.identity, engine)
    return tuple(found.values()), tuple(errors)


def _configured(value: str, source: str) -> Engine:
    if value == EMBEDDED:
        if _embedded_file() is None:
            raise EngineError(
                f"{source} selects the embedded engine, but xllamacpp is not installed",
                "Run `pip install xllamacpp`.",
            )
        return _embedded(f"set by {source}")
    name = os.path.join(value, _EXE) if os.path.isdir(expand_user(value)) else value
    if not os.path.exists(expand_user(name)) and os.sep not in value:
        name = shutil.which(value) or name
    path = expand_user(name)
    if not os.path.isfile(path):
        problem = "is not a file" if os.path.exists(path) else "does not exist"
        raise UsageError(
            f"{source}: {name} {problem}",
            "Set it to the llama-server binary, its folder, or `embedded`.",
        )
    if not _runnable(path):
        raise UsageError(
            f"{source}: {name} is not executable", f"If it is a llama-server: `chmod +x {name}`."
        )
    return _native(path, f"set by {source}", name)


def _native(path: Path, why: str, name: str = "") -> Engine:
    # absolute: a bare name would be looked up on PATH
    argv = (str(path.absolute()),)
    return Engine(argv, path.resolve(), embedded=False, reason=why, name=name or str(path))


def _embedded(why: str) -> Engine:
    file = _embedded_file()
    assert file is not None
    argv = (sys.executable, "-m", "specllama.engine.embedded")
    return Engine(argv, file, embedded=True, reason=why)


def _embedded_file() -> Path | None:
    spec = find_spec("xllamacpp")
    return Path(spec.origin) if spec and spec.origin else None


def embedded_build() -> int | None:
    """llama.cpp's build in the installed wheel (the last part of its version), None without a
    wheel. Does not start it."""
    try:
        last = version("xllamacpp").rsplit(".", 1)[-1]
    except PackageNotFoundError:
        return None
    return int(last) if last.isdecimal() else None


def _runnable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _standard_locations() -> Iterator[Path]:
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
