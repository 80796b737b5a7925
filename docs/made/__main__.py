"""`python -m docs.made` generates files from the program; with --check it only lists the outdated
ones, and exits with 1 if there are any."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from docs.made import bash, builds, fish, man, pages, powershell, zsh
from docs.made.commands import program

ROOT = Path(__file__).parent.parent.parent


def made() -> Mapping[str, str]:
    """Path relative to the checkout → text, of every generated file."""
    tree = program()
    return {
        "completions/specllama.bash": bash.bash(tree),
        "completions/_specllama": zsh.zsh(tree),
        "completions/specllama.fish": fish.fish(tree),
        "completions/specllama.ps1": powershell.powershell(tree),
        "docs/specllama.1": man.man(tree),
        "docs/builds.md": builds.page(),
        **pages.pages(tree),
    }


def stale() -> list[str]:
    """The outdated files."""
    return [name for name, text in made().items() if _read(ROOT / name) != text]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(arguments: list[str]) -> int:
    names = stale()
    if arguments == ["--check"]:
        print("\n".join(f"{name} is outdated: run `python -m docs.made`" for name in names))
        return 1 if names else 0
    texts = made()
    for name in names:
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[name], encoding="utf-8", newline="\n")
        print(f"made {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
