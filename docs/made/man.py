"""The man page: specllama(1)."""

from __future__ import annotations

from collections.abc import Iterator

from docs.made.commands import MADE, Command, Param
from specllama import __version__

_STATUS = (
    ("0", "Success, including Ctrl-C while serving."),
    ("1", "The run failed."),
    ("2", "Invalid usage or input."),
    ("3", "Speculation is off under serve --strict."),
    ("128 + N", "Stopped by signal N."),
)
_FILES = (
    ("~/.config/specllama/config.toml", "llama_server, model_dirs."),
    ("~/.config/specllama/profiles/", "Your workload profiles."),
    ("~/.cache/specllama/", "Cached model and engine data; safe to delete."),
    ("~/.local/state/specllama/", "Server logs."),
)
_VARIABLES = (
    ("SPECLLAMA_LLAMA_SERVER", "The llama-server to run, or embedded."),
    ("SPECLLAMA_API_KEY", "API key that clients must send."),
    ("HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE", "As in the Hugging Face tools."),
    ("LLAMA_ARG_*", "llama-server options; they count like arguments after --."),
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
