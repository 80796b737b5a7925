"""A server's command line as it stands in somebody's text."""

from __future__ import annotations

from dataclasses import dataclass

from specllama.formats.shell_words import Word

# How words stand in a text: SHELL parted by blanks; TEXT the same, inside of quotes that are
# around all of them; FLOW and BLOCK, items of a YAML or JSON list; INI, one option a line; XML,
# the strings of a property list.
SHELL, TEXT, FLOW, BLOCK, INI, XML = "shell", "text", "flow", "block", "ini", "xml"
LLAMA, VLLM, SGLANG = "llama-server", "vLLM", "SGLang"


@dataclass(frozen=True)
class EnvVariable:
    """NAME=value that the server is started with; text[start:end] is the name. `start` -1: it
    is set outside of the text, in the file `source` where that is known. `value_at`: where the
    value stands word for word, -1 = nowhere."""

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
    """The YAML text[start:end] that a command line is, and its value. `inner`: where the value
    lies in the file as it is; None: escapes part them, so that places count in the value and the
    text is written anew as a whole."""

    value: str
    start: int
    end: int
    inner: int | None = None


@dataclass(frozen=True)
class FoundCommand:
    """One server. `words`: its arguments; `styles`: how each of them is written. `where`: what it
    is called in the file. `build`: of the image it runs in. `begin`: where an argument goes when
    there is none yet. `partial`: more options come from elsewhere. `site`: where the command
    begins, -1 = unknown; a site may be come to in several ways, with other words each. `missing`:
    files with variables that are not here."""

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
        """The same for all ways to one server."""
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
