"""What one llama-server build can do: yes, no or unknown, never a guess.

Read from `--version` and `--help`; cached by path, size and mtime. FACTS (build_facts.py) has
what the help does not show. The result of a timeout or crash is unknown and is not cached.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from specllama import __version__
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
class Fact:
    """True for builds in [first, last] of mainline llama.cpp."""

    first: int
    last: int | None
    source: str


# Facts that the help text does not show. Builds as llama.cpp numbers them.
FACTS: Mapping[str, Fact] = {
    "eagle3_drafts": Fact(9611, None, "PR 18039; b9601 lists draft-eagle3 but it is a stub"),
    "mtp_cannot_start": Fact(10741, 10748, "issue 28196: no MTP model starts"),
    "loads_mtp_on_demand": Fact(
        10218, None, "common.cpp, load_mtp: MTP blocks with draft-mtp only"
    ),
    "few_outputs": Fact(
        9493, None, "PR 23861: room for the logits of drafts, not of a whole ubatch"
    ),
    "fit_counts_draft": Fact(
        10630, None, "common/fit.cpp, extra: --fit makes room for the draft too"
    ),
    "fit_adds_draft": Fact(
        9341, None, "PR 23485: a draft model is measured alone and added to --fit-target"
    ),
    "slots_read_wrong_rows": Fact(9180, 11292, "PR 29019: α falls with more than one slot"),
}

# Options and the first build that lists them: a build without a number is at least that new.
_OPTION_SINCE: Mapping[str, int] = {"--spec-draft-sampling": 11368, "--kv-unified-per-slot": 10662}

# Architectures whose MTP graph runs, and the first build seen to have it
# (llama.cpp, src/models/*.cpp, LLM_GRAPH_TYPE_DECODER_MTP).
MTP_ARCHITECTURES: Mapping[str, int] = {
    "qwen35": 9180,
    "qwen35moe": 9180,
    "step35": 9493,
    "gemma4": 9553,  # through a gemma4-assistant file
    "cohere2moe": 9670,
    "hy_v3": 10019,
    "glm-dsa": 10218,
    "mimo2": 10218,
    "deepseek4": 10235,
    "deepseek32": 10240,
    "qwen3next": 10240,
    "deepseek2": 10261,
    "nemotron_h_moe": 10362,
    "bailingmoe3": 10499,
    "glm4moe": 10630,
    "qwen4exp": 11334,
}

# Architectures that expose the layer inputs EAGLE-3, DFlash and DSpark read (llama.cpp
# b11434, src/models/*.cpp, t_layer_inp). Another target ends in an assertion.
HOOKED_ARCHITECTURES = frozenset(
    "llama qwen3 qwen3moe qwen35 qwen35moe qwen3next qwen4exp gemma4 gpt-oss minimax-01 minimax-m2 "
    "mimo2 nemotron_h nemotron_h_moe deepseek4 lfm2 lfm2moe bailingmoe3 muse-glimmer hunyuan_vl "
    "nanbeige".split()
)

# Of those, the ones that also expose what leaves their last layer, which a drafter asks for with
# the id after the last layer's: to EAGLE-3 (t_h_nextn; elsewhere it reads another batch's
# numbers) and to DFlash and DSpark (t_layer_inp[n_layer]; elsewhere an assertion).
LAST_OUTPUT_FOR_EAGLE3 = frozenset(
    "gemma4 gpt-oss qwen35 qwen35moe qwen3next mimo2 nemotron_h nemotron_h_moe deepseek4 "
    "bailingmoe3".split()
)
LAST_OUTPUT_FOR_DFLASH = frozenset("mimo2 nemotron_h nemotron_h_moe deepseek4".split())

# First build whose --spec-type takes the value; for "needs build ≥ bN".
SPEC_TYPE_SINCE: Mapping[str, int] = {
    "draft-simple": 9180,
    "draft-mtp": 9180,
    "draft-eagle3": 9611,
    "draft-dflash": 9837,
    "draft-dspark": 10173,
}

_STUBS = ("draft-eagle3",)  # listed before it could run

# ik_llama.cpp's values are in its documentation, not in its help (8337e4cd3, 2026-08).
_IK_TYPES = "none draft dflash dspark mtp ngram-cache ngram-simple ngram-map-k ngram-map-k4v ngram-mod suffix"


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
        since = [b for name, b in _OPTION_SINCE.items() if self.find(name)]
        if self.flavour == MAINLINE:
            since += [
                b for t, b in SPEC_TYPE_SINCE.items() if t in self.spec_types and t not in _STUBS
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
    version_text, problem = ask(engine, "--version", timeout)
    help_text = ""
    if not problem:
        help_text, problem = ask(engine, "--help", timeout)
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
        types = tuple(_IK_TYPES.split())
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


def ask(engine: Engine, flag: str, timeout: float, before: Sequence[str] = ()) -> tuple[str, str]:
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
