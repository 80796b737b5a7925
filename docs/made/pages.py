"""A page of Markdown for each command, and the list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from docs.made.commands import MADE, Command, Param

FOLDER = "docs/commands"


def pages(program: Command) -> Mapping[str, str]:
    """Path → text. A group and its commands share a page."""
    out = {f"{FOLDER}/README.md": _list(program)}
    for command in program.subcommands:
        body = "\n".join(line for c in command.all() for line in _command(c))
        out[f"{FOLDER}/{command.path[0]}.md"] = f"<!-- {MADE} -->\n\n{body}"
    return out


def _list(program: Command) -> str:
    rows = [f"- [`{c.words}`]({c.path[0]}.md): {_text(c.summary)}" for c in program.subcommands]
    return f"<!-- {MADE} -->\n\n# Commands\n\n{_text(program.help)}\n\n" + "\n".join(rows) + "\n"


def _command(c: Command) -> Iterator[str]:
    yield f"{'#' * len(c.path)} {c.words}"
    yield ""
    yield f"```text\n{c.usage}\n```"
    yield ""
    for text in (*c.help.split("\n\n"), *([c.epilog] if c.epilog else [])):
        yield _text(text)
        yield ""
    if c.subcommands:
        yield from (f"- `{s.words}`: {_text(s.summary)}" for s in c.subcommands)
        yield ""
    for title, params in (("argument", c.arguments), ("option", c.options)):
        if params and not (c.subcommands and title == "option"):
            yield f"| {title} | |"
            yield "|---|---|"
            yield from (f"| {_name(p)} | {_what(p)} |" for p in params)
            yield ""


def _name(p: Param) -> str:
    names = ", ".join(f"`{n}`" for n in p.names) if p.names else f"`{p.metavar}`"
    value = f" `{_cell(p.metavar)}`" if p.names and not p.flag else ""
    return _cell(names) + value if p.names else _cell(names)


def _what(p: Param) -> str:
    out = [_text(p.help)]
    if p.values and not all(v in p.help for v in p.values):
        own = ", and your own profiles" if p.profiles else ""
        out.append(f"Values: {', '.join(f'`{v}`' for v in p.values)}{own}.")
    out += ["May be repeated."] if p.many and "repeat" not in p.help else []
    out += [f"Default: `{p.default}`."] if p.default else []
    out += [f"Variable: `{p.env}`."] if p.env else []
    return _cell(" ".join(out))


def _text(text: str) -> str:
    """One line of Markdown: what is neither a link nor HTML."""
    return " ".join(text.split()).replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
