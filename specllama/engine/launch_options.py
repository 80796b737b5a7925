"""What the user gives the server besides specllama's own options: the arguments after `--`, the
LLAMA_ARG_* variables and llama.cpp's config.ini, read once into one object that every decision
asks.

Variables and config.ini are passed on as arguments, so that the printed command is the whole
truth and every engine takes them (option_sources.py). Theirs win over ours, an argument over a variable
over config.ini. Refused: the model (it is specllama's argument) and `-np/--parallel` (specllama's
own --parallel says it, so that every decision knows).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.engine.capabilities import IK_LLAMA, Capabilities
from specllama.engine.helptext import HelpOption
from specllama.engine.keys import first, usable
from specllama.engine.option_sources import (
    MODEL_OPTIONS,
    ParsedOption,
    from_config_ini,
    from_environment,
)
from specllama.errors import UsageError

# Options whose value is a secret, and the variable llama-server takes it from instead:
# an argument would show in `ps`.
_SECRETS = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
_MOST = 2.0**32  # a seed; other numbers are 31 bits
# What a llama-server may have been built without.
_NEEDS = {"--rpc": "It needs one built with RPC (GGML_RPC=ON, as the released ones)."}


@dataclass(frozen=True)
class LaunchOptions:
    """All of them, in the order in which they are applied. `secrets` go to the child's
    environment and nowhere else; `ignored`: variables that are kept from the child, each with
    its reason."""

    flags: tuple[ParsedOption, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [w for f in self.flags for w in f.words]

    @property
    def from_outside(self) -> tuple[ParsedOption, ...]:
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
                opposite = f.option.opposites
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
            reason = getattr(e, "strerror", None) or "it is not text"
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
    arguments = list(parsed(words, caps))
    for given in arguments:
        _refuse(given.words[0], given.option)
    theirs, ignored = from_environment(environ or {}, caps)
    flags: list[ParsedOption] = []
    secrets: dict[str, str] = {}
    for given in (*from_config_ini(environ or {}, caps), *theirs, *arguments):
        variable = next((_SECRETS[n] for n in given.option.names if n in _SECRETS), None)
        if variable:
            where = given.source or "after --"
            secrets[variable] = usable(given.words[1], f"{given.words[0]} {where}")
        else:
            flags.append(given)
    # --device names what --rpc adds, and is looked up as soon as it is read.
    everything = tuple(sorted(flags, key=_adds_no_devices))
    for given in everything:
        if given.option.hint == "N" and _no_number(given.words[1]):
            what = f"{given.source or given.words[0]}: {given.words[1][:40]}"
            raise UsageError(f"{what} is no number that llama-server can take")
    return LaunchOptions(everything, secrets, ignored)


def parsed(words: Sequence[str], caps: Capabilities) -> Iterator[ParsedOption]:
    """llama-server's arguments as options with their values. Raises UsageError for an option that
    this build does not know, one taken away, and a missing value."""
    at = 0
    while at < len(words):
        name = words[at]
        option = _lookup(name, caps)
        values = tuple(words[at + 1 : at + 1 + _following(option, words[at + 1 :], caps)])
        if len(values) < option.arity:
            raise UsageError(f"{name} needs a value ({option.hint})")
        yield ParsedOption(option, (name, *values))
        at += 1 + len(values)


def _following(option: HelpOption, rest: Sequence[str], caps: Capabilities) -> int:
    """How many words behind an option are its values."""
    if option.hint or caps.flavour != IK_LLAMA:
        return option.arity
    # ik_llama.cpp's help leaves hints out (-mla 3): what looks like no option is a value
    return next((i for i, w in enumerate(rest) if re.match("-+[A-Za-z]", w)), len(rest))


def _adds_no_devices(given: ParsedOption) -> bool:
    return "--rpc" not in given.option.names


def _no_number(text: str) -> bool:
    """nan, an infinity, or more than any option holds; words (auto, all) are llama-server's to
    judge."""
    try:
        return not abs(float(text)) <= _MOST
    except ValueError:
        return False


def _lookup(name: str, caps: Capabilities) -> HelpOption:
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


def _refuse(name: str, option: HelpOption) -> None:
    if "--parallel" in option.names:
        raise UsageError(
            f"{name} after -- is not taken: speculation is decided for a known number of slots",
            "Use specllama's own --parallel N (before the --); without it there is one slot.",
        )
    if MODEL_OPTIONS & set(option.names):
        raise UsageError(f"{name} after -- is not taken: the model is specllama's first argument")
