"""K up to what a drafter was trained for: its block, or its heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import untrained
from tests.support import MODELS, Serve, specllama

TARGET = MODELS / "target.gguf"
LONGEST = {"dflash": untrained.BLOCK - 1, "dspark": untrained.BLOCK}


@pytest.mark.parametrize("kind", LONGEST)
def test_every_length_up_to_the_block_is_measured(kind: str, tmp_path: Path) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    said = specllama("probe", TARGET, "--draft", draft, "--dry-run").stdout
    assert f"measure  draft-{kind} with {kind}.gguf, K up to {LONGEST[kind]}\n" in said


@pytest.mark.parametrize("kind", LONGEST)
@pytest.mark.parametrize("own", [False, True], ids=["--n-max", "after --"])
def test_a_longer_one_is_cut_and_that_is_said(kind: str, own: bool, tmp_path: Path) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    length = ("--", "--spec-draft-n-max", "10") if own else ("--n-max", "10")
    said = specllama("serve", TARGET, "--draft", draft, "--dry-run", *length).stdout
    k = LONGEST[kind]
    assert f"method   draft-{kind} with {kind}.gguf, K={k}: set with --draft" in said
    assert f"K=10 is limited to {k}, the block size of {kind}.gguf" in said
    fits = specllama("serve", TARGET, "--draft", draft, "--dry-run", "--n-max", str(k)).stdout
    assert "is limited to" not in fits


def test_several_heads_are_the_longest_draft() -> None:
    said = specllama("serve", MODELS / "mtp-3.gguf", "--dry-run", "--n-max", "5").stdout
    assert "K=5 is limited to 3, the number of MTP heads of mtp-3.gguf" in said


@pytest.mark.parametrize("kind", LONGEST)
def test_the_server_drafts_whole_blocks(kind: str, native: Path, tmp_path: Path) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    k = LONGEST[kind]
    args = ("--draft", draft, "--n-max", str(k), "--workload", "code", "--llama-server", native)
    with Serve(tmp_path, TARGET, *args) as s:
        steps = s.info["drafted"] / k
        assert s.info["n_max"] == k
        assert 80 < steps < 100  # two answers of 48 tokens, hardly a draft accepted
