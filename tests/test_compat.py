"""llama.cpp's vocabulary rules at their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.drafts.compat import check_compatibility, longest_draft, vocabulary_verdict
from specllama.gguf import ModelInfo, read_model
from tests.support import MODELS, write_gguf


def model(tmp: Path, name: str, tokens: list[str], **fields: bool | int) -> ModelInfo:
    keys = {f"tokenizer.ggml.{k}": v for k, v in fields.items()}
    return read_model(write_gguf(tmp / f"{name}.gguf", tokens, fields=keys))


def token_texts(n: int) -> list[str]:
    return [f"t{i}" for i in range(n)]


def test_the_same_vocabulary_is_compatible() -> None:
    target, draft = read_model(MODELS / "target.gguf"), read_model(MODELS / "draft.gguf")
    assert check_compatibility(target, draft).ok


def test_another_vocabulary_is_rejected_with_the_first_different_token() -> None:
    target, other = read_model(MODELS / "target.gguf"), read_model(MODELS / "other-vocab.gguf")
    found = check_compatibility(target, other)
    assert (found.ok, found.rule) == (False, "token text")
    assert target.vocabulary is not None
    assert other.vocabulary is not None
    a, b = target.vocabulary.tokens, other.vocabulary.tokens
    first = next(i for i in range(5, 4096) if a[i] != b[i])
    assert found.token_id == first
    assert repr(a[first].decode()) in found.detail
    assert repr(b[first].decode()) in found.detail


@pytest.mark.parametrize(("difference", "ok"), [(0, True), (128, True), (129, False)])
def test_up_to_128_tokens_may_differ(tmp_path: Path, difference: int, ok: bool) -> None:
    a = model(tmp_path, "a", token_texts(200))
    b = model(tmp_path, "b", token_texts(200 + difference))
    assert vocabulary_verdict(a, b).ok is ok
    assert vocabulary_verdict(b, a).ok is ok


@pytest.mark.parametrize(("token", "ok"), [(0, True), (4, True), (5, False), (19, False)])
def test_token_texts_are_compared_from_token_5(tmp_path: Path, token: int, ok: bool) -> None:
    changed = token_texts(20)
    changed[token] = "other"
    a, b = model(tmp_path, "a", token_texts(20)), model(tmp_path, "b", changed)
    found = vocabulary_verdict(a, b)
    assert found.ok is ok
    assert found.token_id == (None if ok else token)


def test_token_texts_are_compared_up_to_a_nul_as_by_strcmp(tmp_path: Path) -> None:
    changed = token_texts(20)
    changed[7] = "t7\0x"
    assert vocabulary_verdict(
        model(tmp_path, "a", token_texts(20)), model(tmp_path, "b", changed)
    ).ok


def test_bos_is_compared_only_if_it_is_added(tmp_path: Path) -> None:
    off = {"add_bos_token": False, "add_eos_token": False}
    a = model(tmp_path, "a", token_texts(20), bos_token_id=1, **off)
    b = model(tmp_path, "b", token_texts(20), bos_token_id=2, **off)
    assert vocabulary_verdict(a, b).ok
    c = model(tmp_path, "c", token_texts(20), bos_token_id=1, add_bos_token=True)
    d = model(tmp_path, "d", token_texts(20), bos_token_id=2, add_bos_token=True)
    assert vocabulary_verdict(c, d).rule == "bos id"
    assert vocabulary_verdict(a, c).rule == "add_bos"


def test_eos_is_compared_only_if_it_is_added(tmp_path: Path) -> None:
    a = model(tmp_path, "a", token_texts(20), eos_token_id=1, add_eos_token=True)
    b = model(tmp_path, "b", token_texts(20), eos_token_id=2, add_eos_token=True)
    c = model(tmp_path, "c", token_texts(20))
    assert vocabulary_verdict(a, b).rule == "eos id"
    assert vocabulary_verdict(a, c).rule == "add_eos"


def test_vocabulary_types_must_match() -> None:
    target = read_model(MODELS / "target.gguf")
    assert target.vocabulary is not None
    spm = replace(target, vocabulary=replace(target.vocabulary, type="SPM"))
    assert vocabulary_verdict(target, spm).rule == "vocabulary type"
    assert vocabulary_verdict(target, replace(target, vocabulary=None)).rule == "vocabulary missing"


def test_the_longest_draft_of_each_kind_of_drafter() -> None:
    m = read_model(MODELS / "mtp.gguf")
    assert longest_draft("draft-mtp", m) is None  # one head is used again for each token
    assert longest_draft("draft-mtp", replace(m, mtp_heads=3)) == 3
    assert longest_draft("draft-simple", m) is None
    dflash = replace(m, kind="dflash", sidecar=replace(m.sidecar, block_size=8))
    assert longest_draft("draft-dflash", dflash) == 7
    assert longest_draft("draft-dflash", m) == 15  # blocks of 16 if the file does not say
    anchored = replace(dflash.sidecar, sample_from_anchor=True)
    assert longest_draft("draft-dspark", replace(dflash, kind="dspark", sidecar=anchored)) == 8


def test_an_mtp_head_needs_the_targets_architecture_and_width() -> None:
    trunk, head = read_model(MODELS / "mtp-trunk.gguf"), read_model(MODELS / "mtp-head.gguf")
    assert check_compatibility(trunk, head).ok
    assert check_compatibility(read_model(MODELS / "target.gguf"), head).rule == "architecture"
    assert check_compatibility(replace(trunk, embedding_length=64), head).rule == "hidden size"
