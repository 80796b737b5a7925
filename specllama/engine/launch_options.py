"""What the user gives the server besides specllama's own options: the arguments after `--`, the
LLAMA_ARG_* variables and llama.cpp's config.ini, read once into one object that every decision
asks.

Variables and config.ini are read as llama.cpp reads them (common/arg.cpp, b11434) and passed on as arguments,
so that the printed command is the whole truth and every engine takes them. Theirs win over
ours, an argument over a variable over config.ini. Refused: the model (it is specllama's argument) and
`-np/--parallel` (specllama's own --parallel says it, so that every decision knows).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.engine import config_ini
from specllama.engine.capabilities import IK_LLAMA, Capabilities
from specllama.engine.helptext import Option
from specllama.engine.keys import first, usable
from specllama.errors import UsageError

# Options whose value is a secret, and the variable llama-server takes it from instead:
# an argument would show in `ps`.
_SECRETS = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
_MOST = 2.0**32  # a seed; other numbers are 31 bits
_MODEL = {"--model", "--model-url", "--hf-repo", "--hf-file", "--docker-repo", "--models-dir"}
# Variables that would change speculation or the number of slots behind our back; some are fatal
# (arg.cpp: a removed option keeps its variable and throws).
_OURS_PREFIXES = ("LLAMA_ARG_SPEC_", "LLAMA_ARG_DRAFT_")
_OURS = {"LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_MODEL_DRAFT", "LLAMA_ARG_HFD_REPO"}
# Variables that specllama's own --host, --port and -c read (cli/options.py).
_STANDS_FOR = {"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_CTX_SIZE"}
# In config.ini: what our own arguments always replace.
_OURS_THERE = _MODEL | {"--host", "--port", "--parallel"}
# What a llama-server may have been built without.
_NEEDS = {"--rpc": "It needs one built with RPC (GGML_RPC=ON, as the released ones)."}
_TRUE = {"on", "enabled", "true", "1"}  # arg.cpp, is_truthy
_FALSE = {"off", "disabled", "false", "0"}
_SHORT_VARIABLES = {"--batch-size": "LLAMA_ARG_BATCH", "--ubatch-size": "LLAMA_ARG_UBATCH"}


@dataclass(frozen=True)
class Given:
    """One option with the words that ask for it. `source`: the variable or file it comes from,
    "" = it is an argument after `--`."""

    option: Option
    words: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True)
class LaunchOptions:
    """All of them, in the order in which they are applied. `secrets` go to the child's environment and nowhere else;
    `ignored`: variables that are kept from the child, each with its reason."""

    flags: tuple[Given, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [w for f in self.flags for w in f.words]

    @property
    def from_outside(self) -> tuple[Given, ...]:
        """Those that are not on the command line: the environment's and config.ini's."""
        return tuple(f for f in self.flags if f.source)

    def value(self, name: str) -> str | None:
        """The value given for the option spelled `name` (the last one, as llama.cpp)."""
        return next(reversed(self.values(name)), None)

    def values(self, name: str) -> list[str]:
        """All of them, in order: some options add up."""
        return [f.words[1] for f in self.flags if name in f.option.names and len(f.words) > 1]

    def on(self, name: str) -> bool:
        """Whether the switch `name` is on: the last one of its spellings says so, and not its
        opposite (--kv-offload and --no-kv-offload are one option)."""
        for f in reversed(self.flags):
            if name in f.option.names:
                opposite = opposites(f.option)
                return (name in opposite) == (f.words[0] in opposite)
        return False

    def replacing(self, caps: Capabilities, name: str) -> tuple[str, ...] | None:
        """Their words for the option that `name` spells in this build."""
        option = caps.find(name)
        for f in reversed(self.flags):
            if option is not None and set(option.names) & set(f.option.names):
                return f.words
        return None

    def without(self, names: Iterable[str]) -> LaunchOptions:
        """The same less the options with one of these spellings."""
        left = tuple(f for f in self.flags if not set(names) & set(f.option.names))
        return LaunchOptions(left, self.secrets, self.ignored)

    @property
    def api_key(self) -> str | None:
        """A key our own requests can send: the given one, or the first of the key file."""
        if key := self.secrets.get("LLAMA_API_KEY"):
            return first(key)
        file = self.value("--api-key-file")
        if file is None:
            return None
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or "it is no text"
            raise UsageError(f"--api-key-file {file}: {reason}") from None
        keys = (usable(line, f"--api-key-file {file}") for line in lines if line[:1] != "#")
        return next((key for key in keys if key), None)


def is_number(text: str) -> bool:
    """A count as llama.cpp reads it; not every digit of Unicode, nor what no int holds."""
    return re.fullmatch("[0-9]{1,9}", text) is not None


def read(
    words: Sequence[str], caps: Capabilities, environ: Mapping[str, str] | None = None
) -> LaunchOptions:
    """Reads arguments and variables against what this build lists.

    Raises UsageError for an option it does not know, one taken away, a missing value, and the
    two that are specllama's own.
    """
    flags: list[Given] = []
    secrets: dict[str, str] = {}
    for given in parsed(words, caps):
        _refuse(given.words[0], given.option)
        variable = next((_SECRETS[n] for n in given.option.names if n in _SECRETS), None)
        if variable:
            secrets[variable] = usable(given.words[1], f"{given.words[0]} after --")
        else:
            flags.append(given)
    theirs, ignored = _environment(environ or {}, caps)
    everything = tuple(
        # --device names what --rpc adds, and is looked up as soon as it is read.
        sorted((*_configured(environ or {}, caps), *theirs, *flags), key=_adds_no_devices)
    )
    for given in everything:
        if given.option.hint == "N" and _no_number(given.words[1]):
            what = f"{given.source or given.words[0]}: {given.words[1][:40]}"
            raise UsageError(f"{what} is no number that llama-server can take")
    return LaunchOptions(everything, secrets, ignored)


def parsed(words: Sequence[str], caps: Capabilities) -> Iterator[Given]:
    """llama-server's arguments as options with their values. Raises UsageError for an option that
    this build does not know, one taken away, and a missing value."""
    at = 0
    while at < len(words):
        name = words[at]
        option = _lookup(name, caps)
        values = tuple(words[at + 1 : at + 1 + _following(option, words[at + 1 :], caps)])
        if len(values) < option.arity:
            raise UsageError(f"{name} needs a value ({option.hint})")
        yield Given(option, (name, *values))
        at += 1 + len(values)


def _following(option: Option, rest: Sequence[str], caps: Capabilities) -> int:
    """How many words behind an option are its values."""
    if option.hint or caps.flavour != IK_LLAMA:
        return option.arity
    # ik_llama.cpp's help leaves hints out (-mla 3): what looks like no option is a value
    return next((i for i, w in enumerate(rest) if re.match("-+[A-Za-z]", w)), len(rest))


def _adds_no_devices(given: Given) -> bool:
    return "--rpc" not in given.option.names


def _environment(
    environ: Mapping[str, str], caps: Capabilities
) -> tuple[list[Given], dict[str, str]]:
    """(the variables that llama-server would read, as options; those it must not see)."""
    given: list[Given] = []
    ignored: dict[str, str] = {}
    by_variable = _by_variable(caps)
    for name in sorted(n for n in environ if n.startswith("LLAMA_ARG_")):
        value = environ[name].strip()
        option = by_variable.get(name)
        names = set(option.names) if option is not None else set()
        if name in _OURS or name.startswith(_OURS_PREFIXES):
            ignored[name] = ""
        elif name in _STANDS_FOR:
            continue  # specllama's own option has read it
        elif names & _MODEL:
            ignored[name] = "the model is specllama's first argument"
        elif not value:
            ignored[name] = "empty"  # of most options llama-server would end with an error
        elif option is not None and not option.removed:
            words = _words(option, name, value)
            if words:
                given.append(Given(option, words, name))
        else:
            ignored[name] = "unknown to this build"
    return given, ignored


def _configured(environ: Mapping[str, str], caps: Capabilities) -> Iterator[Given]:
    """What config.ini sets, where this build reads it (the embedded engine does not). Raises
    UsageError when that is speculation: no argument takes it back, so nothing could be measured
    against it."""
    if caps.at_least < config_ini.FIRST_BUILD or not any(o.env for o in caps.options):
        return
    by_variable = _by_variable(caps)
    for key, value, file in config_ini.entries(environ):
        option = by_variable.get(key) or caps.find(f"--{key}") or caps.find(f"-{key}")
        if option is None or _OURS_THERE & set(option.names):
            continue
        if any(n.startswith(("--spec-", "--model-draft")) for n in option.names):
            raise UsageError(
                f"{file} sets {key}: every server then speculates that way, whatever is chosen here",
                "Take it out of that file.",
            )
        off = f"--{key}" in opposites(option)
        if words := _words(option, str(file), value, off):
            yield Given(option, words, str(file))


def _by_variable(caps: Capabilities) -> dict[str, Option]:
    """Variable → its option, with the LLAMA_ARG_NO_ form of options that have an opposite. The
    embedded engine names none: there by llama.cpp's habit of naming them."""
    told = any(o.env for o in caps.options)
    out: dict[str, Option] = {}
    for option in caps.options:
        longest = max(
            (n for n in option.names if n.startswith("--") and not n.startswith("--no-")),
            key=len,
            default="",
        )
        usual = "LLAMA_ARG_" + longest[2:].replace("-", "_").upper()
        name = option.env if told else _SHORT_VARIABLES.get(longest, usual)
        if name:
            out[name] = option
            if not option.hint:
                out[name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")] = option
    return out


def _words(option: Option, source: str, value: str, off: bool = False) -> tuple[str, ...]:
    """The arguments that do what a variable (or a line of config.ini) does; () when that is
    nothing. `off`: it names the option's opposite."""
    if option.arity:
        long = next((n for n in reversed(option.names) if n.startswith("--")), option.names[0])
        return (long, value) if option.arity == 1 else ()
    opposite = opposites(option)
    negated = source.startswith("LLAMA_ARG_NO_") and source != option.env  # by any value
    if not negated and value not in _TRUE | _FALSE:
        raise UsageError(f"{source}: {value!r} is neither on nor off", "Correct it, or unset it.")
    positive = [n for n in option.names if n not in opposite]
    if not positive:  # only --no-mmap, as it was once
        return option.names[-1:] if value in _TRUE else ()
    if negated or off == (value in _TRUE):
        return tuple(sorted(opposite, key=len)[-1:])
    return tuple(positive[-1:])


def opposites(option: Option) -> set[str]:
    """The spellings that switch an option off."""
    long = {n for n in option.names if n.startswith(("--no-", "-no-"))}
    initials = {"".join(w[:1] for w in n[5:].split("-")) for n in long}  # --no-repack, -nr
    short = {n for n in option.names if n[:2] == "-n" and long}
    return long | {n for n in short if f"-{n[2:]}" in option.names or n[2:] in initials}


def _no_number(text: str) -> bool:
    """nan, an infinity, or more than any option holds; words (auto, all) are llama-server's to
    judge."""
    try:
        return not abs(float(text)) <= _MOST
    except ValueError:
        return False


def _lookup(name: str, caps: Capabilities) -> Option:
    option = caps.find(name)
    if option:
        return option
    for removed in caps.options:
        if name in removed.names:
            advice = removed.advice[:1].upper() + removed.advice[1:]
            raise UsageError(f"{name} was removed from llama-server", advice)
    if not name.startswith("-"):
        raise UsageError(f"{name!r} after -- is not an option of llama-server")
    if "=" in name:
        raise UsageError(
            f"llama-server takes no {name!r}", f"Write it as two words: {name.replace('=', ' ', 1)}"
        )
    if name in _NEEDS:
        raise UsageError(f"this llama-server has no option {name} ({caps.label})", _NEEDS[name])
    known = [n for o in caps.options if not o.removed for n in o.names]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"this llama-server has no option {name} ({caps.label})",
        f"Did you mean {near[0]}?" if near else "See `llama-server --help`.",
    )


def _refuse(name: str, option: Option) -> None:
    if "--parallel" in option.names:
        raise UsageError(
            f"{name} after -- is not taken: speculation is decided for a known number of slots",
            "Use specllama's own --parallel N (before the --); without it there is one slot.",
        )
    if _MODEL & set(option.names):
        raise UsageError(f"{name} after -- is not taken: the model is specllama's first argument")
