"""What one llama-server build can do: yes, no or unknown, never a guess.

Read from `--version` and `--help`; cached by path, size and mtime. FACTS (build_facts.py) has
what the help does not show. The result of a timeout or crash is unknown and is not cached.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from specllama import __version__
from specllama.engine.build_facts import (
    FACTS,
    IK_TYPES,
    MTP_ARCHITECTURES,
    OPTION_SINCE,
    SPEC_TYPE_SINCE,
    STUBS,
)
from specllama.engine.errors import EngineError
from specllama.engine.exits import explain, signal_name
from specllama.engine.helptext import HelpOption, parse_options, parse_version
from specllama.engine.locate import Engine
from specllama.storage import cache_dir, read_stored, write_stored

MAINLINE, IK_LLAMA, UNKNOWN_FLAVOUR = "mainline", "ik_llama", "unknown"
NO_OPTIONS = "its --help lists no options"
_FIRST_REAL_BUILD = 1000  # llama-server existed under that name from b3145 on
HELP_TIMEOUT = 30.0  # seconds; a cold CUDA start takes several


class Tristate(Enum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Capabilities:
    """One build, as it describes itself. `problem`: why nothing is known about it, "" if known."""

    build: int | None
    commit: str
    flavour: str
    options: tuple[HelpOption, ...]
    spec_types: tuple[str, ...]
    problem: str = ""

    @property
    def label(self) -> str:
        name = f"b{self.build}" if self.build else "an unnumbered build"
        return name if self.flavour == MAINLINE else f"{self.flavour}, {name}"

    def find(self, name: str) -> HelpOption | None:
        """The usable option with this spelling; None when absent or removed."""
        for option in self.options:
            if name in option.names and not option.removed:
                return option
        return None

    def has(self, name: str) -> Tristate:
        """Whether the option can be passed. Unknown when the help could not be read."""
        if not self.options:
            return Tristate.UNKNOWN
        return Tristate.YES if self.find(name) else Tristate.NO

    def spelling(self, *names: str) -> str | None:
        """The first of `names` this build takes. None when it takes none of them."""
        return next((n for n in names if self.find(n)), None)

    @property
    def traces(self) -> bool:
        """Whether log level 4 is "trace", at which a build logs request timings and buffer sizes.
        Older builds log those at their default level, and prompts at 4 (llama.cpp PR 23021,
        b9181; in the help since PR 23278)."""
        option = self.find("-lv")
        return option is not None and "4: trace" in option.help

    def fact(self, name: str) -> Tristate:
        """A row of FACTS for this build. Unknown for a fork, and for an unnumbered build
        whose options do not settle it."""
        fact = FACTS[name]
        if self.flavour != MAINLINE:
            return Tristate.UNKNOWN
        if self.build is None:
            if self.at_least < fact.first:
                return Tristate.UNKNOWN
            if fact.last is None:
                return Tristate.YES
            return Tristate.NO if self.at_least > fact.last else Tristate.UNKNOWN
        inside = fact.first <= self.build and (fact.last is None or self.build <= fact.last)
        return Tristate.YES if inside else Tristate.NO

    def mtp_graph(self, architecture: str) -> Tristate:
        """Whether this build can run the MTP head of `architecture`."""
        first = MTP_ARCHITECTURES.get(architecture)
        if first is None:
            return Tristate.NO if self.flavour == MAINLINE else Tristate.UNKNOWN
        if self.flavour != MAINLINE:
            return Tristate.UNKNOWN
        if self.build is None:
            return Tristate.YES if self.at_least >= first else Tristate.UNKNOWN
        return Tristate.YES if self.build >= first else Tristate.NO

    @property
    def at_least(self) -> int:
        """The oldest build this can be, by its number or its options; 0 if unknown."""
        if self.build is not None:
            return self.build
        since = [b for name, b in OPTION_SINCE.items() if self.find(name)]
        if self.flavour == MAINLINE:
            since += [
                b for t, b in SPEC_TYPE_SINCE.items() if t in self.spec_types and t not in STUBS
            ]
        return max(since, default=0)


def read_capabilities(engine: Engine, timeout: float = HELP_TIMEOUT) -> Capabilities:
    """Capabilities of `engine`, from the cache or by running it.

    Raises EngineError when the binary cannot be run; one that runs but prints
    nothing useful gives a Capabilities with `problem` set.
    """
    cached = _read_cache(engine)
    if cached is not None:
        return describe(*cached)
    version_text, problem = engine_output(engine, "--version", timeout)
    help_text = ""
    if not problem:
        help_text, problem = engine_output(engine, "--help", timeout)
    caps = describe(version_text, help_text, problem)
    if not caps.problem:
        _write_cache(engine, version_text, help_text)
    return caps


def describe(version_text: str, help_text: str, problem: str = "") -> Capabilities:
    """Capabilities from the two texts (either may be empty)."""
    version = parse_version(version_text)
    options = parse_options(help_text)
    spec_type = next((o for o in options if "--spec-type" in o.names), None)
    flavour = _flavour(options, spec_type)
    types: tuple[str, ...] = ()
    if flavour == IK_LLAMA:
        types = tuple(IK_TYPES.split())
    elif spec_type:
        types = tuple(t for t in re.split(r"[|,\[\]<>{}\s]+", spec_type.hint) if t)
    if not problem and not options:
        problem = NO_OPTIONS
    # A tree built without its git history reports build 0 or 1, which says nothing.
    build = version.build if version and version.build >= _FIRST_REAL_BUILD else None
    return Capabilities(
        build=build,
        commit=version.commit if version else "",
        flavour=flavour,
        options=options,
        spec_types=types,
        problem=problem,
    )


def _flavour(options: tuple[HelpOption, ...], spec_type: HelpOption | None) -> str:
    names = {n for o in options for n in o.names}
    if (spec_type and ":k=v" in spec_type.hint) or {"--spec-autotune", "-mtprot"} & names:
        return IK_LLAMA
    if {"--parallel", "--model"} <= names:
        return MAINLINE
    return UNKNOWN_FLAVOUR


def engine_output(
    engine: Engine, flag: str, timeout: float, before: Sequence[str] = ()
) -> tuple[str, str]:
    """(output of --help, --version or --list-devices, why it cannot be trusted or ""). `before`:
    arguments that must come first. Raises EngineError when the engine cannot be run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    try:
        done = subprocess.run(
            [*engine.argv, *before, flag],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"{flag} did not finish within {timeout:g} s"
    except OSError as e:
        raise EngineError(
            f"could not run {engine.label} ({e.strerror or e})",
            "Check that the file is a llama-server built for this machine.",
        ) from None
    out = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    if signal_name(done.returncode):
        return out, f"{explain(done.returncode, out, engine.embedded).message} on {flag}"
    if re.search(rf"(?:unknown|invalid) argument: {flag}", out):
        return out, f"it does not support {flag}"
    # ik_llama.cpp's --help is complete, but exits with 1
    if done.returncode != 0 and not (flag == "--help" and parse_options(out)):
        lines = [s.strip() for s in out.splitlines() if s.strip()] or ["no output"]
        # an argument error is printed above that argument's help
        error = next((s for s in lines if s.startswith("error ")), lines[-1])
        return out, f"{flag} exited with code {done.returncode} ({error[:120]})"
    return out, ""


# ---- cache ------------------------------------------------------------------


def _cache_file(engine: Engine) -> Path:
    stat = engine.identity.stat()
    key = f"{__version__}|{engine.argv}|{engine.identity}|{stat.st_size}|{stat.st_mtime_ns}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache_dir() / "capabilities" / f"{digest}.json"


def _read_cache(engine: Engine) -> tuple[str, str] | None:
    """The engine's last output of --version and --help."""
    try:
        data = read_stored(_cache_file(engine))
    except OSError:
        return None  # the engine is gone: running it will report that
    return (data["version"], data["help"]) if data is not None else None


def _write_cache(engine: Engine, version_text: str, help_text: str) -> None:
    with suppress(OSError):
        write_stored(_cache_file(engine), {"version": version_text, "help": help_text})
