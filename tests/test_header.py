"""The header reader against gguf-py, on damaged input, and under fuzzing."""

from __future__ import annotations

import functools
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.gguf import GgufError, LazyArray, model_info, read_header
from specllama.gguf.header import Header, parse_header
from specllama.gguf.source import BytesSource
from specllama.gguf.types import TENSOR_TYPES
from tests import zoo
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
def test_headers_are_read_as_by_gguf_py(path: Path) -> None:
    same_as_reference(path)


VOCABULARIES = (
    "aquila baichuan bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 gpt-neox "
    "llama-bpe llama-spm mpt nomic-bert-moe phi-3 qwen2 qwen35 refact starcoder"
).split()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_vocabularies_are_read_as_by_gguf_py(vocab_dir: Path, name: str) -> None:
    """Every field, and the output of `inspect`, as gguf-py reads them."""
    path = vocab_dir / f"ggml-vocab-{name}.gguf"
    reference = same_as_reference(path)
    data = json.loads(specllama("inspect", path, "--json").stdout)
    assert data["kind"] == "vocab-only"
    assert data["vocabulary"]["n_tokens"] == len(reference.fields["tokenizer.ggml.tokens"].data)
    for key in ("bos", "eos"):
        field = reference.fields.get(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            assert data["vocabulary"][f"{key}_id"] == field.contents()


def test_every_vocabulary_file_is_tested(vocab_dir: Path) -> None:
    existing = {p.stem.removeprefix("ggml-vocab-") for p in vocab_dir.glob("*.gguf")}
    assert existing == set(VOCABULARIES)


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
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"  <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04 a zip", r"not a GGUF file (it starts with 'PK\x03\x04')"),
        (b"GGUF", "ends within its header"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (b"GGUF" + struct.pack(">I", 2) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62) + bytes(64), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(64), "claims to be"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + bytes(64), "an empty key"),
    ],
)
def test_invalid_files_have_one_clear_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError) as e:
        read_header(path)
    assert message in e.value.message
    assert str(path) in e.value.message


def test_the_error_for_a_missing_file_lists_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "other.gguf").touch()
    with pytest.raises(GgufError, match="no such file") as e:
        read_header(tmp_path / "m.gguf")
    assert "other.gguf" in e.value.hint


def test_an_array_longer_than_the_file_is_an_error_without_allocation(tmp_path: Path) -> None:
    for kind in (0, 8):
        body = struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
        body += struct.pack("<IIQ", 9, kind, 2**60)
        (tmp_path / "m.gguf").write_bytes(b"GGUF" + body + bytes(100))
        with pytest.raises(GgufError, match="ends within its header"):
            read_header(tmp_path / "m.gguf")


def test_the_first_value_of_a_repeated_key_is_used(tmp_path: Path) -> None:
    entries = [struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, v) for v in (1, 2, 3)]
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + b"".join(entries))
    header = read_header(tmp_path / "m.gguf")
    assert header.fields["k"] == 1
    assert header.repeated == ("k", "k")


def _aligned(to: int, tensor: bytes = b"") -> Header:
    """A header that ends at byte 61, and a tensor."""
    key = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, to)
    return parse_header(BytesSource(_hostile(bool(tensor), 1, key + tensor) + bytes(64)))


@pytest.mark.parametrize(("to", "offset"), [(1, 57), (2, 58), (32, 64), (64, 64), (128, 128)])
def test_data_begins_at_the_next_multiple_of_the_alignment(to: int, offset: int) -> None:
    assert _aligned(to).data_offset == offset


@pytest.mark.parametrize("to", [0, 3, 48])
def test_an_alignment_that_is_not_a_power_of_two_is_an_error(to: int) -> None:
    with pytest.raises(GgufError, match=f"general.alignment is {to}, not a power of two"):
        _aligned(to)


def test_a_tensor_of_nine_dimensions_is_an_error() -> None:
    def tensor(dimensions: int) -> bytes:
        shape = struct.pack(f"<{dimensions}Q", *range(1, dimensions + 1))
        return struct.pack("<Q", 1) + b"t" + struct.pack("<I", dimensions) + shape + bytes(12)

    assert _aligned(32, tensor(8)).tensors[0].elements == 40320
    with pytest.raises(GgufError, match="tensor t claims 9 dimensions"):
        _aligned(32, tensor(9))


def test_a_boolean_is_not_read_as_a_number() -> None:
    def number(kind: int, value: bytes) -> int:
        return parse_header(BytesSource(_ONE + struct.pack("<I", kind) + value)).number("k")

    assert number(7, b"\1") == 0
    assert number(4, struct.pack("<I", 7)) == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_array_that_is_not_finite_has_no_numbers(tmp_path: Path, value: float) -> None:
    raw = struct.pack("<IIQ2f", 9, 6, 2, 1.0, value)
    path = zoo.write(tmp_path / "m.gguf", "llama", {"llama.odd": raw}, {})
    h = read_header(path)
    assert (h.numbers("llama.odd"), h.number("llama.odd")) == ((), 0)


