"""`python -m docs.made` makes the files again that are made from the program; with --check it only
says which are not what they would be, and ends with 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from docs.made import bash, builds, fish, man, pages, powershell, zsh
from docs.made.commands import program

ROOT = Path(__file__).parent.parent.parent


def made() -> Mapping[str, str]:
    """Path from the checkout's root → text, of every file that is made."""
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
    """What is not as it would be made now."""
    return [name for name, text in made().items() if _read(ROOT / name) != text]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(arguments: list[str]) -> int:
    names = stale()
    if arguments == ["--check"]:
        print("\n".join(f"{name} is not what `python -m docs.made` makes" for name in names))
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
