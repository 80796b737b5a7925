"""llama-server's command for the formats: its options one by one, with absolute paths."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.launch_options import parsed
from specllama.engine.option_sources import ParsedOption
from specllama.formats.base import Decision, FormatError

HOST, PORT, MODEL, KEY_FILE, RPC = "--host", "--port", "--model", "--api-key-file", "--rpc"
_ADAPTERS = ("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled")
_ALWAYS = {MODEL, "--model-draft", "--mmproj"}
_FILE = re.compile(r"(FNAME|PATH|DIR|\w*FILE)\b")
_WRITTEN = {"--log-file", "--slot-save-path", "--log-prompts-dir", "--lookup-cache-dynamic"}
_MIN_LOADING_S = 120
_BYTES_PER_S = 100e6  # of a slow disk


@dataclass(frozen=True)
class ServerCommand:
    """A command. `program`: the words before llama-server's own arguments."""

    program: tuple[str, ...]
    options: tuple[ParsedOption, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.program, *(w for o in self.options for w in o.words))

    def value(self, name: str) -> str | None:
        """The last value of the option with this spelling."""
        found = (o.words[-1] for o in reversed(self.options) if name in o.option.names)
        return next(found, None)

    def without(self, *names: str) -> ServerCommand:
        """The command without the options of these names."""
        left = tuple(o for o in self.options if not set(names) & set(o.option.names))
        return ServerCommand(self.program, left)


def command(decision: Decision) -> ServerCommand:
    """The plan's command with absolute paths. Raises FormatError for a word that is not UTF-8."""
    plan = decision.plan
    words = plan.command.argv
    for word in words:
        if re.search("[\ud800-\udfff]", word):
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise FormatError(
                f"{shown} is not valid UTF-8 and cannot be written to a text file", "Rename it."
            )
    at = len(plan.engine.argv)
    program = tuple(absolute(w) if os.sep in w else w for w in words[:at])
    options = parsed(words[at:], plan.capabilities)
    return ServerCommand(program, tuple(with_paths(o, absolute) for o in options))


def absolute(path: str) -> str:
    """The absolute path, links not resolved."""
    return os.path.abspath(path)


def with_paths(given: ParsedOption, change: Callable[[str], str]) -> ParsedOption:
    """The option with every path in its value changed. By llama-server's own hints (FNAME,
    PATH, …): ik_llama.cpp leaves some out, so by name too."""
    if len(given.words) < 2 or not (
        _FILE.match(given.option.hint) or _ALWAYS & set(given.option.names)
    ):
        return given
    value = given.words[1]
    if set(given.option.names) & set(_ADAPTERS):
        value = ",".join(_scaled(word, change) for word in value.split(","))
    else:
        value = change(value)
    return replace(given, words=(given.words[0], value, *given.words[2:]))


def _scaled(word: str, change: Callable[[str], str]) -> str:
    """One adapter of a list, with an optional scale after a colon."""
    scale = None if Path(word).exists() else re.search(r":[-+.\d]+$", word)
    return change(word[: scale.start()]) + scale[0] if scale else change(word)


def refuse_writing(cmd: ServerCommand, where: str) -> None:
    """Raises FormatError if an option makes the server write files, which it cannot in `where`."""
    for option in cmd.options:
        if _WRITTEN & set(option.option.names):
            raise FormatError(
                f"{' '.join(option.words)}: {where} has read-only access to your files",
                f"Remove {option.words[0]}, or use another --format.",
            )


def devices(decision: Decision) -> tuple[str, ...]:
    """The plan's devices, as llama.cpp names them."""
    budget = decision.plan.budget
    return budget.request.machine.names if budget is not None else ()


def uses_gpu(decision: Decision) -> bool:
    """Whether the server may use a local GPU: one is in the budget, or there is no budget."""
    local = [name for name in devices(decision) if not name.startswith("RPC")]
    return bool(local) or decision.plan.budget is None


def loading_s(decision: Decision) -> int:
    """Seconds that loading may take before a supervisor should give up: generous, from the files'
    sizes."""
    size = decision.plan.target.file_bytes
    draft = decision.plan.choice.draft
    size += draft.file_bytes if draft is not None else 0
    return _MIN_LOADING_S + int(size / _BYTES_PER_S)
