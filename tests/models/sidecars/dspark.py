"""Trains a DSpark drafter for the tiny target and writes it as `dspark.gguf`.

    pip install torch tokenizers gguf
    python -m tests.models.sidecars.dflash train     # it starts as that drafter
    python -m tests.models.sidecars.dspark train     # --minutes 4: again and again until done
    python -m tests.models.sidecars.dspark export

DFlash, with every place of the block drafting the token behind it, a Markov head that adds
what the token before makes likely, and a head that says how sure that is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from tests.models.train import VOCAB, Model

RANK = 64


class DSpark(Drafter):
    def __init__(self, target: Model, work: Path) -> None:
        super().__init__(target, work)
        self.before = nn.Embedding(VOCAB, RANK)
        self.behind = nn.Linear(RANK, VOCAB, bias=False)
        self.sure = nn.Linear(target.s.d + RANK, 1)
        nn.init.normal_(self.before.weight, std=0.1)
        nn.init.zeros_(self.behind.weight)
        nn.init.zeros_(self.sure.weight)
        trained = work / "dflash.pt"
        if trained.exists():  # all but the two heads
            self.load_state_dict(torch.load(trained)["drafter"], strict=False)

    def said(self, target: Model, states: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the confidence's logit, with the tokens before each place."""
        w = self.before(before)
        logits = F.linear(states, target.embd.weight) + self.behind(w)
        return logits, self.sure(torch.cat((states, w), -1).detach())[..., 0]


def loss_of(target: Model, drafter: DSpark, data: Texts, rng: np.random.Generator) -> Tensor:
    ids, hidden, anchors = data.some(rng)
    block = block_length(rng)
    x = drafter.states(target, hidden, ids, anchors, block).flatten(1, 2)
    places = (anchors[..., None] + torch.arange(block)).flatten(1)
    labels = ids.gather(1, places + 1)
    logits, sure = drafter.said(target, x, ids.gather(1, places))
    right = (logits.argmax(-1) == labels).float()
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    each = each + 0.1 * F.binary_cross_entropy_with_logits(sure, right, reduction="none").flatten()
    return (each.view(-1, block) * later_counts_less(block)).sum(-1).mean()


def drafts(target: Model, drafter: DSpark, hidden: Tensor, ids: Tensor, at: int) -> Tensor:
    """The tokens drafted for the places behind `at`, each with the one before it."""
    x = drafter.states(target, hidden, ids, torch.tensor([[at]]), BLOCK)[0, 0]
    out = [ids[0, at]]
    for state in x:
        out.append(drafter.said(target, state, out[-1])[0].argmax(-1))
    return torch.stack(out[1:])


def export(drafter: DSpark) -> None:
    out = SidecarFile(HERE / "dspark.gguf", "dflash", "Specllama Tiny DSpark")
    add_to(out, drafter)
    out.writer.add_bool("dflash.sample_from_anchor", True)
    out.writer.add_bool("dflash.has_confidence_head", True)
    out.add("markov_w1.weight", drafter.before.weight)
    out.add("markov_w2.weight", drafter.behind.weight)
    out.add("conf_proj.weight", drafter.sure.weight)
    out.add("conf_proj.bias", drafter.sure.bias)
    out.close()


if __name__ == "__main__":
    run("dspark", __doc__, DSpark, 1200, loss_of, drafts, export)
