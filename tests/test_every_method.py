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
    """The tiny target in a folder with all of its drafters and nothing else."""
    folder = tmp_path_factory.mktemp("one") / "folder"
    folder.mkdir()
    for name in ("target.gguf", *FILES.values()):
        shutil.copy(MODELS / name, folder / name)
    return folder / "target.gguf"


@pytest.mark.parametrize("chat", [False, True], ids=["code", "chat"])
def test_a_dry_run_lists_every_method(target: Path, chat: bool) -> None:
    """Independent of the predicted gain and of the workload's methods."""
    workload = "chat" if chat else "code"
    output = specllama("probe", target, "--all", "-w", workload, "--dry-run").stdout
    for method, file in FILES.items():
        assert f"measure  {method} with {file}, K up to " in output
    assert f"predict  {', '.join(NGRAMS)}: all sizes" in output


def test_probe_all_reports_every_method_in_one_table(target: Path, native: Path) -> None:
    args = ("--all", "-w", "code", "--budget", "45", "-c", "1024", "--llama-server", native)
    done = specllama("probe", target, *args, "--json", "--", "-t", "1", timeout=120)
    assert done.returncode == 0, done.stderr
    (data,) = json.loads(done.stdout)["workloads"]
    alphas: dict[str, Any] = {a["label"]: a["alpha"] for a in data["confirmations"]}
    alphas |= {o["label"]: o["alpha"] for o in data["others"]}
    for method, file in FILES.items():
        (label,) = [x for x in alphas if x.startswith(f"{method} {file}")]
        if alphas[label] is not None:  # None if a busy machine left no time
            assert 0.05 < alphas[label] < 1
    assert sum(a is not None for x, a in alphas.items() if x.startswith("draft-")) >= 2
    for method in NGRAMS:
        assert any(label.split()[0] == method for label in alphas)
