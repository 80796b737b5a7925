"""The device of each block, by llama.cpp's rule (src/llama-model.cpp, load_tensors)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

RAM = "RAM"


def assign_devices(
    blocks: int, gpu_layers: int | None, devices: Sequence[str], shares: Sequence[float]
) -> list[str]:
    """The device of each block and, last, of the output.

    The last `gpu_layers` (None = all), starting with the output and the last block, go to GPUs;
    several GPUs get theirs in order, by `shares` (free memory, or -ts).
    """
    total = blocks + 1
    on_gpu = total if gpu_layers is None else min(max(0, gpu_layers), total)
    if not devices or not on_gpu or sum(shares) <= 0:
        return [RAM] * total
    first = total - on_gpu
    ends = [s / sum(shares) for s in accumulate(shares)]
    out = [RAM] * first
    for i in range(first, total):
        at = min(bisect_right(ends, (i - first) / on_gpu), len(devices) - 1)
        out.append(devices[at])
    return out
