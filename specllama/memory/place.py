"""Which device gets which block: llama.cpp's own rule (src/llama-model.cpp, load_tensors)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

RAM = "RAM"


def place(
    blocks: int, gpu_layers: int | None, devices: Sequence[str], shares: Sequence[float]
) -> list[str]:
    """The device of each block and, last, of the output.

    Of `gpu_layers` (None = all) the last block and the output are the first to go to a GPU;
    several GPUs get theirs in order, by `shares` (free memory, or -ts).
    """
    total = blocks + 1
    wanted = total if gpu_layers is None else min(max(0, gpu_layers), total)
    if not devices or not wanted or sum(shares) <= 0:
        return [RAM] * total
    first = total - wanted
    ends = [s / sum(shares) for s in accumulate(shares)]
    out = [RAM] * first
    for i in range(first, total):
        at = min(bisect_right(ends, (i - first) / wanted), len(devices) - 1)
        out.append(devices[at])
    return out
