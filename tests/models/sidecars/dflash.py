"""Trains a DFlash drafter for the tiny target and writes it as `dflash.gguf`.

    pip install torch tokenizers gguf
    python -m tests.models.sidecars.dflash train     # --minutes 4: again and again until done
    python -m tests.models.sidecars.dflash export

A block is the last token and BLOCK - 1 masks; each mask says the token of its own place.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.sidecars.blocks import (
    BLOCK,
    Drafter,
    Texts,
    add_to,
    block_length,
    later_counts_less,
    run,
)
from tests.models.sidecars.sidecar_file import SidecarFile
from tests.models.sidecars.target import HERE
from tests.models.train import Model


def loss_of(target: Model, drafter: Drafter, data: Texts, rng: np.random.Generator) -> Tensor:
    ids, hidden, anchors = data.some(rng)
    block = block_length(rng)
    x = drafter.states(target, hidden, ids, anchors, block)[:, :, 1:]
    labels = ids.gather(1, (anchors[..., None] + torch.arange(1, block)).flatten(1))
    logits = F.linear(x, target.embd.weight)
    each = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
    return (each.view(-1, block - 1) * later_counts_less(block - 1)).sum(-1).mean()


def drafts(target: Model, drafter: Drafter, hidden: Tensor, ids: Tensor, at: int) -> Tensor:
    """The tokens drafted for the places behind `at`."""
    x = drafter.states(target, hidden, ids, torch.tensor([[at]]), BLOCK)
    return F.linear(x[0, 0, 1:], target.embd.weight).argmax(-1)


def export(drafter: Drafter) -> None:
    out = SidecarFile(HERE / "dflash.gguf", "dflash", "Specllama Tiny DFlash")
    add_to(out, drafter)
    out.close()


if __name__ == "__main__":
    run("dflash", __doc__, Drafter, 1600, loss_of, drafts, export)
