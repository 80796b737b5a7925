"""`specllama lint COMMAND|FILE`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.options import LlamaServer
from specllama.errors import UsageError
from specllama.storage import expand_user

if TYPE_CHECKING:
    from specllama.engine.capabilities import Capabilities
    from specllama.formats.env_files import Files
    from specllama.formats.lint import Builds
    from specllama.formats.lint_merge import LintResult
    from specllama.gguf import ModelInfo

_LARGEST = 1 << 20  # bytes of a file that people write by hand


def register(app: typer.Typer) -> None:
    app.command("lint")(lint)


def lint(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="A command in quotes (or after --), a file that holds commands, or - for stdin.",
            show_default=False,
        ),
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Print the text put right.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    build: Annotated[
        str | None, typer.Option("--build", metavar="N", help="The llama.cpp build it is for.")
    ] = None,
    llama_server: LlamaServer = None,
) -> None:
    """Find old, invented and useless flags of speculative decoding, and say what to write.

    Reads shell scripts, llama-swap and compose YAML, Kubernetes manifests, llama-server presets,
    systemd units, launchd property lists and Dockerfiles; starts nothing. Variables, arrays and
    branches of scripts, YAML anchors, macros and files of variables are followed. What several
    servers share is changed where it is right for all of them; else it is said why it is left.

    llama-server is taken to be the newest known build unless --build, --llama-server or the image
    says otherwise. Ends with 0 when nothing is found (with --fix: when nothing is left), with 1
    when something is, with 2 for bad input.
    """
    from specllama.cli.render import Printer
    from specllama.formats.lint import LintContext, fixed
    from specllama.formats.lint import lint as find

    name, text, kind = _input(what, ctx.obj or ())
    environ = {} if name else os.environ
    folder = Path(name).parent
    here = LintContext(_builds(build, llama_server), _models(folder), environ, _files(folder))
    found = _checked(lambda: find(text, kind, here), name)
    if not found:
        raise UsageError(
            f"{name}: no llama-server, vLLM or SGLang command in it"
            if name
            else "no llama-server, vLLM or SGLang command",
            "Give the whole command in quotes, or a file that holds one.",
        )
    corrected = fixed(text, kind, here) if fix else None
    left = find(corrected, kind, here) if corrected is not None else found
    if as_json:
        Printer().json(_json(name, found, corrected, left))
    else:
        printer = Printer(as_json=fix)  # the text alone on stdout
        _say(printer, name, found)
        if corrected is not None:
            if os.linesep == "\r\n":  # stdout makes them of \n there
                corrected = corrected.replace("\r\n", "\n")
            print(corrected, end="" if corrected.endswith("\n") else "\n")
    if any(linted.findings for linted in left):
        raise typer.Exit(1)


def _checked(run: Any, name: str) -> tuple[LintResult, ...]:
    try:
        found: tuple[LintResult, ...] = run()
    except UsageError as e:
        raise UsageError(f"{name}: {e.message}" if name else e.message, e.hint) from None
    return found


def _input(what: str, theirs: tuple[str, ...]) -> tuple[str, str, str]:
    """(the file's name, "" for a command; its text; of which kind it is)."""
    import shlex

    from specllama.formats.commands import SCRIPT

    if theirs and not what:
        return "", shlex.join(theirs), SCRIPT
    if not what or theirs:
        raise UsageError("lint takes one command or one file", "Put the command in quotes.")
    if what == "-":
        text = _decoded("stdin", sys.stdin.buffer.read(_LARGEST + 1))
        return "stdin", *_kind("stdin", text)
    path = Path(what)
    try:
        if path.is_file():
            with path.open("rb") as f:
                text = _decoded(what, f.read(_LARGEST + 1))
            return what, *_kind(what, text)
        if path.is_dir():
            raise UsageError(f"{what} is a folder", "Give the file.")
    except OSError as e:
        if not re.search(r"\s", what):
            raise UsageError(f"{what}: {e.strerror}") from None
    if not re.search(r"\s", what.strip()) and not re.search(r"llama-server|^-", what):
        raise UsageError(f"{what}: there is no such file", "A command needs quotes around it.")
    return "", what, SCRIPT


def _kind(name: str, text: str) -> tuple[str, str]:
    """(text, kind). A byte-order mark is nothing to most readers; a preset's router ends at it."""
    from specllama.formats.commands import PRESET, kind_of

    kind = kind_of(name, text.removeprefix("\ufeff"))
    return (text if kind == PRESET else text.removeprefix("\ufeff")), kind


def _decoded(name: str, raw: bytes) -> str:
    if len(raw) > _LARGEST:
        raise UsageError(f"{name} is larger than {_LARGEST >> 20} MiB: nobody wrote that by hand")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no UTF-8 text") from None
    if "\0" in text:
        raise UsageError(f"{name} is no text: it holds a NUL")
    return text


def _builds(build: str | None, llama_server: str | None) -> Builds:
    from specllama.formats import known_builds

    if build is not None and llama_server is not None:
        raise UsageError("--build and --llama-server both say what the command is for; give one")
    if llama_server is not None:
        asked = _asked(llama_server)
        return lambda _: asked
    if build is not None:
        number = re.fullmatch(r"b?(\d{4,6})", build)
        if number is None:
            raise UsageError(f"--build {build}: must be a number such as {known_builds.NEWEST}")
        return lambda _: known_builds.capabilities(int(number[1]))
    return lambda image: known_builds.capabilities(image or known_builds.NEWEST)


def _asked(llama_server: str) -> Capabilities:
    from specllama.engine.capabilities import read_capabilities
    from specllama.engine.errors import EngineError
    from specllama.engine.locate import locate

    caps = read_capabilities(locate(llama_server))
    if caps.problem:
        raise EngineError(f"{llama_server}: {caps.problem}", "Name the build with --build N.")
    return caps


def _models(folder: Path) -> Any:
    """Reads the model files that commands name, from here or from the file's folder."""
    from functools import cache

    from specllama.gguf import inspect

    @cache
    def read(name: str) -> ModelInfo | None:
        for path in (expand_user(name), folder / name):
            if os.path.isfile(path):
                return inspect(path)
        return None

    return read


def _files(folder: Path) -> Files:
    """Reads files of variables that a file names, as it would be read in its folder."""

    def read(name: str) -> str | None:
        try:
            with (folder / expand_user(name)).open("rb") as f:
                return f.read(_LARGEST).decode("utf-8")
        except (OSError, ValueError):
            return None

    return read


def _say(printer: Any, name: str, found: tuple[LintResult, ...]) -> None:
    n = sum(len(linted.findings) for linted in found)
    for linted in found:
        c = linted.command
        where = f"{name}:{c.line}: " if name else ""
        if linted.unseen:
            printer.say(f"{where}unknown here, so not looked at: {', '.join(linted.unseen)}")
        if not linted.findings:
            continue
        printer.say(f"{where}{c.program}{f' ({c.where})' if c.where else ''}", "bold")
        for f in linted.findings:
            printer.say(f"  {f.rule}: {f.words}")
            printer.say(f"    {f.happens}")
            printer.say(f"    fix: {f.fix}")
    commands = "1 command" if len(found) == 1 else f"{len(found)} commands"
    things = "nothing" if not n else "1 thing" if n == 1 else f"{n} things"
    printer.say(f"{things} found in {commands}")


def _json(
    name: str, found: tuple[LintResult, ...], corrected: str | None, left: tuple[LintResult, ...]
) -> dict[str, Any]:
    return {
        "file": name or None,
        "commands": [
            {
                "program": x.command.program,
                "where": x.command.where,
                "line": x.command.line,
                "not_looked_at": list(x.unseen),
                "findings": [
                    {
                        "rule": f.rule,
                        "effect": f.effect,
                        "words": f.words,
                        "happens": f.happens,
                        "fix": f.fix,
                        "fixable": bool(f.edits),
                    }
                    for f in x.findings
                ],
            }
            for x in found
        ],
        "fixed": corrected,
        "left": sum(len(x.findings) for x in left),
    }
