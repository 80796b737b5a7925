"""What only other machines run: it is at least well-formed, and names what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_the_hosted_workflow_is_one() -> None:
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run([*check, "vendor.github-workflows", workflow], capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    assert any(s.get("run") == ".ci/run" for s in jobs["everything"]["steps"])


def test_what_contributors_are_pointed_to_exists() -> None:
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:specllama|profiles|tests|docs|\.ci)/[\w./-]+)`", text)
    linked = [name.removeprefix("../") for name in re.findall(r"\]\(([^)#]+)\)", text)]
    assert len(named) >= 5
    assert [p for p in (*named, *linked) if not (ROOT / p).exists()] == []
