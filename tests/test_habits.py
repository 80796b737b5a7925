"""Checks of files that no code uses: the hosted CI workflow, the documentation, the changelog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from specllama import __version__

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    p
    for p in (
        *ROOT.glob("*.md"),
        *(ROOT / ".github").glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
    )
)


def test_the_hosted_workflow_is_valid_and_runs_the_same_checks() -> None:
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run([*check, "vendor.github-workflows", workflow], capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    assert [s["run"] for s in jobs["everything"]["steps"] if "run" in s][-1] == ".ci/run"
    local = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    checks = [line for line in local if line.startswith(("ruff ", "mypy"))]
    assert len(checks) == 3
    hosted = [s["run"] for s in jobs["systems"]["steps"] if "run" in s]
    assert hosted[2:5] == checks, "the same checks as .ci/run"


def test_the_pre_commit_hooks_run_the_same_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repo,) = config["repos"]
    assert repo["repo"] == "local", "the versions are those of pyproject.toml"
    assert [h["entry"] for h in repo["hooks"]] == ["ruff check --fix", "ruff format", "mypy"]
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        assert (hook["entry"] == "mypy") == (hook.get("pass_filenames") is False)


def test_paths_in_the_contributing_guide_exist() -> None:
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:specllama|profiles|tests|docs|\.ci)/[\w./-]+)`", text)
    linked = [name.removeprefix("../") for name in re.findall(r"\]\(([^)#]+)\)", text)]
    assert len(named) >= 5
    assert [p for p in (*named, *linked) if not (ROOT / p).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_the_documentation_are_valid(page: Path) -> None:
    text = _without_code(page.read_text(encoding="utf-8"))
    links = [x for x in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in x]
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    titles = re.findall(r"^#+ (.+)$", _without_code(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", t.strip().lower()).replace(" ", "-") for t in titles}


def test_the_index_lists_every_page() -> None:
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {p for p in pages if f"({p})" not in text} == set()


def test_messages_quoted_in_the_documentation_are_in_the_code() -> None:
    page = (ROOT / "docs" / "why-is-speculation-off.md").read_text(encoding="utf-8")
    code = "".join(
        p.read_text(encoding="utf-8") for p in sorted((ROOT / "specllama").rglob("*.py"))
    )
    lines = re.findall(r"^Message: (.+)$", page, re.M)
    quoted = [q for line in lines for q in re.findall(r"`([^`]+)`", line)]
    parts = [p.strip() for q in quoted for p in q.split("…") if len(p.split()) >= 3]
    assert len(parts) >= 7
    assert [p for p in parts if p not in code] == []


def test_the_changelog_has_releases_with_dates() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", h) for h in headings[1:])
    assert any(h.startswith(f"[{__version__}]") for h in headings)
