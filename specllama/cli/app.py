"""Runs one command line and turns every error into one or two lines.

Heavy imports stay inside the commands: `specllama --help` must start at once.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from specllama import __version__
from specllama.cli.commands import SUMMARIES, MainGroup, load_command
from specllama.cli.shown import shorten, wrapped
from specllama.cli.spellings import OWN_NAMES, PASSTHROUGH_COMMANDS, with_own_names
from specllama.cli.streams import lenient_output
from specllama.cli.wrong_values import wrong_value
from specllama.errors import SpecllamaError, UsageError
from specllama.stop import Stopped

_DEBUG = "--debug"
_CLOSED_PIPE = 128 + 13  # SIGPIPE

app = typer.Typer(
    name="specllama",
    cls=MainGroup,
    help="Serve GGUF models faster with llama.cpp's speculative decoding.",
    epilog="Arguments after -- go to llama-server and override specllama's choices. "
    "`specllama COMMAND --help` describes a command.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"specllama {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks.")] = False,
) -> None:
    pass


def run(argv: Sequence[str]) -> int:
    """Runs one command line. Returns the exit code.

    If output cannot be written, success becomes 1, or 141 if its reader has gone (what the shell
    reports for a program that SIGPIPE ends); except for commands that serve.
    """
    _ignore_impossible_sizes()
    with lenient_output() as (out, _):
        code = _run(argv)
        out.flush()
        if code or out.lost is None or out.optional:
            return code
        return (
            _print_error(f"output cannot be written ({out.why})", "", 1)
            if out.why
            else _CLOSED_PIPE
        )


def _run(argv: Sequence[str]) -> int:
    typed, server_arguments = split(argv)
    arguments = [w for w in typed if w != _DEBUG]  # it may stand anywhere
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        _check_words(arguments, server_arguments)
        arguments, server_arguments = with_own_names(arguments, server_arguments)
        if glued := next((w for w in arguments if _GLUED.match(w)), None):
            return _print_error(
                *_no_option(glued, (), arguments, " ".join(("specllama", *arguments[:1])))
            )
        code = _invoke(arguments or ["--help"], server_arguments)
    except Stopped as e:
        return _print_stopped(e.exit_code)
    except SystemExit as e:  # how shell completion exits
        return e.code if isinstance(e.code, int) else 0
    except Exception as e:
        if _DEBUG in typed:
            raise
        return _print_exception(e, typed, server_arguments)
    return code if isinstance(code, int) else 0


def _invoke(arguments: Sequence[str], server_arguments: Sequence[str]) -> object:
    options = {"obj": server_arguments, "standalone_mode": False}
    if arguments[0] in SUMMARIES:
        # Through the group typer would read the group's options too and import pydantic for them,
        # which takes longer than the rest of `COMMAND --help`.
        name, settings = f"specllama {arguments[0]}", app.info.context_settings or {}
        return load_command(arguments[0]).main(
            args=list(arguments[1:]), prog_name=name, **settings, **options
        )
    return app(args=arguments, prog_name="specllama", **options)


def _ignore_impossible_sizes() -> None:
    """Unsets a COLUMNS or LINES that no terminal has (0 under some CI systems)."""
    for name in ("COLUMNS", "LINES"):
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) < 5 and int(value) >= 20):
            os.environ.pop(name, None)


def _check_words(arguments: Sequence[str], server_arguments: Sequence[str]) -> None:
    """Raises UsageError for empty words (an unset shell variable) and words with a NUL, which no
    program can be given."""
    for before, word in zip(("specllama", *arguments), arguments, strict=False):
        name, _, value = word.partition("=")
        if not word or (word.startswith("--") and name != word and not value):
            option = name or (before if before.startswith("-") else "")
            raise UsageError(
                f"empty value for {option}" if option else f"empty argument after {before}",
                "Give a value or leave it out; a shell variable may be unset.",
            )
    if bad := next((w for w in (*arguments, *server_arguments) if "\0" in w), None):
        raise UsageError(f"{bad!r} contains a NUL character")


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(specllama's arguments, llama-server's), separated by the first `--`."""
    args = list(argv)
    if "--" not in args:
        return args, ()
    at = args.index("--")
    return args[:at], tuple(args[at + 1 :])