def test_arrays_of_arrays_are_errors_as_in_llama_cpp(tmp_path: Path) -> None:
    body = struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + body + bytes(64))
    with pytest.raises(GgufError, match="k is an array of arrays"):
        read_header(tmp_path / "m.gguf")


def _hostile(n_tensors: int, n_fields: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_fields) + rest


_ONE = _hostile(0, 1, struct.pack("<Q", 1) + b"k")
# Claims in the header of a sparse file, and the error of each.
HOSTILE = {
    "2^60 tensors": (_hostile(2**60, 0), "1152921504606846976 tensors needs"),
    "2^60 keys": (_hostile(0, 2**60), "1152921504606846976 keys needs"),
    "as many tensors as fit": (_hostile(2**30 // 25, 0), "larger than 96 MiB"),
    "a million tensors": (_hostile(10**6, 0), "claims 1000000 tensors"),
    "a million keys": (_hostile(0, 10**6), "claims 1000000 keys"),
    "a text of 1 GiB": (_ONE + struct.pack("<IQ", 8, 2**30 - 100), "claims to be 1073741724 bytes"),
    "as many strings as fit": (_ONE + struct.pack("<IIQ", 9, 8, 2**30 // 9), "larger than 96 MiB"),
    "ten million strings": (_ONE + struct.pack("<IIQ", 9, 8, 10**7), "claims 10000000 strings"),
    "2^60 strings": (_ONE + struct.pack("<IIQ", 9, 8, 2**60), "ends within its header"),
    "a string of 1 GiB": (_ONE + struct.pack("<IIQQ", 9, 8, 1, 2**30 - 200), "larger than 96 MiB"),
    "a billion numbers": (_ONE + struct.pack("<IIQ", 9, 0, 2**30 - 200), "larger than 96 MiB"),
}
# Runs in a separate process that is limited to the memory that a reader may use.
_READ = """
import resource, sys
from pathlib import Path
from specllama.errors import SpecllamaError
from specllama.gguf import read_model
_, hard = resource.getrlimit(resource.RLIMIT_AS)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, hard))
for path in sys.argv[1:]:
    try:
        read_model(Path(path))
        print("read")
    except SpecllamaError as e:
        print(e.message)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_memory_for_reading_a_header_is_limited(tmp_path: Path) -> None:
    """Sparse files of zeros, and the largest header that is accepted."""
    paths = []
    for i, (start, _) in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{i}.gguf")
        with paths[-1].open("wb") as f:
            f.write(start)
            f.truncate(2**30)
    paths.append(_largest(tmp_path / "largest.gguf"))
    argv = [sys.executable, "-c", _READ, *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(HOSTILE) + 1
    for line, (name, (_, expected)) in zip(lines, HOSTILE.items(), strict=False):
        assert expected in line, name
    assert lines[-1] == "read"


def _largest(path: Path) -> Path:
    """A header close to the limits of tensors, text lengths and tokens."""
    text = struct.pack("<Q", 1) + b"t" + struct.pack("<IQ", 8, 15 * 2**20) + b"\xff" * (15 * 2**20)
    tokens = struct.pack("<Q", 21) + b"tokenizer.ggml.tokens"
    tokens += struct.pack("<IIQ", 9, 8, 1_900_000) + bytes(8 * 1_900_000)
    model = struct.pack("<Q", 20) + b"tokenizer.ggml.model" + struct.pack("<IQ", 8, 4) + b"gpt2"
    tensor = struct.pack("<Q", 5) + b"%05d" + struct.pack("<IIQ", 0, 0, 0)
    table = b"".join(tensor % i for i in range(60_000))
    path.write_bytes(_hostile(60_000, 3, text + tokens + model + table) + bytes(32))
    return path


def test_arrays_too_long_for_one_number_per_layer_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.gguf").open("wb") as f:
        f.write(_ONE + struct.pack("<IIQ", 9, 0, 2**26))
        f.truncate(2**27)
    header = read_header(tmp_path / "m.gguf")
    assert header.numbers("k") == ()
    assert header.number("k") == 0


@functools.cache
def _small() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tokens = ["<s>", "a", "b", "ab", "é"]
        path = write_gguf(Path(folder) / "s.gguf", tokens, fields={"general.name": "x", "k": 7})
        return path.read_bytes()


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_raise_only_gguf_errors(data: st.DataObject) -> None:
    raw = bytearray(_small())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    try:
        header = parse_header(BytesSource(bytes(raw)))
        _ = header.missing_bytes
        _ = model_info([header], [Path("m.gguf")]).faults
        for value in header.fields.values():
            if isinstance(value, LazyArray) and value.kind == 8:
                assert len(value.strings()) == value.count
    except GgufError:
        pass


def test_every_truncation_is_detected() -> None:
    raw = _small()
    whole = parse_header(BytesSource(raw))
    assert whole.missing_bytes == 0
    for size in range(len(raw)):
        try:
            truncated = parse_header(BytesSource(raw[:size]))
        except GgufError:
            assert size < whole.data_offset
            continue
        assert truncated.missing_bytes == len(raw) - size
