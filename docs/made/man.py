"""The man page: specllama(1)."""

from __future__ import annotations

from collections.abc import Iterator

from docs.made.commands import MADE, Command, Param
from specllama import __version__

_STATUS = (
    ("0", "It worked; Ctrl-C while serving too."),
    ("1", "A run failed."),
    ("2", "Wrong usage or input."),
    ("3", "Speculation is off, and --strict was given."),
    ("128 + N", "Ended by signal N."),
)
_FILES = (
    ("~/.config/specllama/config.toml", "llama_server, model_dirs."),
    ("~/.config/specllama/profiles/", "Workload profiles of your own."),
    ("~/.cache/specllama/", "What was read from models and engines; may be removed."),
    ("~/.local/state/specllama/", "Logs of servers."),
)
_VARIABLES = (
    ("SPECLLAMA_LLAMA_SERVER", "The llama-server to run, or embedded."),
    ("SPECLLAMA_API_KEY", "The key that clients must send."),
    ("HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE", "As the Hugging Face Hub's own tools."),
    ("LLAMA_ARG_*", "llama-server's options; they count as arguments after --."),
    ("NO_COLOR", "No colours."),
)


def man(program: Command) -> str:
    """In man(7)'s macros."""
    lines = [
        f'.\\" {MADE}',
        f'.TH SPECLLAMA 1 "" "specllama {__version__}" "User Commands"',
        ".SH NAME",
        f"specllama \\- {_lower(_roff(program.summary))}",
        ".SH SYNOPSIS",
        *(f".br\n{_roff(c.usage)}" for c in program.all() if not c.subcommands),
        ".SH DESCRIPTION",
        _roff(program.help),
        _roff(program.epilog),
        ".SH COMMANDS",
    ]
    for c in program.all():
        if c.path and not c.subcommands:
            lines += _command(c)
    lines += [".SH OPTIONS", *(line for p in program.options for line in _param(p))]
    for title, rows in (
        ("EXIT STATUS", _STATUS),
        ("ENVIRONMENT", _VARIABLES),
        ("FILES", _FILES),
    ):
        lines.append(f".SH {title}")
        lines += [f".TP\n.B {_roff(name)}\n{_roff(text)}" for name, text in rows]
    return "\n".join(lines) + "\n"


def _command(c: Command) -> Iterator[str]:
    yield f".SS {_roff(c.usage)}"
    for n, text in enumerate(c.help.split("\n\n")):
        yield (".PP\n" if n else "") + _roff(text)
    for p in (*c.arguments, *(o for o in c.options if o.name != "help")):
        yield from _param(p)
    if c.epilog:
        yield f".PP\n{_roff(c.epilog)}"


def _param(p: Param) -> Iterator[str]:
    yield ".TP"
    name = ", ".join(p.names) if p.names else p.metavar
    value = f" \\fI{_roff(p.metavar)}\\fR" if p.names and not p.flag else ""
    yield f"\\fB{_roff(name)}\\fR{value}"
    out = [p.help]
    if p.values and not all(v in p.help for v in p.values):
        out.append(f"Values: {', '.join(p.values)}.")
    out += [f"Default: {p.default}."] if p.default else []
    out += [f"Variable: {p.env}."] if p.env else []
    yield _roff(" ".join(out))


def _roff(text: str) -> str:
    """Text that is only text: no macros, no escapes, hyphens that can be copied."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
