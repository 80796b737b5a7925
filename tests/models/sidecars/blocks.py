"""A drafter of blocks for the tiny target: the network that DFlash and DSpark share, its training,
and how it is written (src/models/dflash.cpp and common/speculative.cpp, b11434).

One pass drafts a whole block: the last token and masks for the places behind it look at the
target's hidden states of everything before, and at each other.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.sidecars.sidecar_file import SidecarFile
from tests.models.sidecars.target import (
    PROMPT,
    WRITTEN,
    continue_greedily,
    held_prompts,
    layer_inputs,
    read,
    written,
)
from tests.models.train import Model, Norm

LAYERS_READ = (1, 2, 3)  # inputs of these layers of the target; llama.cpp shows 0 to 3
BLOCK = 8
MASK = 188  # the byte 0xFF, which no text holds
TEXTS = 576  # that the target wrote
ROWS, ANCHORS = 4, 16  # texts per step, blocks in each
HEADS, KV_HEADS, SIZE, FF, DEPTH = 4, 2, 64, 640, 3


class Layer(nn.Module):
    """A Qwen3 block: normed queries and keys, half-split RoPE."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(d), Norm(d)
        self.q_norm, self.k_norm = Norm(SIZE), Norm(SIZE)
        self.q = nn.Linear(d, HEADS * SIZE, bias=False)
        self.k = nn.Linear(d, KV_HEADS * SIZE, bias=False)
        self.v = nn.Linear(d, KV_HEADS * SIZE, bias=False)
        self.o = nn.Linear(HEADS * SIZE, d, bias=False)
        self.gate = nn.Linear(d, FF, bias=False)
        self.up = nn.Linear(d, FF, bias=False)
        self.down = nn.Linear(FF, d, bias=False)

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (rows, KV_HEADS, places, SIZE)."""
        k, v = _by_head(self.k(x)), _by_head(self.v(x))
        return _rope(self.k_norm(k), positions), v

    def forward(
        self, x: Tensor, positions: Tensor, seen: tuple[Tensor, Tensor], may: Tensor
    ) -> Tensor:
        h = self.attn_norm(x)
        q = _rope(self.q_norm(_by_head(self.q(h))), positions)
        k, v = (torch.cat(both, 2) for both in zip(seen, self.keys(h, positions), strict=True))
        groups = HEADS // KV_HEADS
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _by_head(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], -1, SIZE).transpose(1, 2)


def _rope(x: Tensor, positions: Tensor) -> Tensor:
    """Half-split RoPE; positions: (rows, places)."""
    freq = 10000.0 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
    angle = (positions.float()[..., None] * freq)[:, None]
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def _half_split(weight: Tensor) -> Tensor:
    """Rows for interleaved RoPE → rows for half-split RoPE."""
    heads = weight.view(-1, SIZE, weight.shape[1])
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).reshape(weight.shape)


class Drafter(nn.Module):
    """`states` gives the normed hidden state of every place of every block."""

    def __init__(self, target: Model, work: Path) -> None:
        """`work`: the folder of what was trained before."""
        super().__init__()
        d = target.s.d
        self.fc = nn.Linear(len(LAYERS_READ) * d, d, bias=False)
        self.enc_norm, self.norm = Norm(d), Norm(d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(DEPTH))
        self._start_as(target)

    @torch.no_grad()
    def _start_as(self, target: Model) -> None:
        """The target's last layer over the input of that layer: halves the training."""
        last = target.blocks[-1]
        d = target.s.d
        nn.init.normal_(self.fc.weight, std=0.01)
        self.fc.weight[:, -d:] += torch.eye(d)
        self.enc_norm.weight.copy_(last.attn_norm.weight)
        self.norm.weight.copy_(target.norm.weight)
        for layer, block in zip(self.layers, list(target.blocks)[-DEPTH:], strict=True):
            for part in ("gate", "up", "down", "ffn_norm"):
                getattr(layer, part).weight.copy_(getattr(block, part).weight)
            for part in ("v", "o", "attn_norm"):
                getattr(layer, part).weight.copy_(getattr(last, part).weight)
            for part in ("q", "k"):
                getattr(layer, part).weight.copy_(_half_split(getattr(last, part).weight))

    def states(
        self, target: Model, hidden: Tensor, ids: Tensor, anchors: Tensor, block: int
    ) -> Tensor:
        """hidden: (rows, places, layers · width); anchors: (rows, n) → (rows, n, block, width).

        A block sees everything strictly before its anchor and all of itself."""
        rows, n = anchors.shape
        places = torch.arange(ids.shape[1]).expand(rows, -1)
        own = (anchors[..., None] + torch.arange(block)).flatten(1)
        tokens = torch.full((rows, n, block), MASK)
        tokens[:, :, 0] = ids.gather(1, anchors)
        before = places[:, None, :] < anchors.repeat_interleave(block, 1)[..., None]
        of = torch.arange(n).repeat_interleave(block)
        same = (of[:, None] == of[None, :]).expand(rows, -1, -1)
        may = torch.cat((before, same), 2)[:, None]
        g = self.enc_norm(self.fc(hidden))
        x = target.embd(tokens).flatten(1, 2)
        for layer in self.layers:
            x = layer(x, own, layer.keys(g, places), may)
        return self.norm(x).view(rows, n, block, -1)


Loss = Callable[[Model, Any, "Texts", np.random.Generator], Tensor]
Drafts = Callable[[Model, Any, Tensor, Tensor, int], Tensor]


