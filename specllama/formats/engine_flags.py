"""The flags of a vLLM or SGLang command line, as argparse reads them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specllama.formats.found_command import FoundCommand
from specllama.formats.parsed_command import lookup_name

_SWITCHES = {"-fa", "--flash-attn", "--speculative-disable-mqa-scorer"}


@dataclass(frozen=True)
class EngineFlag:
    """One flag: words[index:index+count] of the command. `fixed`: no shell variable is in it."""

    name: str
    value: str
    index: int
    count: int
    fixed: bool

    @property
    def shown(self) -> str:
        return f"{self.name} {self.value}".strip()


def read_flags(command: FoundCommand) -> Iterator[EngineFlag]:
    index = 0
    while index < len(command.words):
        word = command.words[index]
        name, equals, value = lookup_name(word.text).partition("=")
        if equals:
            value = word.text.partition("=")[2]
        count = 1
        if word.text.startswith("-"):
            following = command.words[index + 1 : index + 2]
            if not equals and following and not _is_flag(following[0].text, name):
                value, count = following[0].text, 2
            fixed = word.fixed and all(w.fixed for w in command.words[index : index + count])
            yield EngineFlag(name, value, index, count, fixed)
        index += count


def _is_flag(text: str, before: str) -> bool:
    """Whether the word after a flag is another flag; a switch has no value either."""
    return text.startswith("-") or (before in _SWITCHES and text not in ("on", "off", "auto"))


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name most like this one, "" if none is close."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")
