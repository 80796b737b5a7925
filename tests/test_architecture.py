"""The arrows of docs/architecture.md: a room imports only rooms below it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "specllama"
# Top to bottom. Modules without a room of their own lie below everything.
FLOORS = [
    *("cli", "doctor", "serving", "watching", "formats", "tuning", "planning"),
    *("drafts", "memory", "own_profiles", "workloads", "prompts", "engine", "gguf"),
]
BASEMENT = {"config", "fields", "resources", "storage", "logs", "stop", "errors", "__init__"}


def room(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("specllama"):
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("specllama.")}
    return found


def test_every_arrow_points_down() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = room(path.relative_to(PACKAGE).parts)
        if own == "__main__":
            continue
        for other in imports(path) - {"__version__", own}:
            if other in BASEMENT and own not in BASEMENT:
                continue
            below = own in FLOORS and other in FLOORS and FLOORS.index(other) > FLOORS.index(own)
            basement = own in BASEMENT and other in BASEMENT
            if not below and not basement:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    assert wrong == []


def test_modules_stay_small() -> None:
    sizes = {p.relative_to(PACKAGE): len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert {p: n for p, n in sizes.items() if n > 350} == {}


def test_nothing_of_ours_runs_between_fork_and_exec() -> None:
    """A spinner's thread may hold a lock then, which nobody would give back."""
    words = ("preexec_fn", "os.fork", "multiprocessing")
    found = [(p.name, w) for p in PACKAGE.rglob("*.py") for w in words if w in p.read_text()]
    assert found == []
