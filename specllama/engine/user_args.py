"""The user's own llama-server arguments (after `--`): read once, merged last.

Theirs win over ours. Refused: the model (it is specllama's argument) and
`-np/--parallel` (specllama's own --parallel says it, so that every decision knows).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.engine.capabilities import Capabilities
from specllama.engine.helptext import Option
from specllama.errors import UsageError

# Options whose value is a secret, and the variable llama-server takes it from instead:
# an argument would show in `ps`.
_SECRETS = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
_MODEL = {"--model", "--model-url", "--hf-repo", "--docker-repo", "--models-dir"}


@dataclass(frozen=True)
class UserFlag:
    """One of the user's arguments with its values, and the option it means."""

    option: Option
    words: tuple[str, ...]


@dataclass(frozen=True)
class UserArgs:
    """All of them. `secrets` go to the child's environment and nowhere else."""

    flags: tuple[UserFlag, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def argv(self) -> list[str]:
        return [w for f in self.flags for w in f.words]

    def value(self, name: str) -> str | None:
        """The value the user gave the option spelled `name` (the last one, as llama.cpp)."""
        for f in reversed(self.flags):
            if name in f.option.names and len(f.words) > 1:
                return f.words[1]
        return None

    def spelled(self, *names: str) -> bool:
        """Whether the user wrote one of these spellings of an option."""
        return any(f.words[0] in names for f in self.flags)

    def replacing(self, caps: Capabilities, name: str) -> tuple[str, ...] | None:
        """The user's words for the option that `name` spells in this build."""
        option = caps.find(name)
        for f in reversed(self.flags):
            if option is not None and set(option.names) & set(f.option.names):
                return f.words
        return None

    @property
    def api_key(self) -> str | None:
        """A key our own requests can send: the given one, or the first of the key file."""
        if key := self.secrets.get("LLAMA_API_KEY"):
            return key.split(",")[0]
        file = self.value("--api-key-file")
        if file is None:
            return None
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except OSError as e:
            raise UsageError(f"--api-key-file {file}: {e.strerror}") from None
        return next((line.strip() for line in lines if line.strip()), None)


def parse(words: Sequence[str], caps: Capabilities) -> UserArgs:
    """Reads the arguments against what this build lists.

    Raises UsageError for one it does not know, one taken away, a missing value,
    and the two that are specllama's own.
    """
    flags: list[UserFlag] = []
    secrets: dict[str, str] = {}
    at = 0
    while at < len(words):
        name = words[at]
        option = _lookup(name, caps)
        values = tuple(words[at + 1 : at + 1 + option.arity])
        if len(values) < option.arity:
            raise UsageError(f"{name} needs a value ({option.hint})")
        _refuse(name, option)
        variable = next((_SECRETS[n] for n in option.names if n in _SECRETS), None)
        if variable:
            secrets[variable] = values[0]
        else:
            flags.append(UserFlag(option, (name, *values)))
        at += 1 + option.arity
    return UserArgs(tuple(flags), secrets)


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
