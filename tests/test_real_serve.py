"""serve on a real model: SmolLM2, native llama-server."""

from __future__ import annotations

from pathlib import Path

from benchmarks.real_models import draft
from tests.support import Serve, process_ended


def model_in_own_folder(smollm2: Path, tmp_path: Path) -> Path:
    """The model in a folder without other models."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(smollm2)
    return folder / "model.gguf"


def test_ngrams_are_predicted_and_the_confirmed_server_serves(
    tmp_path: Path, native: Path, smollm2: Path
) -> None:
    model = model_in_own_folder(smollm2, tmp_path)
    args = (model, "--workload", "edit", "--tune", "auto", "--budget", "40")
    with Serve(tmp_path, *args, "--llama-server", native, timeout=150) as s:
        info, tuning = s.info, s.info["tuning"]
        assert tuning["source"] == "measured"
        assert tuning["baseline"]["verify_ms"]["1"] > 0
        assert len(tuning["baseline"]["verify_ms"]) >= 5  # as many as a slow machine has time for
        kinds = {p["label"].split()[0] for p in tuning["predictions"]}
        assert "ngram-simple" in kinds, "every type is replayed over the plain answers"
        assert 1 <= tuning["loads"] <= 3
        if tuning["best"] is not None:  # the server that was confirmed is the one that serves
            assert tuning["loads"] == 2
            assert info["speculation"] == "on"
            assert info["methods"] == tuning["confirmations"][-1]["methods"]
        pid = info["server_pid"]
    assert process_ended(pid)


def test_a_draft_as_slow_as_the_target_is_ruled_out_without_a_launch(
    tmp_path: Path, native: Path, smollm2: Path
) -> None:
    model = model_in_own_folder(smollm2, tmp_path)
    slow_draft = tmp_path / "dear.gguf"
    draft(smollm2, slow_draft, (18, 22))
    args = (model, "--draft", slow_draft, "--workload", "code", "--tune", "auto", "--budget", "20")
    with Serve(tmp_path, *args, "--llama-server", native, timeout=150) as s:
        tuning = s.info["tuning"]
        assert s.info["speculation"] == "off"
        assert (tuning["loads"], tuning["state"]) == (1, "decided")
        assert (
            "not even 100% acceptance would pay off" in tuning["reason"]
            or "no draft can pay" in tuning["reason"]
        )
