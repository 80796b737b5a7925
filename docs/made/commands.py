"""What the command line takes, read from the CLI itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from specllama.cli import app as cli
from specllama.resources import profiles_dir

MADE = "Made by `python -m docs.made` from the command line itself: not to be edited."
GGUF, ANY, FOLDERS = "gguf", "any", "folders"
_MODELS = ("model", "target", "draft")  # parameters that are model files, whatever their type


@dataclass(frozen=True)
class Param:
    """An option, or an argument where `names` is empty. `files`: which files it takes, "" = none.
    `by_comma`: several values in one word. `profiles`: the values are those of the program, and
    the user's own profiles are to be added."""

    name: str
    names: tuple[str, ...]
    metavar: str
    help: str
    flag: bool = False
    files: str = ""
    values: tuple[str, ...] = ()
    by_comma: bool = False
    profiles: bool = False
    many: bool = False
    required: bool = False
    default: str = ""
    env: str = ""


@dataclass(frozen=True)
class Command:
    """`path`: its words after `specllama`, () for the program itself. `subcommands` of a group."""

    path: tuple[str, ...]
    help: str
    epilog: str
    params: tuple[Param, ...]
    subcommands: tuple[Command, ...] = ()

    @property
    def words(self) -> str:
        return " ".join(("specllama", *self.path))

    @property
    def options(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.names)

    @property
    def arguments(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if not p.names)

    @property
    def summary(self) -> str:
        """The first sentence of its help, without its stop."""
        return " ".join(self.help.split("\n\n")[0].split()).removesuffix(".")

    @property
    def usage(self) -> str:
        words = [self.words, *(_placed(p) for p in self.arguments)]
        words += ["COMMAND"] if self.subcommands else []
        words += ["[OPTIONS]"] if self.options else []
        words += ["[-- ARGUMENTS]"] if "--" in self.epilog else []
        return " ".join(words)

    def all(self) -> Iterator[Command]:
        """The command and those below it."""
        yield self
        for sub in self.subcommands:
            yield from sub.all()


def with_value(command: Command) -> tuple[Param, ...]:
    """The options that take a value."""
    return tuple(p for p in command.options if not p.flag)


def program() -> Command:
    """The whole command line, as it is registered."""
    cli._register()
    return _command(typer.main.get_command(cli.app), ())


def _command(command: Any, path: tuple[str, ...], parent: Any = None) -> Command:
    name = path[-1] if path else "specllama"
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    hints = _hints(command.callback)
    subs = getattr(command, "commands", {})
    return Command(
        path=path,
        help=inspect.cleandoc(command.help or ""),
        epilog=command.epilog or "",
        params=tuple(
            _param(p, context, hints.get(p.name))
            for p in command.get_params(context)
            if not getattr(p, "hidden", False)
        ),
        subcommands=tuple(
            _command(c, (*path, n), context) for n, c in subs.items() if not c.hidden
        ),
    )


def _hints(callback: Any) -> dict[str, Any]:
    return typing.get_type_hints(inspect.unwrap(callback)) if callback is not None else {}


def _long(option: str) -> bool:
    """Short ones come first; otherwise they stay as they were declared."""
    return option.startswith("--")


def _param(p: Any, context: Any, hint: Any) -> Param:
    kinds = _kinds(hint)
    names = tuple(sorted(p.opts, key=_long)) if p.opts[0].startswith("-") else ()
    values = tuple(item.value for item in p.shell_complete(context, "") if item.value)
    profiles = "chat" in values and "code" in values
    if profiles:
        values = tuple(v for v in values if (profiles_dir() / f"{v}.toml").is_file())
    by_comma = bool(values) and bool(p.shell_complete(context, f"{values[0]},"))
    flag = bool(getattr(p, "is_flag", False))
    return Param(
        name=p.name,
        names=names,
        metavar="" if flag else _metavar(p, kinds, values, by_comma),
        help=" ".join((p.help or "").split()),
        flag=flag,
        files=_files(p, kinds),
        values=values,
        by_comma=by_comma,
        profiles=profiles,
        many=bool(p.multiple) or p.nargs == -1,
        required=bool(p.required),
        default=_default(p.default),
        env=p.envvar if isinstance(p.envvar, str) else "",
    )


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of `Path | None`, `list[str]`, `Annotated[int, …]`, each by itself."""
    args = typing.get_args(hint)
    return tuple(k for a in args for k in _kinds(a)) if args else (hint,)


def _metavar(p: Any, kinds: tuple[Any, ...], values: tuple[str, ...], by_comma: bool) -> str:
    if p.metavar:
        return str(p.metavar).strip("[]")
    if int in kinds:
        return "N"
    if float in kinds:
        return "X"
    if files := _files(p, kinds):
        return "FOLDER" if files == FOLDERS else "FILE"
    if values:
        return "VALUE[,VALUE]" if by_comma else "VALUE"
    return "TEXT"


def _files(p: Any, kinds: tuple[Any, ...]) -> str:
    text = p.help or ""
    if p.name in _MODELS or "GGUF file" in text:
        return GGUF
    if Path in kinds:
        return FOLDERS if text.lower().startswith("a folder") else ANY
    return ANY if "FILE" in (p.metavar or "") or "binary" in text else ""


def _default(value: Any) -> str:
    if value is None or value is False or value in ("", [], ()):
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _placed(p: Param) -> str:
    text = f"{p.metavar}..." if p.many else p.metavar
    return text if p.required else f"[{text}]"
