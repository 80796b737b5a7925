"""Drafters that draft on their own output, learning all steps at once.

Stream 0 has a row per position with the target's hidden states; a row of stream s has what
stream s - 1 said one position before, as the drafter has at its step s.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def stream_mask(length: int, streams: int) -> Tensor:
    """Who sees whom in the last stream s: of stream 0 the keys up to q - s, of stream j the
    key at q - s + j alone. True = seen; (length, streams * length)."""
    s = streams - 1
    q, k = torch.arange(length)[:, None], torch.arange(length)[None]
    parts = [k <= q - s] + [k == q - s + j for j in range(1, streams)]
    mask = torch.cat(parts, 1)
    mask[:s, :1] = True  # rows before the first draft: unused, but they need one key
    return mask


def shifted(y: Tensor) -> Tensor:
    """What each row of the next stream starts from: the row before."""
    return F.pad(y[:, :-1], (0, 0, 1, 0))
