"""ModelInfo: kinds, heads and tokenizer facts of real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.gguf import GgufError, read_model
from specllama.gguf.oddities import oddities
from specllama.gguf.types import FILE_TYPES
from tests import zoo
from tests.support import MODELS, write_gguf

TOKENS = ["<s>", "a", "b"]


@pytest.mark.parametrize(
    ("name", "kind", "arch", "layers", "head"),
    [
        ("target", "model", "llama", 4, False),
        ("draft", "model", "llama", 1, False),
        ("other-vocab", "model", "llama", 1, False),
        ("mtp", "model", "mimo2", 3, True),
        ("mtp-trunk", "model", "mimo2", 3, False),
        ("mtp-head", "mtp-head", "mimo2", 3, True),
    ],
)
def test_kind_architecture_and_layers_of_the_tiny_models(
    name: str, kind: str, arch: str, layers: int, head: bool
) -> None:
    info = read_model(MODELS / f"{name}.gguf")
    assert (info.kind, info.architecture, info.layers) == (kind, arch, layers)
    assert info.has_mtp_head is head
    assert info.vocabulary is not None
    assert info.vocabulary.n_tokens == 4096


def test_parameters_are_counted_from_tensors() -> None:
    assert read_model(MODELS / "target.gguf").parameters == 3_803_392
    assert read_model(MODELS / "draft.gguf").parameters == 504_096


@pytest.mark.parametrize(
    ("vocab", "type_", "n", "add_bos", "bos"),
    [
        # llama.cpp's own files and its defaults for them (llama-vocab.cpp)
        ("llama-spm", "SPM", 32000, True, 1),
        ("phi-3", "SPM", 32064, True, 1),
        ("llama-bpe", "BPE", 128256, True, 128000),
        ("gpt-2", "BPE", 50257, False, 50256),
        ("qwen2", "BPE", 151936, False, 151643),
        ("bert-bge", "WPM", 30522, True, 101),
        ("gemma-4", "BPE", 262144, True, 2),
    ],
)
def test_tokenizer_facts_of_real_vocabularies(
    vocab_dir: Path, vocab: str, type_: str, n: int, add_bos: bool, bos: int
) -> None:
    v = read_model(vocab_dir / f"ggml-vocab-{vocab}.gguf").vocabulary
    assert v is not None
    assert (v.type, v.n_tokens, v.add_bos, v.bos_id) == (type_, n, add_bos, bos)
    assert len(v.tokens) == n


def test_tokenizer_facts_agree_with_llama_cpp(vocab_dir: Path, llama_cpp: Any) -> None:
    """Type, size, special ids and effective add_bos/add_eos of all its vocabulary files."""
    types = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLAMO2"}
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
    llama_cpp.llama_log_set(quiet, None)
    compared = 0
    for path in sorted([*vocab_dir.glob("*.gguf"), *MODELS.glob("*.gguf")]):
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not model:  # llama.cpp no longer loads some of its oldest files
            continue
        vocab = llama_cpp.llama_model_get_vocab(model)
        theirs = (
            types[llama_cpp.llama_vocab_type(vocab)],
            llama_cpp.llama_vocab_n_tokens(vocab),
            llama_cpp.llama_vocab_get_add_bos(vocab),
            llama_cpp.llama_vocab_get_add_eos(vocab),
            llama_cpp.llama_vocab_bos(vocab),
            llama_cpp.llama_vocab_eos(vocab),
        )
        llama_cpp.llama_model_free(model)
        v = read_model(path).vocabulary
        assert v is not None
        ours = (v.type, v.n_tokens, v.add_bos, v.add_eos, v.bos_id, v.eos_id)
        assert ours == theirs, path.name
        compared += 1
    assert compared >= 20


def test_file_types_agree_with_gguf_py() -> None:
    import gguf

    reference = {
        t.value: t.name.replace("MOSTLY_", "").replace("ALL_", "")
        for t in gguf.LlamaFileType
        if t.name != "GUESSED"
    }
    assert {k: FILE_TYPES.get(k) for k in reference} == reference
    assert read_model(MODELS / "target.gguf").file_type == "Q5_1"


def test_special_ids_out_of_range_are_replaced_by_defaults(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TOKENS, fields={"tokenizer.ggml.bos_token_id": 99})
    v = read_model(path).vocabulary
    assert v is not None
    assert v.bos_id == 11
    last, beyond = len(TOKENS) - 1, len(TOKENS)
    for given, read in ((last, last), (beyond, 11)):
        path = write_gguf(
            tmp_path / "m.gguf", TOKENS, fields={"tokenizer.ggml.bos_token_id": given}
        )
        v = read_model(path).vocabulary
        assert v is not None
        assert v.bos_id == read


def test_an_mtp_head_needs_both_the_key_and_the_tensors(tmp_path: Path) -> None:
    key = {"llama.nextn_predict_layers": 1}
    head = "blk.0.nextn.eh_proj.weight"
    only_key = read_model(write_gguf(tmp_path / "a.gguf", TOKENS, fields=key))
    only_tensor = read_model(write_gguf(tmp_path / "b.gguf", TOKENS, tensors=["x", head]))
    assert not only_key.has_mtp_head
    assert not only_tensor.has_mtp_head
    assert only_key.mtp_heads == 1


def test_nextn_layers_of_a_router_are_not_mtp_heads(tmp_path: Path) -> None:
    fields = {"granite.nextn_predict_layers": 1, "granite.router_layer": 1}
    assert read_model(write_gguf(tmp_path / "m.gguf", TOKENS, "granite", fields)).mtp_heads == 0


@pytest.mark.parametrize(
    ("tokenizer", "pre", "type_", "adds", "ids"),
    [
        # llama-vocab.cpp, where the file has no key: (add_bos, add_eos), (bos, eos)
        ("llama", "", "SPM", (True, False), (1, 2)),
        ("gpt2", "gpt-2", "BPE", (False, False), (11, 11)),
        ("gpt2", "falcon3", "BPE", (True, False), (11, 11)),
        ("bert", "", "WPM", (True, False), (101, -1)),
        ("t5", "", "UGM", (False, True), (-1, 1)),
        ("rwkv", "", "RWKV", (False, False), (-1, -1)),
        ("plamo2", "", "PLAMO2", (False, False), (1, 2)),
    ],
)
def test_each_tokenizer_has_its_own_default_tokens(
    tmp_path: Path,
    tokenizer: str,
    pre: str,
    type_: str,
    adds: tuple[bool, bool],
    ids: tuple[int, int],
) -> None:
    vocab = zoo.Vocab(tokenizer, pre, "x", 120)
    v = read_model(zoo.llama(tmp_path / "m.gguf", "m", vocab, 64)).vocabulary
    assert v is not None
    assert (v.type, (v.add_bos, v.add_eos), (v.bos_id, v.eos_id)) == (type_, adds, ids)


def test_gemma_4_always_adds_bos(tmp_path: Path) -> None:
    """llama.cpp ignores the key of its files (PR 21500)."""
    vocab = zoo.Vocab("gemma4", "", "x", 120, ids={"add_bos_token": False})
    v = read_model(zoo.llama(tmp_path / "m.gguf", "m", vocab, 64)).vocabulary
    assert v is not None
    assert (v.type, v.add_bos) == ("BPE", True)


def test_a_head_without_the_targets_blocks_contradicts_nothing() -> None:
    assert read_model(MODELS / "mtp-head.gguf").layout.problem == ""


@pytest.mark.parametrize(
    ("arch", "fields", "tensors", "kind"),
    [
        ("eagle3", {}, ["fc.weight"], "eagle3"),
        ("dflash", {}, ["fc.weight"], "dflash"),
        ("dflash", {}, ["markov_w1.weight"], "dspark"),
        ("gemma4-assistant", {}, ["a"], "gemma4-assistant"),
        ("clip", {}, ["v.blk.0"], "mmproj"),
        ("llama", {"general.type": "adapter"}, ["a"], "adapter"),
        ("llama", {}, [], "vocab-only"),
    ],
)
def test_kinds_of_drafters_and_other_files(
    tmp_path: Path, arch: str, fields: dict[str, str], tensors: list[str], kind: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", TOKENS, arch, fields, tensors)
    assert read_model(path).kind == kind


def test_an_error_for_a_truncated_file_has_the_missing_bytes(tmp_path: Path) -> None:
    raw = (MODELS / "draft.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(raw[:-1000])
    with pytest.raises(GgufError, match="truncated, 1,000 bytes"):
        read_model(tmp_path / "m.gguf")


def test_any_part_of_a_split_model_opens_the_whole_model(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", TOKENS, fields={"split.count": 2})
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(first.read_bytes())
    assert read_model(second).path == first
    first.unlink()
    with pytest.raises(GgufError, match=r"1 of the 2 parts .* missing: m-00001-of-00002"):
        read_model(second)


def _oddities_with(**changed: object) -> list[str]:
    """The oddities of the tiny target with these fields changed; it has none itself."""
    target = read_model(MODELS / "target.gguf")
    usual = list(oddities(target))
    assert usual == []
    return list(oddities(replace(target, **changed)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mtp_heads": 1}, "declares an MTP head"),
        ({"mtp_tensors": True}, "its header does not declare"),
        ({"mtp_heads": 1, "mtp_tensors": True, "mtp_bits": 3.4}, "3.4 bits"),
        ({"kind": "eagle3", "tensors": 0}, "EAGLE-3 file without tensors"),
        ({"vocabulary": None}, "no tokenizer"),
        ({"context_length": None}, "context length"),
        ({"kind": "unknown"}, "no general.architecture"),
        ({"architecture": "gemma4_assistant"}, "old conversion of a Gemma 4 assistant"),
    ],
)
def test_each_oddity_is_reported_in_one_line(changed: dict[str, object], message: str) -> None:
    (line,) = _oddities_with(**changed)
    assert message in line


def test_an_mtp_head_of_four_bits_is_no_oddity() -> None:
    assert _oddities_with(mtp_heads=1, mtp_tensors=True, mtp_bits=4.5) == []
