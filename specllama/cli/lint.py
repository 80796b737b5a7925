"""`specllama lint COMMAND|FILE`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.options import AsJson, LlamaServer
from specllama.errors import UsageError
from specllama.storage import expand_user

if TYPE_CHECKING:
    from specllama.engine.capabilities import Capabilities
    from specllama.formats.env_files import Files
    from specllama.formats.lint import Builds
    from specllama.formats.lint_merge import LintResult
    from specllama.gguf import ModelInfo

_LARGEST = 1 << 20  # bytes; larger than any file written by hand


def register(app: typer.Typer) -> None:
    app.command("lint")(lint)


def lint(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="Command in quotes (or after --), file with commands, or - for stdin.",
            show_default=False,
        ),
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Print the corrected text.")] = False,
    build: Annotated[
        str | None,
        typer.Option("--build", metavar="N", help="llama.cpp build to check against, e.g. 11434."),
    ] = None,
    llama_server: LlamaServer = None,
    as_json: AsJson = False,
) -> None:
    """Check llama-server command lines for outdated or ineffective flags.

    Reads shell scripts, llama-swap and compose YAML, Kubernetes manifests, llama-server presets,
    systemd units, launchd property lists and Dockerfiles. Follows variables, arrays and branches
    in scripts, YAML anchors, macros and env files. Starts nothing.

    Checks against the newest known llama.cpp build unless --build, --llama-server or the image
    says otherwise. With --fix, text shared by several servers is changed only if that is right
    for all of them.

    Exits with 0 if there are no problems (with --fix: none left), with 1 if there are, with 2 for
    bad input.
    """
    from specllama.cli.render import Printer
    from specllama.formats.lint import LintContext, fixed, lint_text

    name, text, kind = _read_input(what, ctx.obj or ())
    environ = {} if name else os.environ
    folder = Path(name).parent
    here = LintContext(_builds(build, llama_server), _models(folder), environ, _files(folder))
    found = _checked(lambda: lint_text(text, kind, here), name)
    if not found:
        raise UsageError(
            f"{name}: no llama-server, vLLM or SGLang command found"
            if name
            else "no llama-server, vLLM or SGLang command found",
            "Give the whole command in quotes, or a file that contains one.",
        )
    corrected = fixed(text, kind, here) if fix else None
    left = lint_text(corrected, kind, here) if corrected is not None else found
    if as_json:
        Printer().json(_json(name, found, corrected, left))
    else:
        printer = Printer(as_json=fix)  # the text alone on stdout
        _print_findings(printer, name, found)
        if corrected is not None:
            if os.linesep == "\r\n":  # stdout converts \n to them there
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


def _read_input(what: str, after_dashes: tuple[str, ...]) -> tuple[str, str, str]:
    """(file name, "" for a command; text; kind)."""
    import shlex

    from specllama.formats.commands import SCRIPT

    if after_dashes and not what:
        return "", shlex.join(after_dashes), SCRIPT
    if not what or after_dashes:
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
            raise UsageError(f"{what} is a folder", "Name a file.")
    except OSError as e:
        if not re.search(r"\s", what):
            raise UsageError(f"{what}: {e.strerror}") from None
    if not re.search(r"\s", what.strip()) and not re.search(r"llama-server|^-", what):
        raise UsageError(f"{what}: no such file", "Put a command in quotes.")
    return "", what, SCRIPT


def _kind(name: str, text: str) -> tuple[str, str]:
    """(text, kind). Most readers skip a byte-order mark; the router fails at one in a preset."""
    from specllama.formats.commands import PRESET, kind_of

    kind = kind_of(name, text.removeprefix("\ufeff"))
    return (text if kind == PRESET else text.removeprefix("\ufeff")), kind


def _decoded(name: str, raw: bytes) -> str:
    if len(raw) > _LARGEST:
        raise UsageError(f"{name}: lint reads text files of up to {_LARGEST >> 20} MiB")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text") from None
    if "\0" in text:
        raise UsageError(f"{name} is not text: it contains a NUL")
    return text


def _builds(build: str | None, llama_server: str | None) -> Builds:
    from specllama.formats import known_builds

    if build is not None and llama_server is not None:
        raise UsageError("--build cannot be combined with --llama-server")
    if llama_server is not None:
        known = _capabilities_of(llama_server)
        return lambda _: known
    if build is not None:
        number = re.fullmatch(r"b?(\d{4,6})", build)
        if number is None:
            raise UsageError(f"--build {build}: not a known build, e.g. {known_builds.NEWEST}")
        return lambda _: known_builds.capabilities(int(number[1]))
    return lambda image: known_builds.capabilities(image or known_builds.NEWEST)


def _capabilities_of(llama_server: str) -> Capabilities:
    from specllama.engine.capabilities import read_capabilities
    from specllama.engine.errors import EngineError
    from specllama.engine.locate import locate

    caps = read_capabilities(locate(llama_server))
    if caps.problem:
        raise EngineError(f"{llama_server}: {caps.problem}", "Set the build with --build N.")
    return caps


def _models(folder: Path) -> Any:
    """Reads the model files named in commands, relative to here or to the file's folder."""
    from functools import cache

    from specllama.gguf import read_model

    @cache
    def read(name: str) -> ModelInfo | None:
        for path in (expand_user(name), folder / name):
            if os.path.isfile(path):
                return read_model(path)
        return None

    return read


def _files(folder: Path) -> Files:
    """Reads the env files named in a file, relative to its folder."""

    def read(name: str) -> str | None:
        try:
            with (folder / expand_user(name)).open("rb") as f:
                return f.read(_LARGEST).decode("utf-8")
        except (OSError, ValueError):
            return None

    return read


def _print_findings(printer: Any, name: str, found: tuple[LintResult, ...]) -> None:
    from specllama.cli.units import plural

    n = sum(len(linted.findings) for linted in found)
    for linted in found:
        c = linted.command
        where = f"{name}:{c.line}: " if name else ""
        if linted.unseen:
            printer.say(
                f"{where}not checked, as their values are unknown: {', '.join(linted.unseen)}"
            )
        if not linted.findings:
            continue
        printer.say(f"{where}{c.program}{f' ({c.where})' if c.where else ''}", "bold")
        for f in linted.findings:
            printer.say(f"  {f.rule}: {f.words}")
            printer.say(f"    {f.happens}")
            printer.say(f"    fix: {f.fix}")
    commands = plural(len(found), "command")
    printer.say(f"{plural(n, 'problem') if n else 'no problems'} found in {commands}")


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
