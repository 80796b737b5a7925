"""llama-server options set by the user: the arguments after `--`, the LLAMA_ARG_* variables and
llama.cpp's config.ini, read once into one object that every decision uses.

Variables and config.ini are passed on as arguments, so that the printed command is complete and
works with every engine (option_sources.py). They override ours; an argument overrides a variable,
which overrides config.ini. Rejected: the model (specllama's own argument) and `-np/--parallel`
(specllama's own --parallel, which every decision needs).
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

# Options whose value is a secret, and the variable that passes it instead: an argument would
# show in `ps`.
_SECRETS = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
_MAX_NUMBER = 2.0**32  # a seed; other numbers are 31 bits
# Options that need a build flag.
_NEEDS = {"--rpc": "Use a build with RPC (GGML_RPC=ON), such as the official releases."}


@dataclass(frozen=True)
class LaunchOptions:
    """All of them, in the order they are applied. `secrets` go to the child's environment and
    nowhere else; `ignored`: variables hidden from the child, each with its reason."""

    flags: tuple[ParsedOption, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [w for f in self.flags for w in f.words]

    @property
    def from_outside(self) -> tuple[ParsedOption, ...]:
        """Those from the environment and config.ini rather than the command line."""
        return tuple(f for f in self.flags if f.source)

    def value(self, name: str) -> str | None:
        """The value of the option spelled `name`: the last one, as in llama.cpp."""
        return next(reversed(self.values(name)), None)

    def values(self, name: str) -> list[str]:
        """All its values, in order: some options accumulate."""
        return [f.words[1] for f in self.flags if name in f.option.names and len(f.words) > 1]

    def on(self, name: str) -> bool:
        """Whether the switch `name` is on: the last of its spellings wins (--kv-offload and
        --no-kv-offload are one option)."""
        for f in reversed(self.flags):
            if name in f.option.names:
                opposite = f.option.opposites
                return (name in opposite) == (f.words[0] in opposite)
        return False

    def replacing(self, caps: Capabilities, name: str) -> tuple[str, ...] | None:
        """The user's arguments for the option that `name` spells in this build."""
        option = caps.find(name)
        for f in reversed(self.flags):
            if option is not None and set(option.names) & set(f.option.names):
                return f.words
        return None

    def without(self, names: Iterable[str]) -> LaunchOptions:
        """A copy without the options with one of these spellings."""
        left = tuple(f for f in self.flags if not set(names) & set(f.option.names))
        return LaunchOptions(left, self.secrets, self.ignored)

    @property
    def api_key(self) -> str | None:
        """A key for our own requests: the one set, or the first of the key file."""
        if key := self.secrets.get("LLAMA_API_KEY"):
            return first(key)
        file = self.value("--api-key-file")
        if file is None:
            return None
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or "not a text file"
            raise UsageError(f"--api-key-file {file}: {reason}") from None
        keys = (usable(line, f"--api-key-file {file}") for line in lines if line[:1] != "#")
        return next((key for key in keys if key), None)


def is_number(text: str) -> bool:
    """Whether llama.cpp reads the text as a count: ASCII digits that fit an int."""
    return re.fullmatch("[0-9]{1,9}", text) is not None


def read_launch_options(
    words: Sequence[str], caps: Capabilities, environ: Mapping[str, str] | None = None
) -> LaunchOptions:
    """Reads arguments and variables against the options this build lists.

    Raises UsageError for an unknown or removed option, a missing value, and the two that
    specllama sets itself.
    """
    arguments = list(parsed(words, caps))
    for argument in arguments:
        _reject_reserved(argument.words[0], argument.option)
    variables, ignored = from_environment(environ or {}, caps)
    flags: list[ParsedOption] = []
    secrets: dict[str, str] = {}
    for parsed_option in (*from_config_ini(environ or {}, caps), *variables, *arguments):
        name, names = parsed_option.words[0], parsed_option.option.names
        secret = next((_SECRETS[n] for n in names if n in _SECRETS), None)
        if secret:
            where = f"{name} {parsed_option.source or 'after --'}"
            secrets[secret] = usable(parsed_option.words[1], where)
        else:
            flags.append(parsed_option)
    # --device can name what --rpc adds, and is resolved as soon as it is read
    ordered = tuple(sorted(flags, key=_adds_no_devices))
    for flag in ordered:
        if flag.option.hint == "N" and _out_of_range(flag.words[1]):
            value = f"{flag.source or flag.words[0]}: {flag.words[1][:40]}"
            raise UsageError(f"{value} is not a number that llama-server accepts")
    return LaunchOptions(ordered, secrets, ignored)


def parsed(words: Sequence[str], caps: Capabilities) -> Iterator[ParsedOption]:
    """llama-server's arguments as options with their values. Raises UsageError for an unknown or
    removed option and a missing value."""
    at = 0
    while at < len(words):
        name = words[at]
        option = _lookup(name, caps)
        values = tuple(words[at + 1 : at + 1 + _following(option, words[at + 1 :], caps)])
        if len(values) < option.arity:
            raise UsageError(f"{name} requires a value ({option.hint})")
        yield ParsedOption(option, (name, *values))
        at += 1 + len(values)


def _following(option: HelpOption, rest: Sequence[str], caps: Capabilities) -> int:
    """How many words after an option are its values."""
    if option.hint or caps.flavour != IK_LLAMA:
        return option.arity
    # ik_llama.cpp's help omits hints (-mla 3): anything that is not an option is a value
    return next((i for i, w in enumerate(rest) if re.match("-+[A-Za-z]", w)), len(rest))


def _adds_no_devices(flag: ParsedOption) -> bool:
    return "--rpc" not in flag.option.names


def _out_of_range(text: str) -> bool:
    """NaN, infinite, or beyond any option's range; llama-server checks words (auto, all)."""
    try:
        return not abs(float(text)) <= _MAX_NUMBER
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
        raise UsageError(f"{name!r} after -- is not a llama-server option")
    if "=" in name:
        raise UsageError(
            f"llama-server does not accept {name!r}",
            f"Write it as two arguments: {name.replace('=', ' ', 1)}",
        )
    if name in _NEEDS:
        raise UsageError(f"this llama-server has no option {name} ({caps.label})", _NEEDS[name])
    known = [n for o in caps.options if not o.removed for n in o.names]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.65)
    raise UsageError(
        f"this llama-server has no option {name} ({caps.label})",
        f"Did you mean {near[0]}?" if near else "See `llama-server --help`.",
    )


def _reject_reserved(name: str, option: HelpOption) -> None:
    if "--parallel" in option.names:
        raise UsageError(
            f"{name} after -- is not allowed: specllama must know the number of slots",
            "Use specllama's own --parallel N before the -- (default: 1).",
        )
    if MODEL_OPTIONS & set(option.names):
        raise UsageError(f"{name} after -- is not allowed: the model is specllama's first argument")
