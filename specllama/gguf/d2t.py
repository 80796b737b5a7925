"""d2t: the tokens that the rows of a drafter's reduced output map to. The only tensor data that
is ever read."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from specllama.gguf import architectures
from specllama.gguf.faults import ALWAYS, Fault
from specllama.gguf.header import Header
from specllama.gguf.source import Source

_MAX_ROWS = 1 << 20  # no vocabulary is larger


def d2t_fault(headers: Sequence[Header], files: Sequence[Source], tokens: int) -> Fault | None:
    """The first row of d2t that maps to no token of the vocabulary: a ggml assertion crashes the
    server at startup (ggml/src/ggml-cpu/ops.cpp, set_rows, b11434). `files`: the sources of the
    headers. Raises GgufError if the file changes in the meantime."""
    if headers[0].text("general.architecture") not in architectures.SIDECARS:
        return None
    for header, file in zip(headers, files, strict=True):
        for t in header.tensors:
            if t.name != "d2t" or t.kind != "I64" or t.elements > _MAX_ROWS:
                continue
            data = file.read(header.data_offset + t.offset, t.elements * 8)
            ids = struct.unpack(f"<{len(data) // 8}q", data[: len(data) // 8 * 8])
            bad = next((i for i, token in enumerate(ids) if not 0 <= token < tokens), None)
            if bad is not None:
                detail = f"row {bad} of d2t maps to token {ids[bad]}, but the vocabulary has only {tokens} tokens"
                return Fault("d2t", detail, ALWAYS)
    return None
