"""Draft lengths are limited by a drafter's block size or number of heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import untrained
from tests.support import MODELS, Serve, specllama

TARGET = MODELS / "target.gguf"
LONGEST = {"dflash": untrained.BLOCK - 1, "dspark": untrained.BLOCK}


@pytest.mark.parametrize("kind", LONGEST)
def test_probe_measures_lengths_up_to_the_block_size(kind: str, tmp_path: Path) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    output = specllama("probe", TARGET, "--draft", draft, "--dry-run").stdout
    assert f"measure  draft-{kind} with {kind}.gguf, K up to {LONGEST[kind]}\n" in output


@pytest.mark.parametrize("kind", LONGEST)
@pytest.mark.parametrize("after_dashes", [False, True], ids=["--n-max", "after --"])
def test_a_longer_draft_is_limited_with_a_message(
    kind: str, after_dashes: bool, tmp_path: Path
) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    length = ("--", "--spec-draft-n-max", "10") if after_dashes else ("--n-max", "10")
    output = specllama("serve", TARGET, "--draft", draft, "--dry-run", *length).stdout
    k = LONGEST[kind]
    assert f"method   draft-{kind} with {kind}.gguf, K={k}: set with --draft" in output
    assert f"K=10 is limited to {k}, the block size of {kind}.gguf" in output
    allowed = specllama("serve", TARGET, "--draft", draft, "--dry-run", "--n-max", str(k)).stdout
    assert "is limited to" not in allowed


def test_a_draft_is_limited_by_the_number_of_mtp_heads() -> None:
    output = specllama("serve", MODELS / "mtp-3.gguf", "--dry-run", "--n-max", "5").stdout
    assert "K=5 is limited to 3, the number of MTP heads of mtp-3.gguf" in output


@pytest.mark.parametrize("kind", LONGEST)
def test_a_real_server_drafts_whole_blocks(kind: str, native: Path, tmp_path: Path) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    k = LONGEST[kind]
    args = ("--draft", draft, "--n-max", str(k), "--workload", "code", "--llama-server", native)
    with Serve(tmp_path, TARGET, *args) as s:
        steps = s.info["drafted"] / k
        assert s.info["n_max"] == k
        assert 80 < steps < 100  # two responses of 48 tokens, with almost no draft accepted
