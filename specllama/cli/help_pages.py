"""The page behind `--help`: options in sections, wrapped at spaces, readable at 80 columns.

Plain text, with bold headings on a terminal: rich takes longer to import than the rest of --help.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

# The sections of a page, in this order.
MODEL, DRAFT, MEMORY, TUNING = "Model", "Draft", "Memory", "Tuning"
SERVER, RUNNING_SERVERS, OTHER_ENGINES = "Server", "Running servers", "Other engines"
OUTPUT = "Output"
_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_ORDER = (
    *(_ARGUMENTS, _OPTIONS, MODEL, DRAFT, MEMORY, TUNING, SERVER),
    *(RUNNING_SERVERS, OTHER_ENGINES, OUTPUT),
)

_LABEL = 26  # columns; a longer one has a line of its own
_WIDEST = 100  # columns of text that are easy to read
_TIE = "\N{NO-BREAK SPACE}"


class HelpCommand(TyperCommand):
    """A command with such a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Not through click: it writes UTF-8 where the encoding is ASCII. And it adds a newline.
        print(page(self, ctx).rstrip(), end="")


class HelpGroup(TyperGroup):
    """A group of commands with such a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Not through click: it writes UTF-8 where the encoding is ASCII. And it adds a newline.
        print(page(self, ctx).rstrip(), end="")

    def summaries(self) -> Mapping[str, str]:
        """Name → the first sentence of its help, without a full stop, of each command."""
        return {name: summary(command.help or "") for name, command in self.commands.items()}


def paragraphs(docstring: str) -> str:
    """The text with each paragraph on one line: a docstring has line ends of its own."""
    return "\n\n".join(" ".join(p.split()) for p in docstring.strip().split("\n\n"))


def summary(text: str) -> str:
    """The first paragraph, without its full stop."""
    return " ".join(text.split("\n\n")[0].split()).removesuffix(".")


def page(command: Any, ctx: typer.Context) -> str:
    """All of it."""
    width = max(40, min(_WIDEST, shutil.get_terminal_size().columns))
    params = [p for p in command.get_params(ctx) if not getattr(p, "hidden", False)]
    sections = {t: [(_label(p), _text(p)) for p in ps] for t, ps in _sections(params).items()}
    longest = max(len(label) for rows in sections.values() for label, _ in rows)
    lines = list(_wrapped(command.help or "", width))
    lines += ["", f"{_heading('Usage:')} {usage(command, ctx.command_path, params)}"]
    if isinstance(command, HelpGroup):
        commands = command.summaries()
        lines += _section("Commands", list(commands.items()), max(map(len, commands)) + 4, width)
    for title, rows in sections.items():
        lines += _section(title, rows, min(_LABEL, longest) + 4, width)
    if command.epilog:
        lines += ["", *_wrapped(command.epilog, width)]
    return "\n".join(lines) + "\n"


def usage(command: Any, path: str, params: Any) -> str:
    """`specllama serve MODEL [OPTIONS] [-- ARGUMENTS]`."""
    arguments = [p for p in params if p.param_type_name == "argument"]
    words = [path, *(m if p.required else f"[{m}]" for p in arguments if (m := metavar(p)))]
    words += ["COMMAND"] if isinstance(command, TyperGroup) else []
    words += ["[OPTIONS]"] if len(params) > len(arguments) else []
    return " ".join(words + (["[-- ARGUMENTS]"] if "--" in (command.epilog or "") else []))


def metavar(param: Any) -> str:
    """What a value is called: given, or the values of an enum; "" for a flag."""
    if getattr(param, "is_flag", False):
        return ""
    if param.metavar:
        return str(re.sub(r"^\[(.*)\]$", r"\1", param.metavar))
    if values := choices(param):
        return f"{{{'|'.join(values)}}}"
    return str(param.name).upper()


def choices(param: Any) -> tuple[str, ...]:
    """The values of a parameter whose type is an enum or a Literal; () for any other."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def default(param: Any) -> str:
    """The default as one would type it; "" where there is none to show."""
    value = param.default
    if value is None or value is False or value in ("", [], ()):
        return ""
    if value is True:
        return "on"
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sections(params: list[Any]) -> Mapping[str, list[Any]]:
    """Title → its parameters. A command with options outside the panels has one list of options;
    --help comes last."""
    options = [p for p in params if p.param_type_name == "option"]
    small = any(p.rich_help_panel is None and p.name != "help" for p in options)
    found: dict[str, list[Any]] = {}
    for p in params:
        kind = _ARGUMENTS if p.param_type_name == "argument" else _OPTIONS
        panel = kind if small or not p.rich_help_panel else p.rich_help_panel
        found.setdefault(panel, []).append(p)
    last = max(_ORDER.index(title) for title in found if title != _ARGUMENTS)
    helps = [p for p in found[_OPTIONS] if p.name == "help"]
    found[_OPTIONS] = [p for p in found[_OPTIONS] if p.name != "help"]
    found[_ORDER[last]] += helps
    return {title: found[title] for title in _ORDER if found.get(title)}


def _label(param: Any) -> str:
    names = sorted((*param.opts, *param.secondary_opts), key=lambda name: name.startswith("--"))
    if param.param_type_name == "argument":
        return metavar(param)
    indent = "    " if names[0].startswith("--") else ""
    return f"{indent}{', '.join(names)} {metavar(param)}".rstrip()


def _text(param: Any) -> str:
    parts = [param.help or ""]
    if value := default(param):
        parts.append(f"[default:{_TIE}{value}]")
    if isinstance(param.envvar, str):
        parts.append(f"[env:{_TIE}{param.envvar}]")
    return " ".join(parts)


def _section(title: str, rows: list[tuple[str, str]], column: int, width: int) -> Iterator[str]:
    """`column`: where the texts begin."""
    yield ""
    yield _heading(f"{title}:")
    for label, text in rows:
        lines = list(_wrapped(text, width - column))
        if len(label) > column - 4:
            yield f"  {label}"
        else:
            yield f"  {label:{column - 2}}{lines.pop(0) if lines else ''}".rstrip()
        yield from (f"{'':{column}}{line}" for line in lines)


def _heading(text: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stdout.isatty() else typer.style(text, bold=True)


def _wrapped(text: str, width: int) -> Iterator[str]:
    for n, part in enumerate(text.split("\n\n")):
        if n:
            yield ""
        for line in textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False):
            yield line.replace(_TIE, " ")
