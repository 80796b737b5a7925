"""Several MTP heads in one model, each drafting one token: llama.cpp chains them for mimo2."""

from __future__ import annotations

from pathlib import Path

from specllama.drafts.compat import longest_draft, own_head_verdict
from specllama.gguf import read_model
from tests.support import MODELS, Serve, specllama

THREE = MODELS / "mtp-3.gguf"


def test_three_mtp_heads_are_counted() -> None:
    info = read_model(THREE)
    assert (info.mtp_heads, info.layers, info.faults) == (3, 3, ())
    assert own_head_verdict(info).ok
    assert longest_draft("draft-mtp", info) == 3
    assert "itself with draft-mtp (3 heads, " in specllama("inspect", THREE).stdout


def test_three_mtp_heads_draft_three_tokens(engine: str, tmp_path: Path) -> None:
    args = (THREE, "--n-max", "8", "--workload", "code", "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert (s.info["methods"], s.info["draft"]) == (["draft-mtp"], None)
        assert s.info["speculation"] == "on"
        assert s.info["n_max"] == 3
        assert s.info["drafted"] > s.info["accepted"] > 0
