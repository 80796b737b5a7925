"""Shell completion: values from the CLI, and the scripts with these values, run in the shells."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tree_sitter

from docs.made.commands import program
from specllama.cli import complete
from specllama.planning.choose import parse_methods
from specllama.workloads import names

SCRIPTS = Path(__file__).parent.parent / "completions"
# Typed text, and everything that TAB offers for its last word.
CASES = {
    "serv": ["serve"],
    "serve --workload crea": ["creative"],
    "serve --workload=crea": ["creative"],
    "serve -w code,crea": ["code,creative"],
    "serve -w lett": ["letters"],
    "serve --method ngram-simple,dfl": ["ngram-simple,dflash"],
    "serve a": ["a model.gguf"],
    "serve models/": ["models/big.GGUF"],
    "serve --draft a": ["a model.gguf"],
    "serve x.gguf --tune f": ["full"],
    "serve x.gguf --prefer s": ["speed"],
    "serve --llama-server emb": ["embedded"],
    "serve x.gguf --prompts n": ["notes.txt"],
    "serve x.gguf -- n": ["notes.txt"],
    "plan x.gguf --format llama-s": ["llama-swap"],
    "pick-draft x.gguf --dir mod": ["models"],
    "memory x.gguf -ctk q8": ["q8_0"],
    "profiles sh": ["show"],
    "profiles show crea": ["creative"],
    "serve x.gguf --dry": ["--dry-run"],
    "lint n": ["notes.txt"],
}
# Typed text for which a shell offers several words.
OPEN = {
    "serve --workload ": ("code", "chat", "letters"),
    "plan x.gguf --format ": ("shell", "systemd", "vllm"),
    "profiles ": ("list", "show", "new"),
}


def test_the_last_word_of_a_comma_separated_list_is_completed() -> None:
    assert complete.methods("ngram-map") == ["ngram-map-k", "ngram-map-k4v"]
    assert complete.methods("ngram-mod,d") == [
        "ngram-mod,draft",
        "ngram-mod,dflash",
        "ngram-mod,dspark",
    ]
    assert "code,chat" in complete.workloads("code,")
    assert "code,code" not in complete.workloads("code,")
    assert complete.profiles("code,") == []
    assert complete.one_of("speed", "context")("s") == ["speed"]
    assert "q8_0" in complete.cache_types("q8")


def test_all_completed_values_are_valid() -> None:
    assert [parse_methods(word) for word in complete.METHODS]
    assert list(complete.workloads("")) == names()


def test_the_users_workloads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.workloads.user_profiles_dir", lambda: tmp_path)
    (tmp_path / "letters.toml").write_text("")
    assert complete.workloads("let") == ["letters"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models and other files, and a profile of the user."""
    here, config = tmp_path / "here", tmp_path / "config"
    (here / "models").mkdir(parents=True)
    for name in ("a model.gguf", "notes.txt", "models/big.GGUF", "models/card.md"):
        (here / name).touch()
    (config / "specllama" / "profiles").mkdir(parents=True)
    (config / "specllama" / "profiles" / "letters.toml").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    return here


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name}")
    return path


