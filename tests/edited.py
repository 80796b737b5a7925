"""Copies of a small real model with edited headers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from specllama.gguf.cursor import Cursor
from specllama.gguf.header import parse_header
from specllama.gguf.source import BytesSource
from specllama.gguf.types import TENSOR_TYPES, nbytes
from tests.zoo import Value, key_value

_IDS = {name: i for i, (name, _, _) in TENSOR_TYPES.items()}


def edited(
    source: Path,
    to: Path,
    fields: Mapping[str, Value | bytes] | None = None,
    drop: Sequence[str] = (),
    add: Mapping[str, tuple[Sequence[int], str | int]] | None = None,
    repeat: str = "",
    data: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes `source` to `to`. `fields`: keys to set (bytes: the raw type and
    value); `drop`: keys and tensors to leave out; `add`: tensors of zeros to add, or to replace by
    another shape and type (a name or an ID); `repeat`: a key or tensor to write twice; `data`:
    contents of added tensors instead of zeros."""
    raw = source.read_bytes()
    changed, added = dict(fields or {}), dict(add or {})
    head = parse_header(BytesSource(raw))
    entries = []
    for key, entry in _entries(raw):
        if key not in drop and key not in changed:
            entries += [entry] * (2 if key == repeat else 1)
    entries += [key_value(k, v) for k, v in changed.items()]
    tensors: list[tuple[str, Sequence[int], int, bytes]] = []
    for t in head.tensors:
        if t.name not in drop and t.name not in added:
            at = head.data_offset + t.offset
            row = (t.name, t.shape, _IDS[t.kind], raw[at : at + (t.nbytes or 0)])
            tensors += [row] * (2 if t.name == repeat else 1)
    for name, (shape, kind) in added.items():
        number = kind if isinstance(kind, int) else _IDS[kind]
        elements = 1
        for n in shape:
            elements *= n
        content = (data or {}).get(name, bytes(nbytes(number, elements) or 64))
        tensors.append((name, shape, number, content))
    to.write_bytes(_written(entries, tensors))
    return to


def _entries(raw: bytes) -> list[tuple[str, bytes]]:
    """Each key with the raw bytes of its entry."""
    c = Cursor(BytesSource(raw))
    c.take(16, "")
    out = []
    for _ in range(c.u64("")):
        start = c.at
        key = c.string("")
        c.value(c.u32(""), key)
        out.append((key, raw[start : c.at]))
    return out


def _written(
    entries: Sequence[bytes], tensors: Sequence[tuple[str, Sequence[int], int, bytes]]
) -> bytes:
    table, data = b"", b""
    for name, shape, kind, content in tensors:
        dims = b"".join(struct.pack("<Q", n) for n in shape)
        table += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape)) + dims
        table += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + table
    return head + bytes(-len(head) % 32) + data
