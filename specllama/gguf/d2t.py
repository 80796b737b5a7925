"""d2t: which tokens the rows of a drafter's shortened output stand for. Tensor data, the only
one that is ever read."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from specllama.gguf import architectures
from specllama.gguf.faults import ALWAYS, Fault
from specllama.gguf.header import Header
from specllama.gguf.source import Source

_MOST_ROWS = 1 << 20  # no vocabulary is longer


def d2t_fault(headers: Sequence[Header], files: Sequence[Source], tokens: int) -> Fault | None:
    """The first row of d2t that stands for no token of the vocabulary: an assertion of ggml ends
    the server there while it starts (ggml/src/ggml-cpu/ops.cpp, set_rows, b11434). `files`:
    what the headers were read from. Raises GgufError when the file changes meanwhile."""
    if headers[0].text("general.architecture") not in architectures.SIDECARS:
        return None
    for header, file in zip(headers, files, strict=True):
        for t in header.tensors:
            if t.name != "d2t" or t.kind != "I64" or t.elements > _MOST_ROWS:
                continue
            data = file.read(header.data_offset + t.offset, t.elements * 8)
            ids = struct.unpack(f"<{len(data) // 8}q", data[: len(data) // 8 * 8])
            bad = next((i for i, token in enumerate(ids) if not 0 <= token < tokens), None)
            if bad is not None:
                said = f"row {bad} of its d2t stands for token {ids[bad]}"
                return Fault("d2t", f"{said}, the vocabulary has {tokens}", ALWAYS)
    return None
