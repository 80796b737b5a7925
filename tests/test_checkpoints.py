"""Drafters in Hugging Face's format, and P-EAGLE in any format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafts.checkpoints import checkpoint
from specllama.gguf import read_model
from tests import untrained, zoo
from tests.support import MODELS, specllama

TARGET = MODELS / "target.gguf"
EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 32000,
    "num_hidden_layers": 1,
    "hidden_size": 4096,
}
QWEN3_DFLASH = {"architectures": ["DFlashDraftModel"], "block_size": 16, "num_hidden_layers": 5}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "transformer_layer_config": {"hidden_size": 5},
}


def folder(path: Path, config: object) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (EAGLE3, "eagle3"),
        (EAGLE3 | {"num_hidden_layers": 4}, "p-eagle"),
        (EAGLE3 | {"parallel_drafting": True}, "p-eagle"),
        (EAGLE3 | {"ptd_token_id": 201087}, "p-eagle"),
        (EAGLE3 | {"pard_token": 151669}, "p-eagle"),
        ({"speculators_model_type": "peagle", "mask_token_id": 5}, "p-eagle"),
        ({"architectures": ["PEagleDraftModel"]}, "p-eagle"),
        (SPECULATORS, "eagle3"),
        (QWEN3_DFLASH, "dflash"),
        (QWEN3_DFLASH | {"draft_vocab_size": 32000}, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"]}, "dspark"),
        ({"architectures": ["LlamaForCausalLM"]}, "model"),
        ({"architectures": ["Qwen3ForCausalLM"], "pard_token": 5}, "model"),
    ],
)
def test_the_kind_of_a_checkpoint_is_read_from_its_config(
    tmp_path: Path, config: dict[str, Any], kind: str
) -> None:
    place = folder(tmp_path / "x", config)
    for path in (place, place / "config.json", place / "model.safetensors"):
        found = checkpoint(path)
        assert found is not None
        assert found.kind == kind


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_json_value_in_a_config_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    config = {"architectures": data, "num_hidden_layers": data, "transformer_layer_config": data}
    found = checkpoint(folder(tmp_path_factory.mktemp("any") / "x", config))
    assert found is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_an_invalid_config_is_not_a_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert checkpoint(tmp_path) is None


def gguf(path: Path, how: str) -> Path:
    """A P-EAGLE file as a converter could write it, based on EAGLE-3's."""
    if how == "layers":
        return untrained.eagle3(path, block_count=4)
    if how == "key":
        return untrained.eagle3(path, parallel_drafting=True)
    if how == "tensor":
        fields = zoo.shape("llama", "x", 256, 4) | untrained.tokenizer()
        return zoo.write(path, "llama", fields, {"mask_hidden": (768,)})
    return zoo.write(path, how, {}, {"fc.weight": (768, 256)})


@pytest.mark.parametrize("how", ["layers", "key", "tensor", "p-eagle", "peagle"])
def test_inspect_says_that_llama_cpp_does_not_support_p_eagle(tmp_path: Path, how: str) -> None:
    file = gguf(tmp_path / "p.gguf", how)
    assert read_model(file).kind == "p-eagle"
    output = specllama("inspect", file).stdout
    assert "llama.cpp does not support P-EAGLE" in output
    assert "its parallel drafters are DFlash and DSpark" in output
    assert "specllama plan MODEL --format vllm --draft-repo OWNER/NAME" in output


def test_a_p_eagle_gguf_is_rejected_as_a_draft(tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(TARGET.read_bytes())
    file = gguf(tmp_path / "p.gguf", "peagle")
    output = specllama("serve", target, "--draft", file, "--dry-run").stdout
    assert "method   none: p.gguf: llama.cpp does not support P-EAGLE" in output
    listing = specllama("pick-draft", target).stdout
    assert "not used p.gguf: llama.cpp does not support P-EAGLE" in listing
    assert "(P-EAGLE)" in listing


def test_a_checkpoint_instead_of_a_gguf_file_is_an_error_with_advice(tmp_path: Path) -> None:
    p_eagle = folder(tmp_path / "gpt-oss-p-eagle", EAGLE3 | {"num_hidden_layers": 4})
    head = folder(tmp_path / "eagle3", EAGLE3)
    done = specllama("serve", TARGET, "--draft", p_eagle, "--dry-run")
    assert done.returncode == 2
    assert "a Hugging Face checkpoint (P-EAGLE drafter), not a GGUF file" in done.stderr
    assert "vLLM supports P-EAGLE (parallel_drafting)" in done.stderr
    done = specllama("serve", TARGET, "--draft", head / "model.safetensors", "--dry-run")
    assert done.returncode == 2
    assert f"convert_hf_to_gguf.py {head} --target-model-dir TARGET" in done.stderr
    assert "convert_hf_to_gguf.py" in specllama("serve", head, "--dry-run").stderr
    listing = specllama("pick-draft", TARGET, "--dir", tmp_path, "--verbose").stdout
    assert "not used eagle3: a Hugging Face checkpoint (EAGLE-3 drafter)" in listing
    assert "not used gpt-oss-p-eagle: a Hugging Face checkpoint (P-EAGLE drafter)" in listing


def test_inspect_describes_a_checkpoint(tmp_path: Path) -> None:
    place = folder(tmp_path / "x", EAGLE3 | {"parallel_drafting": True})
    lines = specllama("inspect", place).stdout.splitlines()
    assert (
        lines[1] == "kind     p-eagle: a Hugging Face checkpoint (P-EAGLE drafter), not a GGUF file"
    )
    assert lines[2] == "shape    1 layer, hidden size 4096"
    data = json.loads(specllama("inspect", place / "config.json", "--json").stdout)
    assert (data["kind"], data["hidden_size"]) == ("p-eagle", 4096)