def _print_exception(
    e: Exception, words: Sequence[str] = (), server_arguments: Sequence[str] = ()
) -> int:
    if isinstance(e, SpecllamaError):
        return _print_error(e.message, e.hint, e.exit_code)
    if type(e).__name__ == "Abort":  # Ctrl-C, as click has it
        return _print_stopped(130)
    # typer's own (its exception classes moved between versions, so by what they offer)
    if hasattr(e, "format_message"):
        context = getattr(e, "ctx", None)
        command = context.command_path if context else "specllama"
        if type(e).__name__ == "NoSuchOption":
            near = getattr(e, "possibilities", None) or ()
            return _print_error(*_no_option(getattr(e, "option_name", ""), near, words, command))
        message = wrong_value(e, words) or _reworded(e.format_message())
        hint = _usage_hint(message, words, server_arguments)
        return _print_error(message, hint or f"See `{command} --help`.", 2)
    if isinstance(e, OSError) and e.strerror:  # of a file or folder no code checks
        what = f"{e.filename}: " if e.filename else ""
        return _print_error(f"{what}{e.strerror}", "`specllama --debug …` shows the traceback.", 1)
    return _print_error(
        f"unexpected {type(e).__name__}: {e}",
        "This is a bug in specllama; `specllama --debug …` shows the traceback.",
        1,
    )


def _usage_hint(message: str, words: Sequence[str], server_arguments: Sequence[str]) -> str:
    """What was probably meant; "" if nothing suggests it."""
    command = words[0] if words else ""
    if message.startswith("No such command") and (
        command.endswith(".gguf") or re.fullmatch(r"[\w.-]+/[\w.:-]+", command)
    ):
        return f"To serve it: `specllama serve {command}`."
    missing = message.startswith("Missing argument") and server_arguments
    if missing and command in PASSTHROUGH_COMMANDS:
        return f"It goes before --: `specllama {command} MODEL -- …`."
    if command == "lint" and message.startswith("unexpected argument"):
        return _QUOTES
    return ""


def _reworded(message: str) -> str:
    """Typer's message in our wording."""
    path = re.fullmatch(
        r"Invalid value for '(.*)': (?:path|file) '(.*)' is not (readable|writable)\.",
        message,
        re.I | re.S,
    )
    if path:
        done = "read" if path[3] == "readable" else "written"
        return f"{path[1]} {path[2]}: it cannot be {done} (Permission denied)"
    one = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message)
    return f"unexpected argument: {one[1]}" if one else message


_QUOTES = "Put the command in quotes, or after --: `specllama lint -- llama-server …`."
# llama-server's names for what specllama takes in another form.
_OTHER_FORMS = {
    **dict.fromkeys(("-m", "--model"), "MODEL as the first argument"),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), "OWNER/REPO[:QUANT] as the first argument"),
    "--slots": "--parallel N",
}


# click would split these: -cmoe into -c moe, -hf into -h and -f. -c takes numbers only. So clusters
# such as -qv are unsupported.
_GLUED = re.compile("-[chqv][a-z]")


def _no_option(
    name: str, near: Sequence[str], words: Sequence[str], command: str
) -> tuple[str, str, int]:
    """(message, hint, exit code) for an unknown option, as it was typed (-ngl, not -n)."""
    from difflib import get_close_matches

    short = name.startswith("-") and not name.startswith("--")
    written = next((w for w in words if short and w.startswith(name) and w != name), name)
    names = (w.partition("=")[0] for w in words)
    written = next((n for n in names if OWN_NAMES.get(n) == name), written)
    if command == "specllama lint" and len(words) > 2:
        return f"No such option: {written}", _QUOTES, 2
    if written in _OTHER_FORMS:
        return f"No such option: {written}", f"Use {_OTHER_FORMS[written]}.", 2
    nearest = get_close_matches(name, near, 1, 0.7)
    meant = f"Did you mean {nearest[0]}?" if nearest else ""
    hint = f"See `{command} --help`."
    if command.removeprefix("specllama ") in PASSTHROUGH_COMMANDS:
        hint = f"Options of llama-server go after --: `{command} MODEL -- {written} …`."
    return f"No such option: {written}", f"{meant} {hint}".strip(), 2


def _print_error(message: str, hint: str, exit_code: int) -> int:
    _print_wrapped(f"error: {shorten(message)}")
    if hint:
        _print_wrapped(f"  {shorten(hint)}")
    return exit_code


def _print_stopped(exit_code: int) -> int:
    """The user wanted it, so it is no error."""
    _print_wrapped("stopped")
    return exit_code


def _print_wrapped(line: str) -> None:
    """On stderr; broken at spaces where that is a terminal."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(line)
    print("\n".join(wrapped(line, width, indent=2)), file=sys.stderr)
