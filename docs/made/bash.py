"""Completions for bash 3.2 (macOS) and later."""

from __future__ import annotations

from docs.made.commands import MADE, Command, Param, with_value

_BASH = r"""
__specllama_profiles() {
    local file
    for file in "${XDG_CONFIG_HOME:-$HOME/.config}"/specllama/profiles/*.toml \
        "$HOME/Library/Application Support/specllama/profiles"/*.toml; do
        [[ -e $file ]] && { file=${file##*/}; printf '%s\n' "${file%.toml}"; }
    done
}

# Fixed values; with "," the last word of a list.
__specllama_values() {
    local before= word
    [[ $1 == , && $cur == *,* ]] && before=${cur%,*},
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen -P "$before" -W "$2" -- "${cur##*,}")
}

# gguf: models and folders; folders; any.
__specllama_files() {
    local file
    type compopt >/dev/null 2>&1 && compopt -o filenames 2>/dev/null
    while IFS= read -r file; do
        COMPREPLY+=("$file")
    done < <({
        compgen -d -- "$cur"
        [[ $1 == gguf ]] && compgen -f -X '!*.[gG][gG][uU][fF]' -- "$cur"
        [[ $1 == any ]] && compgen -f -- "$cur"
    } | sort -u)
}

_specllama() {
    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command= i word
    COMPREPLY=()
    # --option=value comes as three words, in bash 3 as one
    [[ $cur == = ]] && cur=
    [[ $option == = ]] && option=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $cur == --*=* ]] && { option=${cur%%=*}; cur=${cur#*=}; }
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == -- ]]; then
            __specllama_files any
            return
        fi
        case "$command $word" in
            @COMMANDS@) command="${command:+$command }$word" ;;
        esac
    done
    case "$command $option" in
@OPTIONS@
    esac
    case "$command" in
@ARGUMENTS@
    esac
}

# bash 3 has no compopt: there every word is completed as a file's name.
if type compopt >/dev/null 2>&1; then
    complete -F _specllama specllama
else
    complete -o filenames -F _specllama specllama
fi
"""


def bash(program: Command) -> str:
    """For bash 3.2 (macOS) and later."""
    commands, options, arguments = [], [], []
    for c in program.all():
        name = " ".join(c.path)
        commands += [f'"{" ".join(c.path[:-1])} {c.path[-1]}"'] if c.path else []
        for p in with_value(c):
            cases = "|".join(f'"{name} {n}"' for n in p.names)
            options.append(f"        {cases}) {_bash_value(p)}; return ;;")
        actions = [_bash_value(p) for p in c.arguments if p.files or p.values]
        if c.subcommands:
            actions.append(f'__specllama_values "" "{" ".join(s.path[-1] for s in c.subcommands)}"')
        words = " ".join(n for p in c.options for n in p.names)
        other = "; ".join(actions) or ":"
        arguments.append(
            f'        "{name}") if [[ $cur == -* ]]; then __specllama_values "" "{words}"; '
            f"else {other}; fi ;;"
        )
    text = _BASH.replace("@COMMANDS@", " | ".join(commands))
    text = text.replace("@OPTIONS@", "\n".join(options))
    return f"# {MADE}\n" + text.replace("@ARGUMENTS@", "\n".join(arguments))


def _bash_value(p: Param) -> str:
    words = " ".join(p.values) + (" $(__specllama_profiles)" if p.profiles else "")
    out = [f'__specllama_values "{"," if p.by_comma else ""}" "{words}"'] if p.values else []
    out += [f"__specllama_files {p.files}"] if p.files else []
    return "; ".join(out) or ":"
