"""Advice for each rejected draft."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.drafts.remedies import remedy
from specllama.gguf import ModelInfo, read_model
from tests import untrained
from tests.support import MODELS, specllama

TARGET = MODELS / "target.gguf"


@pytest.fixture(scope="module")
def target() -> ModelInfo:
    return read_model(TARGET)


@pytest.mark.parametrize(
    ("method", "rule", "message"),
    [
        (
            "draft-eagle3",
            "hidden size",
            "use an EAGLE-3 head trained for this model (hidden size 256, 4 layers, "
            f"4,096 tokens); `specllama pick-draft {TARGET} --hub` searches for one",
        ),
        ("draft-dspark", "target layers", "use a DSpark drafter trained for this model"),
        ("draft-simple", "token text", "use a smaller model of its family with the same 4,096"),
        ("draft-mtp", "architecture", "llama.cpp does not support MTP for llama: use an EAGLE-3, "),
        (
            "draft-dflash",
            "mask token",
            "download it again or reconvert it (convert_hf_to_gguf.py --target-model-dir TARGET)",
        ),
        ("draft-dspark", "engine", ""),  # the reason names the build
        ("draft-simple", "size", ""),
    ],
)
def test_each_rejection_has_a_remedy(
    target: ModelInfo, method: str, rule: str, message: str
) -> None:
    assert (
        remedy(target, method, rule).startswith(message)
        if message
        else not remedy(target, method, rule)
    )


def test_a_target_without_drafter_support_gets_other_advice(target: ModelInfo) -> None:
    unsupported = replace(target, architecture="rwkv7")
    message = remedy(unsupported, "draft-eagle3", "architecture")
    assert message.startswith("use a smaller model of its family")
    assert "an n-gram method, which does not read rwkv7's layers" in message
    assert "EAGLE-3" not in remedy(unsupported, "draft-mtp", "architecture")
    smaller = remedy(unsupported, "draft-simple", "token text")
    assert "n-gram" not in smaller
    assert "searches for one" in smaller
    gemma = replace(target, architecture="gemma4")  # its assistants draft by draft-mtp
    assert remedy(gemma, "draft-mtp", "hidden size").startswith("use an MTP head trained for this")


def test_the_remedy_names_the_known_drafter_of_a_family(target: ModelInfo) -> None:
    assert target.vocabulary is not None
    names = replace(target.names, name="Qwen3-8B")
    qwen = replace(target, names=names, vocabulary=replace(target.vocabulary, n_tokens=151936))
    assert "z-lab/Qwen3-8B-DFlash-b16" in remedy(qwen, "draft-dflash", "hidden size")


def test_serve_prints_the_remedy(tmp_path: Path) -> None:
    draft = untrained.eagle3(tmp_path / "e.gguf", target_layers=[0, 1, 9])
    output = specllama("serve", TARGET, "--draft", draft, "--dry-run").stdout
    assert "method   none: e.gguf: it reads target layer 9, but the target has 4 layers" in output
    assert "do       use an EAGLE-3 head trained for this model" in output
    done = specllama("serve", TARGET, "--draft", draft, "--strict")
    assert done.returncode == 3
    assert "use an EAGLE-3 head trained for this model" in done.stderr
    done = specllama("serve", TARGET, "--draft", draft, "--strict", "--json")
    assert done.returncode == 3
    data = json.loads(done.stdout)
    assert data["serving"] is False
    assert data["reason"].startswith("speculation OFF because e.gguf: it reads target layer 9")
    assert data["remedy"].startswith("use an EAGLE-3 head trained for this model")
