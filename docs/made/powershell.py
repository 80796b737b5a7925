"""Completions for PowerShell 5 and later: to be dot-sourced in $PROFILE."""

from __future__ import annotations

from docs.made.commands import MADE, Command, Param, with_value

_POWERSHELL = r"""
Register-ArgumentCompleter -Native -CommandName specllama -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    # Of each command: its subcommands, options without a value, and what takes one: the values,
    # whether several by comma, which files, and whether the user's profiles belong to them.
    $commands = @{
@COMMANDS@
    }

    function Get-Files($word, $kind) {
        Get-ChildItem -Path "$word*" -ErrorAction SilentlyContinue | Where-Object {
            $_.PSIsContainer -or $kind -eq 'any' -or ($kind -eq 'gguf' -and $_.Extension -eq '.gguf')
        } | ForEach-Object {
            $parent = $word -replace '[^\\/]*$', ''
            $path = $parent + $_.Name
            if ($path -match '[^\w./\\:~+-]') { "'" + $path.Replace("'", "''") + "'" } else { $path }
        }
    }

    function Get-Values($takes, $word) {
        $values = @($takes.values)
        if ($takes.profiles) {
            $folders = @($env:LOCALAPPDATA, $env:XDG_CONFIG_HOME, "$HOME/.config",
                "$HOME/Library/Application Support") | Where-Object { $_ }
            $values += @($folders | ForEach-Object {
                Get-ChildItem -Path "$_/specllama/profiles/*.toml" -ErrorAction SilentlyContinue
            } | ForEach-Object { $_.BaseName })
        }
        $before = ''
        if ($takes.list -and $word -match '^(.*,)([^,]*)$') { $before, $word = $Matches[1], $Matches[2] }
        $values | Where-Object { $_ -and $_ -like "$word*" } | ForEach-Object { "$before$_" }
        if ($takes.files) { Get-Files $word $takes.files }
    }

    $words = @($commandAst.CommandElements | Select-Object -Skip 1 | Where-Object {
        $_.Extent.EndOffset -lt $cursorPosition
    } | ForEach-Object { $_.ToString() })
    $command = ''
    foreach ($word in $words) {
        $next = "$command $word".Trim()
        if ($commands.ContainsKey($next)) { $command = $next }
    }
    $here = $commands[$command]
    $last = if ($words.Count) { $words[-1] } else { '' }
    # A quote that is still open, and the option of --option=value, belong to the word.
    $word, $before = $wordToComplete.Trim("'", '"'), ''
    if ($word -match '^(--[^=]+)=(.*)$') {
        $last, $word, $before = $Matches[1], $Matches[2].Trim("'", '"'), "$($Matches[1])="
    }
    $found = if ($words -contains '--') { Get-Files $word 'any' }
        elseif ($here.options.ContainsKey($last)) { Get-Values $here.options[$last] $word }
        else {
            @($here.commands) + @($here.flags) + @($here.options.Keys) |
                Where-Object { $_ -like "$word*" } | Sort-Object
            if ($word -notlike '-*') {
                foreach ($takes in $here.arguments) { Get-Values $takes $word }
            }
        }
    $found | Where-Object { $_ } | ForEach-Object {
        [System.Management.Automation.CompletionResult]::new("$before$_", $_, 'ParameterValue', $_)
    }
}
"""


def powershell(program: Command) -> str:
    """For PowerShell 5 and later: to be dot-sourced in $PROFILE."""
    lines = []
    for c in program.all():
        flags = [n for p in c.options if p.flag for n in p.names]
        options = "; ".join(f"'{n}' = {_ps_takes(p)}" for p in with_value(c) for n in p.names)
        lines.append(
            f"        '{' '.join(c.path)}' = @{{\n"
            f"            commands = {_ps_list([s.path[-1] for s in c.subcommands])}\n"
            f"            flags = {_ps_list(flags)}\n"
            f"            options = @{{ {options} }}\n"
            f"            arguments = @({', '.join(_ps_takes(p) for p in c.arguments)})\n"
            "        }"
        )
    return f"# {MADE}\n" + _POWERSHELL.replace("@COMMANDS@", "\n".join(lines))


def _ps_takes(p: Param) -> str:
    out = [f"values = {_ps_list(list(p.values))}", f"files = '{p.files}'"]
    out += ["list = $true"] if p.by_comma else []
    out += ["profiles = $true"] if p.profiles else []
    return "@{ " + "; ".join(out) + " }"


def _ps_list(words: list[str]) -> str:
    return f"@({', '.join(repr(w) for w in words)})"
