"""Builders of a large target and of a draft from a real model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import real_models
from benchmarks.large_target import block_tensors
from specllama.gguf import read_model
from tests.support import MODELS


@pytest.mark.parametrize("name", ["real_models", "large_target", "header"])
def test_without_gguf_py_one_line_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/serve.md names real_models, and it ended in a traceback."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    for module in [m for m in sys.modules if m.startswith("benchmarks.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(SystemExit) as e:
        importlib.import_module(f"benchmarks.{name}")
    assert str(e.value).startswith("error: gguf is not installed")
    assert "pip install '.[test]'" in str(e.value)


def test_real_models_can_be_read(smollm2: Path, gemma: Path) -> None:
    assert (read_model(smollm2).architecture, read_model(smollm2).layers) == ("llama", 30)
    assert (read_model(gemma).architecture, read_model(gemma).layers) == ("gemma3", 18)


def test_added_layers_of_the_large_target_have_zero_outputs(smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "large.gguf"
    real_models.large(smollm2, out, layers=2)
    small, big = read_model(smollm2), read_model(out)
    assert big.layers == small.layers + 2
    assert big.quantization == "F32"
    assert big.tensor_bytes == 4 * big.parameters
    assert big.parameters > small.parameters
    reader = gguf.GGUFReader(out)
    for i in (30, 31):
        added = block_tensors(reader, i)
        assert set(added) == set(block_tensors(reader, 29))
        zero = {name for name, t in added.items() if not np.any(t.data)}
        assert zero == {"attn_output.weight", "ffn_down.weight"}
    out.unlink()  # half a gigabyte


def test_the_draft_lacks_the_dropped_layers(smollm2: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    real_models.main(["draft", str(smollm2), str(out), "--drop", "18,22"])
    assert read_model(out).layers == 28
    old, new = gguf.GGUFReader(smollm2), gguf.GGUFReader(out)
    for before, after in ((17, 17), (19, 18), (21, 20), (23, 21), (29, 27)):
        original, copied = block_tensors(old, before), block_tensors(new, after)
        assert set(original) == set(copied)
        assert all(np.array_equal(t.data, copied[name].data) for name, t in original.items())
    with pytest.raises(SystemExit, match="layers 0 to 29"):
        real_models.draft(smollm2, tmp_path / "none.gguf", [30])


def test_widening_keeps_an_mtp_head(tmp_path: Path) -> None:
    out = tmp_path / "wide.gguf"
    real_models.widen(MODELS / "mtp.gguf", out)
    before, after = read_model(MODELS / "mtp.gguf"), read_model(out)
    assert (after.layers, after.kind, after.quantization) == (before.layers, before.kind, "F32")
    assert after.parameters == before.parameters
