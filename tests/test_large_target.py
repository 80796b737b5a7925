"""The builder of large targets: more parameters, the same text."""

from __future__ import annotations

from pathlib import Path

import httpx

from benchmarks import large_target
from specllama.gguf import read_model
from tests.support import MODELS, Serve


def test_the_large_target_generates_the_same_text_as_the_tiny_one(tmp_path: Path) -> None:
    tiny, large = MODELS / "target.gguf", tmp_path / "large.gguf"
    total = large_target.build(large, layers=6, ff=1024)
    assert read_model(large).parameters == total > 1.8 * read_model(tiny).parameters
    assert read_model(large).layers == 6
    texts = []
    for model in (tiny, large):
        folder = tmp_path / model.stem
        folder.mkdir()
        args = (model, "--draft", MODELS / "draft.gguf", "--llama-server", "embedded")
        with Serve(folder, *args) as s:
            assert s.info["speculation"] == "on"
            body = {"prompt": "import os\n\ndef main(", "n_predict": 48, "temperature": 0}
            texts.append(httpx.post(f"{s.url}/completion", json=body).json()["content"])
    assert texts[0] == texts[1]