# ---- training -------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """What the target wrote, and the inputs of its layers there."""

    ids: Tensor  # (texts, places)
    hidden: Tensor  # (texts, places, layers · width), float16

    def some(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """ids, hidden, anchors of ROWS texts; the anchors lie in what the target wrote."""
        rows = torch.from_numpy(rng.integers(0, len(self.ids), ROWS))
        anchors = rng.integers(PROMPT - 1, PROMPT + WRITTEN - BLOCK - 1, (ROWS, ANCHORS))
        return self.ids[rows], self.hidden[rows].float(), torch.from_numpy(anchors)


def seen(target: Model, ids: Tensor) -> Tensor:
    """What a drafter is given of these tokens, (rows, places, layers · width)."""
    states = layer_inputs(target, ids)
    return torch.cat([states[i] for i in LAYERS_READ], -1)


@torch.no_grad()
def texts(target: Model, work: Path) -> Texts:
    ids = written(target, work, TEXTS)
    return Texts(ids, torch.cat([seen(target, b).half() for b in ids.split(16)]))


def block_length(rng: np.random.Generator) -> int:
    """llama.cpp runs a block of just the length that K asks for: mostly the longest."""
    return BLOCK if rng.random() < 0.5 else int(rng.integers(2, BLOCK))


def later_counts_less(length: int) -> Tensor:
    w = torch.exp(-torch.arange(length) / 4)
    return w / w.sum()


def train(
    drafter: nn.Module,
    checkpoint: Path,
    steps: int,
    minutes: float,
    loss: Callable[[np.random.Generator], Tensor],
) -> None:
    """Until `steps` are done, or for `minutes`: the next call goes on where this one stopped."""
    opt = torch.optim.AdamW(drafter.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.02)
    done, start = 0, time.monotonic()
    shown: list[float] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        drafter.load_state_dict(saved["drafter"])
        opt.load_state_dict(saved["opt"])
        done = saved["done"]
    while done < steps and time.monotonic() - start < 60 * minutes:
        rise = min(1, (done + 1) / 100)
        fall = 0.03 + 0.97 * (0.5 + 0.5 * math.cos(math.pi * done / steps))
        opt.param_groups[0]["lr"] = 2e-3 * rise * fall
        value = loss(np.random.default_rng(done))
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        opt.step()
        done += 1
        shown.append(value.item())
        if done % 50 == 0:
            print(f"step {done} of {steps}: loss {np.mean(shown[-50:]):.3f}", flush=True)
    torch.save({"drafter": drafter.state_dict(), "opt": opt.state_dict(), "done": done}, checkpoint)


# ---- the file -------------------------------------------------------------


def add_to(out: SidecarFile, drafter: Drafter) -> None:
    """Keys and tensors of the network; the embeddings and the head are the target's own."""
    out.sizes(drafter.fc.weight.shape[0], DEPTH, FF, HEADS, KV_HEADS, SIZE)
    out.writer.add_array("dflash.target_layers", list(LAYERS_READ))
    out.writer.add_uint32("dflash.block_size", BLOCK)
    out.writer.add_uint32("tokenizer.ggml.mask_token_id", MASK)
    out.add("fc.weight", drafter.fc.weight)
    out.add("enc.output_norm.weight", drafter.enc_norm.weight)
    out.add("output_norm.weight", drafter.norm.weight)
    renamed = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    renamed |= {p: f"ffn_{p}" for p in ("gate", "up", "down")}
    renamed |= {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    for i, layer in enumerate(drafter.layers):
        for name, value in layer.named_parameters():
            part = name.removesuffix(".weight")
            out.add(f"blk.{i}.{renamed.get(part, part)}.weight", value)


# ---- what it would accept -------------------------------------------------


@torch.no_grad()
def accepted(
    target: Model, drafter: Drafter, drafts: Drafts, prompts: list[list[int]]
) -> list[float]:
    """Share of verify steps in which the first i drafted tokens are right, over 64 tokens each."""
    hits: list[Tensor] = []
    for prompt in prompts:
        ids = continue_greedily(target, torch.tensor([prompt]), 64 + BLOCK + 1)
        hidden = seen(target, ids)
        at = len(prompt)
        while at < len(prompt) + 64:
            said = drafts(target, drafter, hidden, ids, at)
            right = (said == ids[0, at + 1 : at + 1 + len(said)]).int().cumprod(0)
            hits.append(right)
            at += int(right.sum()) + 1
    return [round(float(x), 2) for x in torch.stack(hits).float().mean(0)]


# ---- the command ----------------------------------------------------------


def run(
    name: str,
    about: str | None,
    kind: Callable[[Model, Path], Drafter],
    steps: int,
    loss_of: Loss,
    drafts: Drafts,
    export: Callable[[Any], None],
) -> None:
    ap = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("what", choices=["train", "export"])
    ap.add_argument("--work", type=Path, default=Path("build/sidecars"))
    ap.add_argument("--steps", type=int, default=steps)
    ap.add_argument("--minutes", type=float, default=600, help="stop sooner; the next call goes on")
    args = ap.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    target = read()
    drafter = kind(target, args.work)
    checkpoint = args.work / f"{name}.pt"
    if args.what == "train":
        data = texts(target, args.work)
        loss = partial(loss_of, target, drafter, data)
        train(drafter, checkpoint, args.steps, args.minutes, loss)
        print(accepted(target, drafter, drafts, held_prompts(args.work, "code", 12)))
        return
    drafter.load_state_dict(torch.load(checkpoint)["drafter"])
    export(drafter)
