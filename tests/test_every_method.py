"""`probe --all` compares every method on one target in one table, on trained files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import MODELS, specllama

FILES = {
    "draft-simple": "draft.gguf",
    "draft-eagle3": "eagle3.gguf",
    "draft-dflash": "dflash.gguf",
    "draft-dspark": "dspark.gguf",
}
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with everything that drafts for it, and nothing else, beside it."""
    folder = tmp_path_factory.mktemp("one") / "folder"
    folder.mkdir()
    for name in ("target.gguf", *FILES.values()):
        shutil.copy(MODELS / name, folder / name)
    return folder / "target.gguf"


@pytest.mark.parametrize("mine", [False, True], ids=["code", "chat"])
def test_what_would_be_measured(target: Path, mine: bool) -> None:
    """Whatever is expected of it, and whatever the workload takes."""
    workload = "chat" if mine else "code"
    said = specllama("probe", target, "--all", "-w", workload, "--dry-run").stdout
    for method, file in FILES.items():
        assert f"measure  {method} with {file}, K up to " in said
    assert f"predict  {', '.join(NGRAMS)}: all sizes" in said


def test_one_table(target: Path, native: Path) -> None:
    args = ("--all", "-w", "code", "--budget", "45", "-c", "1024", "--llama-server", native)
    done = specllama("probe", target, *args, "--json", "--", "-t", "1", timeout=120)
    assert done.returncode == 0, done.stderr
    (data,) = json.loads(done.stdout)["workloads"]
    alphas: dict[str, Any] = {a["label"]: a["alpha"] for a in data["confirmations"]}
    alphas |= {o["label"]: o["alpha"] for o in data["others"]}
    for method, file in FILES.items():
        (label,) = [x for x in alphas if x.startswith(f"{method} {file}")]
        if alphas[label] is not None:  # else there was no time: a busy machine
            assert 0.05 < alphas[label] < 1
    assert sum(a is not None for x, a in alphas.items() if x.startswith("draft-")) >= 2
    for method in NGRAMS:
        assert any(label.split()[0] == method for label in alphas)
