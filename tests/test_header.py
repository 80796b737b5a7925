"""The header reader against gguf-py, on damaged input, and under fuzzing."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.gguf import GgufError, LazyArray, read_header
from specllama.gguf.header import parse_header
from specllama.gguf.source import BytesSource
from specllama.gguf.types import TENSOR_TYPES
from tests.support import MODELS, specllama, write_gguf


def same_as_reference(path: Path) -> Any:
    """Compares every field and tensor with gguf-py's reading, and returns that."""
    ours, reference = read_header(path), gguf.GGUFReader(path)
    keys = [k for k in reference.fields if not k.startswith("GGUF.")]
    assert set(ours.fields) == set(keys)
    for key in keys:
        value, field = ours.fields[key], reference.fields[key]
        if isinstance(value, LazyArray) and value.kind == 8:
            assert value.strings() == [bytes(field.parts[i]) for i in field.data], key
        elif isinstance(value, LazyArray):
            assert value.numbers() == pytest.approx([field.parts[i][0] for i in field.data]), key
        else:
            theirs = field.contents()
            assert value == (pytest.approx(theirs) if isinstance(theirs, float) else theirs), key
    assert [t.name for t in ours.tensors] == [t.name for t in reference.tensors]
    for a, b in zip(ours.tensors, reference.tensors, strict=True):
        assert a.shape == tuple(int(n) for n in b.shape)
        assert a.nbytes == b.n_bytes
        assert a.kind == b.tensor_type.name
        assert ours.data_offset + a.offset == b.data_offset
    return reference


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.gguf")), ids=lambda p: p.name)
def test_reads_what_gguf_py_reads(path: Path) -> None:
    same_as_reference(path)


VOCABULARIES = (
    "aquila baichuan bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 gpt-neox "
    "llama-bpe llama-spm mpt nomic-bert-moe phi-3 qwen2 qwen35 refact starcoder"
).split()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_vocabularies(vocab_dir: Path, name: str) -> None:
    """Field by field, and what `inspect` says of the file, as gguf-py reads them."""
    path = vocab_dir / f"ggml-vocab-{name}.gguf"
    reference = same_as_reference(path)
    data = json.loads(specllama("inspect", path, "--json").stdout)
    assert data["kind"] == "vocab-only"
    assert data["vocabulary"]["n_tokens"] == len(reference.fields["tokenizer.ggml.tokens"].data)
    for key in ("bos", "eos"):
        field = reference.fields.get(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            assert data["vocabulary"][f"{key}_id"] == field.contents()


def test_no_vocabulary_file_is_left_out(vocab_dir: Path) -> None:
    there = {p.stem.removeprefix("ggml-vocab-") for p in vocab_dir.glob("*.gguf")}
    assert there == set(VOCABULARIES)


def test_tensor_types_are_those_of_gguf_py() -> None:
    reference = {
        t.value: (t.name, *gguf.GGML_QUANT_SIZES[t])
        for t in gguf.GGMLQuantizationType
        if t in gguf.GGML_QUANT_SIZES
    }
    assert {k: v for k, v in TENSOR_TYPES.items() if k in reference} == {
        k: v for k, v in reference.items() if k in TENSOR_TYPES
    }
    assert set(reference) - set(TENSOR_TYPES) == set()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"  <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04 a zip", "not a GGUF file"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "ends inside its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62) + bytes(64), "ends inside its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(64), "claims to be"),
    ],
)
def test_bad_files_have_one_clear_reason(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError) as e:
        read_header(path)
    assert says in e.value.message
    assert str(path) in e.value.message


def test_missing_file_names_the_ones_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "other.gguf").touch()
    with pytest.raises(GgufError, match="no such file") as e:
        read_header(tmp_path / "m.gguf")
    assert "other.gguf" in e.value.hint


def test_array_longer_than_the_file_is_an_error_not_an_allocation(tmp_path: Path) -> None:
    for kind in (0, 8, 9):
        body = struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
        body += struct.pack("<IIQ", 9, kind, 2**60)
        (tmp_path / "m.gguf").write_bytes(b"GGUF" + body + bytes(100))
        with pytest.raises(GgufError, match="ends inside its header"):
            read_header(tmp_path / "m.gguf")


def test_of_a_repeated_key_the_first_counts(tmp_path: Path) -> None:
    entries = [struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, v) for v in (1, 2)]
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + b"".join(entries))
    assert read_header(tmp_path / "m.gguf").fields["k"] == 1


@functools.cache
def _small() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tokens = ["<s>", "a", "b", "ab", "é"]
        path = write_gguf(Path(folder) / "s.gguf", tokens, fields={"general.name": "x", "k": 7})
        return path.read_bytes()


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    raw = bytearray(_small())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    try:
        header = parse_header(BytesSource(bytes(raw)))
        _ = header.missing_bytes
        for value in header.fields.values():
            if isinstance(value, LazyArray) and value.kind == 8:
                assert len(value.strings()) == value.count
    except GgufError:
        pass


def test_every_truncation_is_noticed() -> None:
    raw = _small()
    whole = parse_header(BytesSource(raw))
    assert whole.missing_bytes == 0
    for size in range(len(raw) - 1):
        try:
            cut = parse_header(BytesSource(raw[:size]))
        except GgufError:
            continue
        assert cut.missing_bytes > 0, size