def output(argv: Sequence[str], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.stdout


# Builtins, then syntax, that bash 3.2 lacks (macOS has no newer one).
BASH_4_BUILTINS = ("mapfile", "readarray", "compopt")
BASH_4_SYNTAX = {
    "associative arrays, references, globals": r"\b(declare|local|typeset)\s+-\w*[Anglu]",
    "coprocesses": r"\bcoproc\b",
    "upper and lower case": r"\$\{\w+(\[[^]]*\])?(,|\^)",
    "transformations": r"\$\{\w+(\[[^]]*\])?@[A-Za-z]\}",
    "negative subscripts": r"\[-\d+\]",
    "both streams by one sign": r"\|&|&>>",
    "cases that fall through": r";;?&",
    "whether a variable is set": r"\[\[ -v",
    "code points": r"\$'[^']*\\[uU]",
    "time and array elements in printf": r"printf\s+('%\(|\"%\(|-v\s+\w+\[)",
    "options of the shell": r"globstar|lastpipe|autocd|dirspell",
    "a case inside $( ) or <( )": r"[$<]\([^)\n]*\bcase\b",
}


@pytest.mark.parametrize(
    "builtins", [(), BASH_4_BUILTINS], ids=["bash", "without bash 4's builtins"]
)
def test_bash_completes(folder: Path, builtins: tuple[str, ...]) -> None:
    run_completion = (
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _specllama; printf \'%s\\n\' "${COMPREPLY[@]}"'
    )
    separator = r" " if builtins else r" |(=)"  # for bash 3, --option=value is one word

    def offered(line: str) -> list[str]:
        words = re.split(separator, f"specllama {line}")
        given = [w for w in words if w] + ([""] if line.endswith(" ") else [])
        disabled = f"enable -n {' '.join(builtins)}; " if builtins else ""
        script = (
            f'{disabled}source "{SCRIPTS}/specllama.bash"; ask() {{ {run_completion}; }}; ask "$@"'
        )
        return output([shell("bash"), "-c", script, "bash", *given], folder).splitlines()

    assert {line: offered(line) for line in CASES} == CASES
    for line, some in OPEN.items():
        assert set(some) <= set(offered(line))


def test_bash_3_escapes_file_names() -> None:
    """It has no compopt, which tells bash 4 that a word is a file name."""
    script = f'enable -n compopt; source "{SCRIPTS}/specllama.bash"; complete -p specllama'
    assert "-o filenames" in output([shell("bash"), "-c", script], SCRIPTS)


def test_the_bash_script_uses_bash_3_features_only() -> None:
    text = "\n".join(
        line
        for line in (SCRIPTS / "specllama.bash").read_text().splitlines()
        if not line.lstrip().startswith("#")
    )
    assert "mapfile" not in text
    assert "readarray" not in text
    assert not {name for name, sign in BASH_4_SYNTAX.items() if re.search(sign, text)}
    unguarded = re.sub(
        r"type compopt >/dev/null 2>&1( && compopt -o filenames 2>/dev/null)?", "", text
    )
    assert "compopt" not in unguarded


def test_fish_completes(folder: Path) -> None:
    lines = [*CASES, *OPEN]
    queries = "; ".join(f"echo '>'; complete -C 'specllama {line}'" for line in lines)
    script = f"source '{SCRIPTS}/specllama.fish'; {queries}"
    text = output([shell("fish"), "--no-config", "-c", script], folder)
    parts = [part.splitlines() for part in text.split(">\n")[1:]]
    found = {
        line: [w.split("\t")[0].removeprefix("--workload=").rstrip("/") for w in part]
        for line, part in zip(lines, parts, strict=True)
    }
    assert {line: found[line] for line in CASES} == CASES
    for line, some in OPEN.items():
        assert set(some) <= set(found[line])


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_zsh_completes(folder: Path) -> None:
    """Typed into a terminal: the line after TAB is what the command gets as arguments."""
    import pty

    argv = [shell("zsh"), "-f", "-i"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(argv[0], argv, {**os.environ, "TERM": "dumb"})

    def typed(text: str, until: str) -> str:
        os.write(terminal, text.encode())
        out, end = "", time.monotonic() + 20
        while until not in out:
            assert time.monotonic() < end, out
            if select.select([terminal], [], [], 0.2)[0]:
                out += os.read(terminal, 65536).decode(errors="replace")
        return out

    try:
        start = (
            f"PS1=; fpath=('{SCRIPTS}' $fpath); autoload -Uz compinit; compinit -D -u; "
            "specllama() { print -r -- \"GOT[${(j:|:)@}]\" }; print REA''DY\n"
        )
        typed(start, "READY")
        found = {}
        for line in CASES:
            seen = typed(f"specllama {line}\t\n", "]\r\n")
            last = re.findall(r"GOT\[(.*)\]", seen)[-1].split("|")[-1]
            found[line] = [last.removeprefix("--workload=").rstrip("/")]
        assert found == CASES
    finally:
        os.close(terminal)  # the shell exits when its terminal closes
        os.waitpid(pid, 0)


def test_powershell_completes(folder: Path) -> None:
    lines = [line for line in CASES if "," not in line]
    queries = "; ".join(
        f"'>'; (TabExpansion2 'specllama {line}' {len(line) + 10}).CompletionMatches"
        " | ForEach-Object { $_.CompletionText }"
        for line in lines
    )
    script = f". '{SCRIPTS}/specllama.ps1'; {queries}"
    text = output([shell("pwsh"), "-NoProfile", "-Command", script], folder)
    parts = [part.splitlines() for part in re.split(r">\r?\n", text)[1:]]
    found = {
        line: [w.removeprefix("--workload=").strip("'") for w in part]
        for line, part in zip(lines, parts, strict=True)
    }
    assert found == {line: CASES[line] for line in lines}


def powershell_nodes(text: bytes) -> Iterator[tree_sitter.Node]:
    """Every node of a script, as PowerShell's grammar reads it."""
    import tree_sitter_powershell

    language = tree_sitter.Language(tree_sitter_powershell.language())
    nodes = [tree_sitter.Parser(language).parse(text).root_node]
    while nodes:
        node = nodes.pop()
        yield node
        nodes.extend(node.children)


def test_the_powershell_script_has_no_syntax_errors() -> None:
    """Checked with a grammar, since PowerShell may not be installed: no syntax error, and no
    repeated key in a hash table, which is an error (keys ignore case)."""
    text = (SCRIPTS / "specllama.ps1").read_bytes()
    assert any(node.is_error for node in powershell_nodes(b"$x = @{ a = @('b', }"))
    hashes = 0
    for node in powershell_nodes(text):
        assert not node.is_error, node.text
        assert not node.is_missing, node.parent
        if node.type == "hash_literal_body":
            entries = [c for c in node.children if c.type == "hash_entry"]
            keys = [(c.children[0].text or b"").lower().strip() for c in entries]
            assert len(keys) == len(set(keys)), keys
            hashes += len(keys) > 0
    assert hashes > 100


def test_the_powershell_script_has_every_option() -> None:
    text = (SCRIPTS / "specllama.ps1").read_text()
    for command in program().all():
        _, _, after = text.partition(f"'{' '.join(command.path)}' = @{{\n")
        here = after.partition("\n        }\n")[0]
        assert here, command.path
        for name in (n for p in command.options for n in p.names):
            assert f"'{name}'" in here, (command.path, name)
