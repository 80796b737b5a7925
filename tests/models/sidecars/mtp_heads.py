"""Gives `mtp.gguf` two more NextN heads and writes `mtp-3.gguf`.

    pip install torch tokenizers gguf
    python -m tests.models.sidecars.mtp_heads        # some minutes on one core

llama.cpp chains the heads of mimo2 (common/speculative.cpp, src/models/mimo2.cpp, b11434):
each head has keys and values of its own, of verified tokens by the trunk's hidden states;
draft i is head i's, whose last row takes draft i - 1 and what head i - 1 passed on. The
trunk and its first head stay as they are.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGUFReader, dequantize, quantize
from torch import Tensor, nn

from tests.edited import edited
from tests.models.sidecars.sidecar_file import MATRIX
from tests.models.sidecars.streams import shifted, stream_mask
from tests.models.sidecars.target import HERE, encoded, windows
from tests.models.train import SHAPES, Block, Model, Norm, rope

MTP = HERE / "mtp.gguf"
NEW_HEADS = 2
ROWS, LENGTH = 8, 160
_BLOCK_PARTS = {"attn_output": "o", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}


class Head(nn.Module):
    """One NextN block; embeddings and output matrix are the trunk's."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.enorm, self.hnorm = copy.deepcopy(model.enorm), copy.deepcopy(model.hnorm)
        self.eh, self.norm = copy.deepcopy(model.eh), copy.deepcopy(model.mtp_norm)
        self.block: Block = copy.deepcopy(model.mtp_block)

    def forward(self, embedded: Tensor, streams: list[Tensor]) -> Tensor:
        """The last stream's rows; all streams give keys and values."""
        b, t, d = embedded.shape
        block, e = self.block, self.enorm(embedded)
        keys, values = [], []
        for h in streams:
            z = self.eh(torch.cat((e, self.hnorm(h)), -1))
            n = block.attn_norm(z)
            q, k, v = (
                part(n).view(b, t, -1, block.hd).transpose(1, 2)
                for part in (block.q, block.k, block.v)
            )
            keys.append(rope(k, False))
            values.append(v)
        a = F.scaled_dot_product_attention(
            rope(q, False),
            torch.cat(keys, 2),
            torch.cat(values, 2),
            attn_mask=stream_mask(t, len(streams)),
        )
        u = z + block.o(a.transpose(1, 2).reshape(b, t, d))
        n = block.ffn_norm(u)
        return u + block.down(F.silu(block.gate(n)) * block.up(n))


def read_mtp() -> Model:
    """`mtp.gguf` in PyTorch, frozen."""
    weights = {
        t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32))
        for t in GGUFReader(MTP).tensors
    }
    model = Model(SHAPES["mtp"])
    last = f"blk.{model.s.layers}.nextn."
    found = {"embd": weights["token_embd.weight"], "norm": weights["output_norm.weight"]}
    names = {"eh": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "mtp_norm": "shared_head_norm"}
    found |= {own: weights[f"{last}{theirs}.weight"] for own, theirs in names.items()}
    blocks = [f"blocks.{i}" for i in range(model.s.layers)] + ["mtp_block"]
    for i, block in enumerate(blocks):
        q, k, v = weights[f"blk.{i}.attn_qkv.weight"].chunk(3)  # as many KV heads as heads
        found |= {f"{block}.q": q, f"{block}.k": k, f"{block}.v": v}
        for part in ("attn_norm", "ffn_norm", *_BLOCK_PARTS):
            found[f"{block}.{_BLOCK_PARTS.get(part, part)}"] = weights[f"blk.{i}.{part}.weight"]
    model.load_state_dict({f"{name}.weight": value for name, value in found.items()})
    return model.eval().requires_grad_(False)


