"""Completions for zsh: a function for $fpath, which may be sourced after compinit as well."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from docs.made.commands import ANY, FOLDERS, GGUF, MADE, Command, Param

_ZSH = r"""
__specllama_profiles() {
  local -a own
  own=("${XDG_CONFIG_HOME:-$HOME/.config}"/specllama/profiles/*.toml(N:t:r)
    "$HOME/Library/Application Support/specllama/profiles"/*.toml(N:t:r))
  print -r -- $own
}

# Fixed values; with "," the last word of a list.
__specllama_values() {
  [[ $1 == , ]] && compset -P '*,'
  shift
  compadd -- "$@"
}
"""


def zsh(program: Command) -> str:
    """A function for $fpath; runs as well when it is sourced after compinit."""
    functions = "\n".join(_zsh_function(c) for c in program.all())
    return (
        f"#compdef specllama\n# {MADE}\n{_ZSH}\n{functions}\n"
        'if [ "$funcstack[1]" = "_specllama" ]; then\n  _specllama "$@"\n'
        "else\n  compdef _specllama specllama\nfi\n"
    )


def _zsh_function(c: Command) -> str:
    name = _zsh_name(c)
    specs = list(chain.from_iterable(_zsh_option(p) for p in c.options))
    if not c.subcommands:
        each = [
            f"'{'*' if p.many else ''}:{_zsh_text(p.metavar)}:{_zsh_value(p)}'" for p in c.arguments
        ]
        lines = " \\\n    ".join([*specs, *each, "'*:file:_files'"])
        return f"{name}() {{\n  _arguments -s -S \\\n    {lines}\n}}\n"
    lines = " \\\n    ".join([*specs, "'1:command:->command'", "'*::argument:->argument'"])
    names = "\n".join(f"        '{s.path[-1]}:{_zsh_text(s.summary)}'" for s in c.subcommands)
    calls = "\n".join(f"        {s.path[-1]}) {_zsh_name(s)} ;;" for s in c.subcommands)
    return (
        f"{name}() {{\n  local curcontext=$curcontext state line\n  local -a commands\n"
        f"  _arguments -C \\\n    {lines}\n  case $state in\n    command)\n      commands=(\n{names}\n"
        f"      )\n      _describe command commands ;;\n    argument)\n      case $line[1] in\n{calls}\n"
        "      esac ;;\n  esac\n}\n"
    )


def _zsh_name(c: Command) -> str:
    # the helpers above have two underscores: a command may be called profiles
    return "_" + "_".join(("specllama", *c.path)).replace("-", "_")


def _zsh_option(p: Param) -> Iterator[str]:
    """One spec per name; one of an option excludes the others of it."""
    value = "" if p.flag else f":{_zsh_text(p.metavar)}:{_zsh_value(p)}"
    for name in p.names:
        apart = "'*'" if p.many else f"'({' '.join(p.names)})'"
        end = "=" if not p.flag and name.startswith("--") else ""
        yield f"{apart}'{name}{end}[{_zsh_text(p.help)}]{value}'"


def _zsh_value(p: Param) -> str:
    own = " ${=$(__specllama_profiles)}" if p.profiles else ""
    files = {GGUF: '_files -g "*.(#i)gguf(-.)"', ANY: "_files", FOLDERS: "_files -/", "": ""}[
        p.files
    ]
    values = f'__specllama_values "{"," if p.by_comma else ""}" {" ".join(p.values)}{own}'
    if p.values and files:
        return "{ " + f"{values}; {files}" + " }"
    if p.values:
        return "{ " + values + " }"
    return files or " "


def _zsh_text(text: str) -> str:
    """Between single quotes, in brackets, before a colon."""
    out = text.replace("\\", "\\\\").replace("'", "'\\''")
    return out.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
