"""Completions for fish 3 and later."""

from __future__ import annotations

from docs.made.commands import ANY, FOLDERS, GGUF, MADE, Command, Param

_FISH = r"""
function __specllama_profiles
    set -l config ~/.config
    test -n "$XDG_CONFIG_HOME"; and set config $XDG_CONFIG_HOME
    for file in $config/specllama/profiles/*.toml ~/Library/Application\ Support/specllama/profiles/*.toml
        basename $file .toml
    end
end

# The words so far that are commands, as "profiles new"; not after --.
function __specllama_at
    set -l words (commandline -opc)
    contains -- -- $words; and return 1
    set -l command
    for word in $words[2..-1]
        contains -- (string join ' ' -- $command $word) @COMMANDS@; and set -a command $word
    end
    test "$command" = "$argv"
end

# Values of a list by comma.
function __specllama_list
    set -l before (commandline -ct | string replace -r '^--[^=]*=' '' | string match -r '.*,')
    for value in $argv
        echo "$before$value"
    end
end

function __specllama_gguf
    set -l word (commandline -ct | string replace -r '^--[^=]*=' '')
    __fish_complete_path $word | string match -ri '^.*(?:/|\.gguf)(?:\t.*)?$'
end

function __specllama_after_dashes
    contains -- -- (commandline -opc)
end

complete -c specllama -f
complete -c specllama -n __specllama_after_dashes -F
"""


def fish(program: Command) -> str:
    """For fish 3 and later."""
    names = " ".join(f"'{' '.join(c.path)}'" for c in program.all() if c.path)
    lines = []
    for c in program.all():
        at = f"complete -c specllama -n '__specllama_at {' '.join(c.path)}'"
        lines += [f"{at} -a {s.path[-1]} -d {_fish_text(s.summary)}" for s in c.subcommands]
        for p in c.arguments:
            lines += [f"{at} {v}" for v in _fish_values(p)]
        for p in c.options:
            text = f" -d {_fish_text(p.help)}" if p.help else ""
            takes = " ".join(_fish_values(p)) if not p.flag else ""
            needs = "" if p.flag else " -x" if not takes.startswith("-r") else ""
            lines.append(f"{at}{_fish_names(p)}{needs}{' ' + takes if takes else ''}{text}")
    return f"# {MADE}\n{_FISH.replace('@COMMANDS@', names)}\n" + "\n".join(lines) + "\n"


def _fish_names(p: Param) -> str:
    out = ""
    for name in p.names:
        bare = name.lstrip("-")
        kind = "-l" if name.startswith("--") else "-s" if len(bare) == 1 else "-o"
        out += f" {kind} {bare}"
    return out


def _fish_values(p: Param) -> list[str]:
    words = " ".join(p.values) + (" (__specllama_profiles)" if p.profiles else "")
    values = f"(__specllama_list {words})" if p.by_comma else words
    if p.files == GGUF:
        values = f"{values} (__specllama_gguf)".strip()
    if p.files == FOLDERS:
        values = f"{values} (__fish_complete_directories)".strip()
    flags = ["-r -F"] if p.files == ANY else []
    return (
        [" ".join([*flags, *([f"-a {_fish_text(values)}"] if values else [])])]
        if (flags or values)
        else []
    )


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