def loss_of(
    model: Model, first: Head, heads: list[Head], ids: Tensor
) -> tuple[Tensor, list[float]]:
    """How far the new heads are from the trunk's next token, and how often each head, the
    first one too, says it."""
    with torch.no_grad():
        h = model.hidden(ids)
        aim = model.logits(h).argmax(-1)[:, 1:]
        embedded = model.embd(ids[:, 1:])
        streams = [h[:, :-1]]
        y = first(embedded, streams)
    total, right = torch.zeros(()), []
    for i, head in enumerate([first, *heads]):
        if i:
            streams.append(shifted(y).detach())
            y = head(embedded, streams)
        logits = F.linear(head.norm(y), model.embd.weight)[:, i:]
        right.append((logits.argmax(-1) == aim[:, i:]).float().mean().item())
        if i:
            total = total + F.cross_entropy(logits.flatten(0, 1), aim[:, i:].flatten())
    return total, right


def train(work: Path, steps: int) -> list[Head]:
    torch.manual_seed(1)
    model, texts, start = read_mtp(), encoded(work), time.monotonic()
    first = Head(model).requires_grad_(False)
    heads = [Head(model).requires_grad_(True) for _ in range(NEW_HEADS)]
    opt = torch.optim.AdamW(
        [p for head in heads for p in head.parameters()], betas=(0.9, 0.95), weight_decay=0.02
    )
    held = windows(texts["code_held"], np.random.default_rng(7), 8, LENGTH)
    for step in range(steps):
        done, rng = step / steps, np.random.default_rng(step)
        for group in opt.param_groups:
            group["lr"] = (
                2e-3 * min(1, (step + 1) / 30) * (0.03 + 0.97 * math.cos(math.pi / 2 * done) ** 2)
            )
        loss, _ = loss_of(model, first, heads, windows(texts["code"], rng, ROWS, LENGTH))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for head in heads for p in head.parameters()], 1.0)
        opt.step()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            with torch.no_grad():
                shares = " ".join(f"{a:.3f}" for a in loss_of(model, first, heads, held)[1])
            print(f"mtp-3 step {step + 1} loss {loss.item():.3f} agreement {shares}", flush=True)
    print(f"mtp-3: {time.monotonic() - start:.0f} s", flush=True)
    return heads


def export(heads: list[Head], path: Path) -> None:
    """`mtp.gguf` with the new heads behind its own."""
    last = SHAPES["mtp"].layers + 1
    blocks = last + len(heads)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    data: dict[str, bytes] = {}

    def add(name: str, value: Tensor) -> None:
        array = value.detach().numpy().astype(np.float32)
        kind = "F32" if array.ndim == 1 else MATRIX.name
        shapes[f"{name}.weight"] = (array.shape[::-1], kind)
        stored = array if array.ndim == 1 else quantize(array, MATRIX)
        data[f"{name}.weight"] = stored.tobytes()

    for i, head in enumerate(heads, last):
        norms: dict[str, Norm] = {
            "nextn.enorm": head.enorm,
            "nextn.hnorm": head.hnorm,
            "nextn.shared_head_norm": head.norm,
            "attn_norm": head.block.attn_norm,
            "ffn_norm": head.block.ffn_norm,
        }
        for name, norm in norms.items():
            add(f"blk.{i}.{name}", norm.weight)
        b = head.block
        add(f"blk.{i}.attn_qkv", torch.cat((b.q.weight, b.k.weight, b.v.weight)))
        for name, part in _BLOCK_PARTS.items():
            add(f"blk.{i}.{name}", getattr(b, part).weight)
        add(f"blk.{i}.nextn.eh_proj", head.eh.weight)
    fields = {
        "general.name": "Specllama Tiny MTP, three heads",
        "mimo2.block_count": blocks,
        "mimo2.nextn_predict_layers": 1 + len(heads),
        "mimo2.attention.sliding_window_pattern": [True] + [False] * (blocks - 1),
    }
    edited(MTP, path, fields, add=shapes, data=data)
    print(f"{path.name}: {path.stat().st_size / 2**20:.2f} MiB")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--work", type=Path, default=Path("build/sidecars"))
    ap.add_argument("--out", type=Path, default=HERE / "mtp-3.gguf")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    export(train(args.work, args.steps), args.out)


if __name__ == "__main__":
    main()
