"""Wires the commands together and turns every error into one or two lines.

Heavy imports stay inside the commands: `specllama --help` must start at once.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import typer

from specllama import __version__
from specllama.cli.shown import cut
from specllama.cli.spellings import understood
from specllama.cli.streams import steady
from specllama.cli.wrong_values import wrong_value
from specllama.errors import SpecllamaError, UsageError
from specllama.stop import Stopped

app = typer.Typer(
    name="specllama",
    help="Serve GGUF models faster with llama.cpp's speculative decoding, and see that it works.",
    epilog="Arguments after -- go to llama-server and win over specllama's own.",
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
            "--version", help="Print the version and end.", callback=_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass


def run(argv: Sequence[str]) -> int:
    """Runs one command line. Returns the exit code.

    Output that cannot be written makes a success 1, except for a server's.
    """
    _wide_enough()
    with steady() as (out, _):
        code = _run(argv)
        out.flush()
        if code or out.lost is None or out.optional:
            return code
        return _print_error(f"output cannot be written ({out.why})", "", 1) if out.why else 1


def _run(argv: Sequence[str]) -> int:
    _register()
    ours, theirs = split(argv)
    try:
        _check_words(ours, theirs)
        ours, theirs = understood(ours, theirs)
        if glued := next((w for w in ours if _GLUED.match(w)), None):
            return _print_error(*_no_option(glued, (), ours))
        code = app(
            args=ours or ["--help"], obj=theirs, prog_name="specllama", standalone_mode=False
        )
    except Stopped as e:
        return _print_error("stopped", "", e.exit_code)
    except SystemExit as e:  # completion ends that way
        return e.code if isinstance(e.code, int) else 0
    except Exception as e:
        if "--debug" in ours:
            raise
        return _say_error(e, ours)
    return code if isinstance(code, int) else 0


@cache
def _register() -> None:
    from specllama.cli import (
        advise,
        demo,
        doctor,
        inspect,
        lint,
        memory,
        pick_draft,
        plan,
        probe,
        profiles,
        results,
        serve,
        watch,
    )

    commands = (
        *(serve, watch, plan, advise, probe, pick_draft, lint, memory),
        *(inspect, results, profiles, doctor, demo),
    )
    for command in commands:
        command.register(app)
    for registered in app.registered_commands:
        registered.help = _paragraphs(getattr(registered.callback, "__doc__", None) or "")


def _paragraphs(docstring: str) -> str:
    """Every paragraph as one line: typer keeps the docstring's own line ends, which a terminal
    of another width breaks once more."""
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(docstring).split("\n\n"))


def _wide_enough() -> None:
    """A COLUMNS or LINES that no terminal has (0 under some CI systems) is none."""
    for name in ("COLUMNS", "LINES"):
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) < 5 and int(value) >= 20):
            os.environ.pop(name, None)


def _check_words(ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Words that are right nowhere: empty ones (an unset variable of the shell), and those
    with a NUL, which no program can be given."""
    for before, word in zip(("specllama", *ours), ours, strict=False):
        name, _, value = word.partition("=")
        if not word or (word.startswith("--") and name != word and not value):
            where = name or before
            raise UsageError(
                f"an empty text after {where}" if where != "specllama" else "an empty argument",
                "Give a value, or leave it out; a variable of your shell may be unset.",
            )
    if bad := next((w for w in (*ours, *theirs) if "\0" in w), None):
        raise UsageError(f"{bad!r} holds a NUL, which no program can be given")


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(specllama's arguments, llama-server's): separated by the first `--`."""
    args = list(argv)
    if "--" not in args:
        return args, ()
    at = args.index("--")
    return args[:at], tuple(args[at + 1 :])


def _say_error(e: Exception, words: Sequence[str] = ()) -> int:
    if isinstance(e, SpecllamaError):
        return _print_error(e.message, e.hint, e.exit_code)
    if type(e).__name__ == "Abort":  # Ctrl-C, as click has it
        return _print_error("stopped", "", 130)
    # typer's own (its exception classes moved between versions, so by what they offer)
    if hasattr(e, "format_message"):
        if type(e).__name__ == "NoSuchOption":
            near = getattr(e, "possibilities", None) or ()
            return _print_error(*_no_option(getattr(e, "option_name", ""), near, words))
        context = getattr(e, "ctx", None)
        command = context.command_path if context else "specllama"
        said = wrong_value(e) or _in_words(e.format_message())
        return _print_error(said, f"See `{command} --help`.", 2)
    if isinstance(e, OSError) and e.strerror:  # of a file or folder nobody thought of
        what = f"{e.filename}: " if e.filename else ""
        return _print_error(f"{what}{e.strerror}", "`specllama --debug …` shows where.", 1)
    return _print_error(
        f"unexpected {type(e).__name__}: {e}",
        "This is a bug in specllama; `specllama --debug …` shows where.",
        1,
    )


def _in_words(message: str) -> str:
    """Typer's message as ours are worded."""
    for theirs, ours in (("Got unexpected extra argument(s)", "too many arguments:"),):
        message = message.replace(theirs, ours)
    return message


# What llama-server calls what specllama has an option of its own for, and takes otherwise.
_OURS = {
    **dict.fromkeys(("-m", "--model"), "the model as the first argument"),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), "OWNER/REPO[:QUANT] as the first argument"),
    "--slots": "--parallel N",
}


# What click would take apart: -cmoe into -c moe, -hf into -h and -f. -c takes numbers only.
_GLUED = re.compile("-[ch][a-z]")


def _no_option(name: str, near: Sequence[str], words: Sequence[str]) -> tuple[str, str, int]:
    """An option that is not ours, as the user wrote it (-ngl is no -n to them), with where
    llama-server's own belong."""
    short = name.startswith("-") and not name.startswith("--")
    written = next((w for w in words if short and w.startswith(name) and w != name), name)
    if written in _OURS:
        return f"No such option: {written}", f"It is {_OURS[written]} here.", 2
    meant = f"Did you mean {sorted(near)[0]}?" if near else ""
    hint = f"llama-server's own options come after --: `specllama serve MODEL -- {written} …`."
    return f"No such option: {written}", f"{meant} {hint}".strip(), 2


def _print_error(message: str, hint: str, exit_code: int) -> int:
    print(f"error: {cut(message)}", file=sys.stderr)
    if hint:
        print(f"  {cut(hint)}", file=sys.stderr)
    return exit_code
