"""What the tensors of a model add up to: bytes read per token, the main type, bits per weight."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specllama.gguf.header import Tensor


def block_number(name: str) -> int:
    """The block of a tensor, -1 if none."""
    m = re.match(r"blk\.(\d{1,9})\.", name)
    return int(m[1]) if m else -1


def active_bytes(tensors: Sequence[Tensor], layers: int, experts: int, used: int) -> int:
    """Bytes read per token. The token table is read by row, unless it is also the output matrix;
    `used` of `experts` are read; MTP blocks are not."""
    tied = not any(t.name == "output.weight" for t in tensors)
    total = 0.0
    for t in tensors:
        size = float(t.nbytes or 0)
        if block_number(t.name) >= layers or (t.name == "token_embd.weight" and not tied):
            continue
        if "_exps." in t.name and experts:
            size *= min(1.0, used / experts)
        total += size
    return int(total)


def head_bits(head: Sequence[Tensor]) -> float:
    """Bits per weight of a head's matrices. Norms are not quantised, and token tables rarely like
    the rest: neither affects how well the head drafts."""
    matrices = [
        t
        for t in head
        if len(t.shape) > 1
        and min(t.shape[:2]) > 1
        and t.nbytes is not None
        and not t.name.endswith((".embed_tokens.weight", ".shared_head_head.weight"))
    ]
    elements = sum(t.elements for t in matrices)
    return sum(t.nbytes or 0 for t in matrices) * 8 / elements if elements else 0.0


def main_type(tensors: Sequence[Tensor]) -> str:
    """The tensor type that holds the most bytes."""
    by_type: dict[str, int] = {}
    for t in tensors:
        by_type[t.kind] = by_type.get(t.kind, 0) + (t.nbytes or 0)
    return max(by_type, key=lambda k: by_type[k]) if by_type else ""
