"""Trains the EAGLE-3 head of this folder's target and writes `eagle3.gguf`.

    pip install torch tokenizers gguf
    python -m tests.models.sidecars.eagle3            # about 10 minutes on one core

The graph is llama.cpp's (src/models/eagle3.cpp, b11434): the row at position p takes the
token at p + 1 and the target's features at p, and says the token at p + 2. The head learns
on its own outputs too (streams 1 and 2), as it drafts on them. Work in WORK is taken up
where it was broken off; the same seed gives the same file.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.sidecars.sidecar_file import SidecarFile
from tests.models.sidecars.streams import shifted, stream_mask
from tests.models.sidecars.target import (
    HERE,
    PROMPT,
    continue_greedily,
    encoded,
    layer_inputs,
    read,
    windows,
    written,
)
from tests.models.train import Model, Norm, rope

TARGET_LAYERS = (1, 2, 3)  # the inputs of these layers; llama's last output has no hook
HEADS = 4
STREAMS = 3
STREAM_WEIGHT = 0.8
ROWS = 4
CANDIDATES = 8


class Head(nn.Module):
    """One EAGLE-3 layer; embeddings and output matrix are the target's."""

    def __init__(self, target: Model) -> None:
        super().__init__()
        d, ff = target.s.d, target.s.ff
        self.size = d // HEADS
        self.fc = nn.Linear(len(TARGET_LAYERS) * d, d, bias=False)
        self.attn_norm, self.attn_norm_2, self.ffn_norm = Norm(d), Norm(d), Norm(d)
        self.norm = Norm(d)
        self.q, self.k, self.v = (nn.Linear(2 * d, d, bias=False) for _ in range(3))
        self.o = nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, ff, bias=False), nn.Linear(d, ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)
        self._start_from(target)

    @torch.no_grad()
    def _start_from(self, target: Model) -> None:
        """The target's last layer, with the features of its input."""
        d, last = target.s.d, target.blocks[-1]
        self.fc.weight.normal_(std=0.01)
        self.fc.weight[:, -d:] += torch.eye(d)
        for own, theirs in ((self.q, last.q), (self.k, last.k), (self.v, last.v)):
            own.weight.normal_(std=0.02)
            by_head = theirs.weight.view(-1, self.size, d)  # the target shares keys and values
            own.weight[:, d:] = by_head.repeat_interleave(HEADS // len(by_head), 0).view(d, d)
        for part in ("o", "gate", "up", "down", "ffn_norm"):
            getattr(self, part).weight.copy_(getattr(last, part).weight)
        self.attn_norm_2.weight.copy_(last.attn_norm.weight)
        self.norm.weight.copy_(target.norm.weight)

    def row(self, embedded: Tensor, g: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One stream's rows; `past` holds the earlier streams' keys and values and gets
        this one's."""
        b, t, d = g.shape
        c = torch.cat((self.attn_norm(embedded), self.attn_norm_2(g)), -1)
        q, k, v = (
            part(c).view(b, t, HEADS, self.size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        past.append((rope(k, True), v))
        keys, values = (torch.cat([p[i] for p in past], 2) for i in (0, 1))
        a = F.scaled_dot_product_attention(
            rope(q, True), keys, values, attn_mask=stream_mask(t, len(past))
        )
        u = g + self.o(a.transpose(1, 2).reshape(b, t, d))
        n = self.ffn_norm(u)
        return u + self.down(F.silu(self.gate(n)) * self.up(n))


@dataclass
class Lessons:
    """What the frozen target says about the text, computed once; rows × positions × …

    `states`: the layer inputs side by side, for all positions but the last two.
    `best`, `shares`: its likeliest tokens after token q + 1, and how much each weighs.
    """

    ids: Tensor
    states: Tensor
    best: Tensor
    shares: Tensor


@torch.no_grad()
def lesson(target: Model, ids: Tensor) -> Lessons:
    states = layer_inputs(target, ids[:, :-1])
    best = F.softmax(target.logits(states[-1][:, 1:]), -1).topk(CANDIDATES)
    # Half the target's choice, half its distribution.
    shares = 0.5 * best.values / best.values.sum(-1, keepdim=True)
    shares[..., 0] += 0.5
    side_by_side = torch.cat([states[i] for i in TARGET_LAYERS], -1)[:, :-1]
    return Lessons(ids, side_by_side.half(), best.indices, shares)


def lessons(target: Model, ids: Tensor, work: Path) -> Lessons:
    """Of many rows; kept in WORK, piece by piece."""
    parts: list[dict[str, Tensor]] = []
    for i, some in enumerate(ids.split(32)):
        cache = work / f"eagle3-lesson-{i}.pt"
        if not cache.exists():
            torch.save(vars(lesson(target, some)), cache)
        parts.append(torch.load(cache))
    return Lessons(**{name: torch.cat([p[name] for p in parts]) for name in parts[0]})


def streams_of(head: Head, target: Model, states: Tensor, ids: Tensor, count: int) -> list[Tensor]:
    """Logits of `count` streams, each (rows, length - 2, vocabulary); row q says token q + 2."""
    embedded = target.embd(ids[:, 1:-1])
    g = head.fc(states)
    past: list[tuple[Tensor, Tensor]] = []
    found = []
    for _ in range(count):
        y = head.row(embedded, g, past)
        found.append(F.linear(head.norm(y), target.embd.weight))
        g = shifted(y)
    return found


def loss_of(head: Head, target: Model, own: Lessons, rows: Tensor, count: int) -> Tensor:
    """Distance from the target's next tokens; later streams weigh less."""
    total = torch.zeros(())
    said = streams_of(head, target, own.states[rows].float(), own.ids[rows], count)
    for s, logits in enumerate(said):
        chosen = logits.gather(2, own.best[rows]) - logits.logsumexp(-1, keepdim=True)
        part = -(own.shares[rows] * chosen).sum(-1)[:, s:].mean()
        total = total + STREAM_WEIGHT**s * part
    return total


@torch.no_grad()
def agreement(head: Head, target: Model, held: Lessons) -> list[float]:
    """Share of positions where stream i says what the target wrote, after the prompt."""
    said = streams_of(head, target, held.states.float(), held.ids, STREAMS)
    right = [(x.argmax(-1) == held.ids[:, 2:])[:, PROMPT:] for x in said]
    return [r.float().mean().item() for r in right]


def train(work: Path, steps: int, seconds: float) -> Head | None:
    """The trained head, or None when the time of this call was over before."""
    start = time.monotonic()
    torch.manual_seed(1)
    target = read()
    head = Head(target)
    opt = torch.optim.AdamW(head.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.02)
    checkpoint, step = work / "eagle3.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        head.load_state_dict(saved["head"])
        opt.load_state_dict(saved["opt"])
        step = saved["step"]
    texts, own_hand = encoded(work), written(target, work)
    real = windows(texts["code"], np.random.default_rng(5), len(own_hand) // 2, own_hand.shape[1])
    own = lessons(target, torch.cat((own_hand, real)), work)
    prompts = windows(texts["code_held"], np.random.default_rng(7), 8, PROMPT)
    held = lesson(target, continue_greedily(target, prompts, 96))
    while step < steps and time.monotonic() - start < seconds:
        done, rng = step / steps, np.random.default_rng(step)
        for group in opt.param_groups:
            group["lr"] = (
                2e-3 * min(1, (step + 1) / 50) * (0.03 + 0.97 * math.cos(math.pi / 2 * done) ** 2)
            )
        rows = torch.from_numpy(rng.integers(0, len(own.ids), ROWS))
        loss = loss_of(head, target, own, rows, 1 if done < 0.5 else STREAMS)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 50 == 0 or step == steps:
            shares = " ".join(f"{a:.3f}" for a in agreement(head, target, held))
            print(f"eagle3 step {step} loss {loss.item():.3f} agreement {shares}", flush=True)
    torch.save({"head": head.state_dict(), "opt": opt.state_dict(), "step": step}, checkpoint)
    print(f"eagle3: {step} of {steps} steps, {time.monotonic() - start:.0f} s", flush=True)
    return head if step >= steps else None


def export(head: Head, path: Path) -> None:
    out = SidecarFile(path, "eagle3", "Specllama Tiny EAGLE-3")
    d = head.o.weight.shape[0]
    out.sizes(d, 1, head.gate.weight.shape[0], HEADS, HEADS, head.size)
    out.writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
    out.writer.add_uint32("eagle3.target_hidden_size", d)
    out.add("fc.weight", head.fc.weight)
    out.add("output_norm.weight", head.norm.weight)
    for part in ("q", "k", "v"):
        out.add(f"blk.0.attn_{part}.weight", getattr(head, part).weight)
    out.add("blk.0.attn_output.weight", head.o.weight)
    for part in ("attn_norm", "attn_norm_2", "ffn_norm"):
        out.add(f"blk.0.{part}.weight", getattr(head, part).weight)
    for part in ("gate", "up", "down"):
        out.add(f"blk.0.ffn_{part}.weight", getattr(head, part).weight)
    out.close()


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--work", type=Path, default=Path("build/sidecars"))
    ap.add_argument("--out", type=Path, default=HERE / "eagle3.gguf")
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--seconds", type=float, default=math.inf, help="stop this call after …")
    args = ap.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    head = train(args.work, args.steps, args.seconds)
    if head is not None:
        export(head, args.out)


if __name__ == "__main__":
    main()
