"""Parses the output of `llama-server --help` and `--version`.

Layout (llama.cpp, common/arg.cpp, `common_arg::to_string`): all names of an option
joined by commas (the first padded to 7 columns), then the value hint, then the help
text from column 40 or on the next line; help wraps at 70. Removed options are still
listed, with a help text that says so.

ik_llama.cpp (8337e4cd3) has the older layout: `usage: … [options]`, heads indented by 2 to 10
spaces, help from column 34, and some heads with a hint after each name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REMOVED = "the argument has been removed"
_NAME = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9.-]*")
_DEFAULT = re.compile(r"default: *([^\s,;)]+)")
_ENV = re.compile(r"\(env: (\w+)\)")
_VERSION = re.compile(r"version: (?:(\d+) \(([\w.-]+)\)|\S+ \(build (\d+), commit ([\w.-]+)\))")


@dataclass(frozen=True)
class HelpOption:
    """One option: every spelling, the value hint ("" for a switch), the printed default.

    `advice`: what the help recommends instead of a `removed` option. `help`: the text, on one line.
    """

    names: tuple[str, ...]
    hint: str
    default: str | None
    removed: bool = False
    advice: str = ""
    help: str = ""

    @property
    def env(self) -> str:
        """Its environment variable, "" if none."""
        found = _ENV.search(self.help)
        return found[1] if found else ""

    @property
    def opposites(self) -> frozenset[str]:
        """The spellings that switch it off."""
        long = {n for n in self.names if n.startswith(("--no-", "-no-"))}
        initials = {"".join(w[:1] for w in n[5:].split("-")) for n in long}  # --no-repack, -nr
        short = {n for n in self.names if n[:2] == "-n" and long}
        known = {n for n in short if f"-{n[2:]}" in self.names or n[2:] in initials}
        return frozenset(long | known)

    @property
    def arity(self) -> int:
        """How many values the option takes: one, none for a switch, two for hints like
        `FNAME SCALE`. `<tensor name pattern>=<buffer type>,...` is one value."""
        words = self.hint.split()
        return len(words) if all(w.isidentifier() and w.isupper() for w in words) else 1


@dataclass(frozen=True)
class Version:
    build: int
    commit: str


def parse_version(text: str) -> Version | None:
    """Build number and commit from `--version` (both formats llama.cpp has used)."""
    m = _VERSION.search(text)
    if not m:
        return None
    return Version(int(m[1] or m[3]), m[2] or m[4])


@dataclass(frozen=True)
class _Layout:
    """The start of a line that lists an option, and the column of the help texts."""

    head: re.Pattern[str]
    column: int


_MAINLINE = _Layout(re.compile(r"(?!-----)-"), 40)
_OLDER = _Layout(re.compile(r" {2,10}-"), 34)
_OLDER_USAGE = re.compile(r"^usage: .*\[options\]\s*$", re.M)


def parse_options(text: str) -> tuple[HelpOption, ...]:
    """Every option listed in a help text, in order. () for any other text."""
    layout = _OLDER if _OLDER_USAGE.search(text) else _MAINLINE
    options: list[HelpOption] = []
    current: tuple[str, list[str]] | None = None  # (names and hint, help lines)

    def finish() -> None:
        if current is not None:
            option = _option(current[0], " ".join(current[1]))
            if option:
                options.append(option)

    for line in text.splitlines():
        if layout.head.match(line):
            finish()
            head, rest = _split_head(line, layout.column)
            current = (head, [rest])
        elif current is not None and line.startswith(" " * (layout.column - 4)):
            current[1].append(line.strip())
        else:
            finish()
            current = None
    finish()
    return tuple(options)


def _split_head(line: str, column: int) -> tuple[str, str]:
    """Names and hint, and the help that starts on the same line.

    A long head has its help on the next line; a short one is padded with spaces to `column`.
    """
    if len(line) > column and line[column - 2 : column] == "  ":
        return line[:column].strip(), line[column:].strip()
    parts = re.split(r"(?<=[^,\s]) {2,}", line.strip(), maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else ""


def _names_and_hint(head: str) -> tuple[tuple[str, ...], str]:
    """("-c", "--ctx-size"), "N" of `-c,    --ctx-size N`; of `-crs N, --similarity N` as well."""
    names, hint = [], ""
    for part in re.split(r", *(?=-)", head):
        m = _NAME.match(part)
        if m is None:
            return (), ""
        names.append(m[0])
        hint = part[m.end() :].removeprefix("(s)").strip() or hint
    return tuple(names), " ".join(hint.split())


def _option(head: str, help_text: str) -> HelpOption | None:
    names, hint = _names_and_hint(head)
    if not names:
        return None
    default = _DEFAULT.search(help_text)
    removed = help_text.strip().lower().startswith(_REMOVED)
    return HelpOption(
        names=names,
        hint=hint,
        default=default[1].strip("'\"") if default else None,
        removed=removed,
        advice=_ENV.sub("", help_text.strip()[len(_REMOVED) :]).strip(" .") if removed else "",
        help=help_text.strip(),
    )
