"""A server's command line in a text, and edits of it."""

from __future__ import annotations

from dataclasses import dataclass

from specllama.formats.shell_words import Word, WordOrigin

# How words are written: SHELL, separated by spaces; TEXT, the same inside one pair of quotes;
# FLOW and BLOCK, items of a YAML or JSON list; INI, one option per line; XML, the strings of a
# property list.
SHELL, TEXT, FLOW, BLOCK, INI, XML = "shell", "text", "flow", "block", "ini", "xml"
# Of words in a quoted command that has escaped quotes itself: they have no position in the file.
ESCAPED = WordOrigin("escaped quotes", text=True)
LLAMA, VLLM, SGLANG = "llama-server", "vLLM", "SGLang"


@dataclass(frozen=True)
class EnvVariable:
    """NAME=value in the server's environment; text[start:end] is the name. `start` -1: it is set
    outside of the text, in the file `source` if known. `value_at`: position of the literal value,
    -1 = none."""

    name: str
    value: str
    start: int = -1
    end: int = -1
    fixed: bool = True
    source: str = ""
    value_at: int = -1

    @property
    def in_text(self) -> bool:
        return self.start >= 0


@dataclass(frozen=True)
class YamlScalar:
    """The YAML scalar text[start:end] with a command line, and its value. `inner`: position of the
    value in the file; None: escapes differ, so positions count in the value and the whole scalar
    is quoted again."""

    value: str
    start: int
    end: int
    inner: int | None = None


@dataclass(frozen=True)
class FoundCommand:
    """One server. `words`: its arguments; `styles`: how each is written. `where`: its name in the
    file. `build`: of its image. `begin`: where the first argument goes. `partial`: more options
    come from other places. `site`: where the command begins, -1 = unknown; several paths may lead
    to one site, each with its own words. `missing`: environment files that are missing."""

    program: str
    words: tuple[Word, ...]
    styles: tuple[str, ...]
    begin: int
    where: str = ""
    line: int = 1
    build: int | None = None
    variables: tuple[EnvVariable, ...] = ()
    scalar: YamlScalar | None = None
    partial: bool = False
    site: int = -1
    missing: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, str]:
        """Identifies the server: equal for all paths to it."""
        return (self.site if self.site >= 0 else self.begin), self.where

    @property
    def paired(self) -> bool:
        """Every option has a value, as in an INI file."""
        return INI in self.styles


@dataclass(frozen=True)
class WordEdit:
    """Replaces words[index:index+count] with `new`: texts, or the indices of words that stay as
    they are written."""

    index: int
    count: int
    new: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class SpanEdit:
    """Replaces text[start:end] with `new`."""

    start: int
    end: int
    new: str
