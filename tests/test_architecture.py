"""docs/architecture.md is true: packages import only packages below them, and it names every module."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "specllama"
PAGE = PACKAGE.parent / "docs" / "architecture.md"
# Top to bottom. Modules outside of a package are below everything.
LAYERS = [
    *("cli", "doctor", "serving", "watching", "formats", "tuning", "planning"),
    *("drafts", "memory", "own_profiles", "workloads", "prompts", "engine", "gguf"),
]
BELOW_ALL = {"config", "fields", "resources", "storage", "logs", "stop", "errors", "__init__"}

_NOT_LISTED = {"__init__", "__main__", "errors"}


def package(parts: tuple[str, ...]) -> str:
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


def test_imports_go_down_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = package(path.relative_to(PACKAGE).parts)
        if layer == "__main__":
            continue
        for other in imports(path) - {"__version__", layer}:
            if other in BELOW_ALL and layer not in BELOW_ALL:
                continue
            below = (
                layer in LAYERS and other in LAYERS and LAYERS.index(other) > LAYERS.index(layer)
            )
            below_all = layer in BELOW_ALL and other in BELOW_ALL
            if not below and not below_all:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """No cycles of any length, including imports within functions."""
    graph = {_dotted(p): _imported(p) for p in PACKAGE.rglob("*.py")}
    while leaves := [m for m, below in graph.items() if not below & graph.keys() - {m}]:
        for m in leaves:
            del graph[m]
    assert sorted(graph) == []


def test_no_two_classes_share_a_name() -> None:
    """So a name says which class it is."""
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_functions_imported_by_name_have_a_name_of_their_own() -> None:
    """`read(...)` could be any module's; `lint.read(...)` is clear, as is a unique name."""
    defined = {(name, module) for module, tree in _trees().items() for name in _functions(tree)}
    count = Counter(name for name, _ in defined)
    shared = {
        f"{node.module}.{alias.name}"
        for tree in _trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.name, node.module) in defined and count[alias.name] > 1
    }
    assert shared - {"specllama.cli.main"} == set()


def _trees() -> dict[str, ast.Module]:
    return {_dotted(p): ast.parse(p.read_text(encoding="utf-8")) for p in PACKAGE.rglob("*.py")}


def _functions(tree: ast.Module) -> list[str]:
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> set[str]:
    """The modules of specllama that a module imports. `from package import module` counts as an
    import of the module, not of the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("specllama"):
            inner = {f"{node.module}.{a.name}" for a in node.names}
            modules = {m for m in inner if (PACKAGE.parent / f"{m.replace('.', '/')}.py").is_file()}
            found |= modules or {node.module}
    return found


def test_the_page_names_every_module() -> None:
    """In its list of modules."""
    text = PAGE.read_text(encoding="utf-8")
    tree = text[text.index("specllama/\n") :]
    named = set(re.findall(r"\w+", tree[: tree.index("```")]))
    modules = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py") if p.stem not in _NOT_LISTED}
    assert sorted(str(m) for m in modules if m.stem not in named) == []


def test_the_diagram_has_the_layers_and_only_arrows_that_are_imports() -> None:
    diagram = PAGE.read_text(encoding="utf-8").split("```mermaid")[1].split("```")[0]
    arrows = re.findall(r"^ *(\w+)(?:\[[^]]*\])? --> (.+)$", diagram, re.M)
    assert {a for a, _ in arrows} | {"gguf"} == set(LAYERS) - {"prompts", "own_profiles"}
    for above, below in arrows:
        found = set().union(*(imports(p) for p in _modules(above)))
        for other in re.findall(r"(\w+)(?:\[[^]]*\])?", below.split("[")[0]):
            assert other in found, f"{above} does not import {other}"


def _modules(name: str) -> list[Path]:
    folder = PACKAGE / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{name}.py"]


def test_the_page_avoids_the_house_metaphor() -> None:
    text = PAGE.read_text(encoding="utf-8").lower()
    avoided = ("house", "floor", "front door", "basement", "a room of", "per room")
    assert [w for w in avoided if w in text] == []


def test_modules_have_at_most_350_lines() -> None:
    sizes = {p.relative_to(PACKAGE): len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert {p: n for p, n in sizes.items() if n > 350} == {}


def test_no_python_code_runs_between_fork_and_exec() -> None:
    """Another thread, such as a spinner's, may hold a lock that the child could never release."""
    words = ("preexec_fn", "os.fork", "multiprocessing")
    found = [(p.name, w) for p in PACKAGE.rglob("*.py") for w in words if w in p.read_text()]
    assert found == []
