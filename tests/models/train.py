"""Trains the tiny models of this folder; `export.py` turns its checkpoints into GGUF.

    pip install torch tokenizers
    python tests/models/train.py tokenizer  WORK
    python tests/models/train.py target     WORK --minutes 14
    python tests/models/train.py draft      WORK --minutes 8      # learns from the target's logits
    python tests/models/train.py mtp        WORK --minutes 16
    python tests/models/train.py agree      WORK                 # argmax agreement, code and prose

Text: the source of Python's standard library and its prose (docstrings and the
reference manual of `pydoc_data`). Every tenth file is held out. One thread per
process, so that two can run at once on two cores.
"""

from __future__ import annotations

import argparse
import ast
import math
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn

EOS = "<|endoftext|>"
VOCAB = 4096
CONTEXT = 256
SKIP = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "turtledemo"}


@dataclass(frozen=True)
class Shape:
    """Sizes of one model. `mtp`: one NextN block behind the trunk."""

    d: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    interleaved: bool = True  # llama.cpp's ROPE_TYPE_NORM (llama); False = NEOX (mimo2)
    mtp: bool = False


SHAPES = {
    "target": Shape(d=256, layers=4, heads=4, kv_heads=2, ff=640),
    "draft": Shape(d=96, layers=1, heads=3, kv_heads=3, ff=256),
    "mtp": Shape(d=128, layers=3, heads=4, kv_heads=4, ff=256, interleaved=False, mtp=True),
}


# ---- text -----------------------------------------------------------------


def corpus() -> tuple[list[str], list[str]]:
    """(code documents, prose documents) in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    code: list[str] = []
    prose: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if SKIP & set(path.relative_to(root).parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if path.name == "topics.py":
            prose += [str(v) for v in _topics(text)]
            continue
        code.append(text)
        prose += _docstrings(text)
    return code, prose


def _topics(text: str) -> list[str]:
    tree = ast.parse(text)
    dicts = [n for n in ast.walk(tree) if isinstance(n, ast.Dict)]
    return [ast.literal_eval(v) for v in dicts[0].values]


def _docstrings(text: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, kinds)]
    return [d for d in docs if d and len(d) > 200]


def tokenizer(work: Path) -> ByteLevelBPETokenizer:
    return ByteLevelBPETokenizer(str(work / "vocab.json"), str(work / "merges.txt"))


def make_tokenizers(work: Path) -> None:
    """The shared vocabulary, and another of the same size learned from prose only."""
    code, prose = corpus()
    for sub, texts in (("", code + prose), ("other", prose)):
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(texts, vocab_size=VOCAB, special_tokens=[EOS], show_progress=False)
        (work / sub).mkdir(parents=True, exist_ok=True)
        bpe.save_model(str(work / sub))


def encode(work: Path) -> dict[str, np.ndarray]:
    """{code, prose, code_held, prose_held} → token ids, cached in WORK."""
    cache = work / "tokens.npz"
    if not cache.exists():
        bpe = tokenizer(work)
        parts: dict[str, list[int]] = {}
        for name, docs in zip(("code", "prose"), corpus(), strict=True):
            for i, doc in enumerate(docs):
                key = name + ("_held" if i % 10 == 9 else "")
                parts.setdefault(key, []).extend([*bpe.encode(doc).ids, 0])
        np.savez(cache, **{k: np.array(v, dtype=np.int64) for k, v in parts.items()})
    return dict(np.load(cache))


# ---- model ----------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rope_tables(length: int, dim: int) -> tuple[Tensor, Tensor]:
    freq = 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    return angle.cos(), angle.sin()


def rope(x: Tensor, interleaved: bool) -> Tensor:
    """x: (batch, heads, positions, head_dim), rotated by position."""
    cos, sin = rope_tables(x.shape[2], x.shape[3])
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s, self.hd = s, s.d // s.heads
        self.attn_norm, self.ffn_norm = Norm(s.d), Norm(s.d)
        self.q = nn.Linear(s.d, s.heads * self.hd, bias=False)
        self.k = nn.Linear(s.d, s.kv_heads * self.hd, bias=False)
        self.v = nn.Linear(s.d, s.kv_heads * self.hd, bias=False)
        self.o = nn.Linear(s.heads * self.hd, s.d, bias=False)
        self.gate = nn.Linear(s.d, s.ff, bias=False)
        self.up = nn.Linear(s.d, s.ff, bias=False)
        self.down = nn.Linear(s.ff, s.d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.attn_norm(x)
        q = self.q(h).view(b, t, self.s.heads, self.hd).transpose(1, 2)
        k = self.k(h).view(b, t, self.s.kv_heads, self.hd).transpose(1, 2)
        v = self.v(h).view(b, t, self.s.kv_heads, self.hd).transpose(1, 2)
        q, k = rope(q, self.s.interleaved), rope(k, self.s.interleaved)
        groups = self.s.heads // self.s.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embd = nn.Embedding(VOCAB, s.d)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = Norm(s.d)
        if s.mtp:
            self.enorm, self.hnorm = Norm(s.d), Norm(s.d)
            self.eh = nn.Linear(2 * s.d, s.d, bias=False)
            self.mtp_block, self.mtp_norm = Block(s), Norm(s.d)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 if p.shape[0] == VOCAB else p.shape[1] ** -0.5 * 0.6)

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.embd(ids)
        for block in self.blocks:
            x = block(x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embd.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))

    def mtp_hidden(self, h: Tensor, following: Tensor) -> Tensor:
        """h[t] of the trunk with the embedding of token t+1 → hidden state that says t+2."""
        e = self.enorm(self.embd(following))
        return self.mtp_block(self.eh(torch.cat((e, self.hnorm(h)), -1)))

    def mtp_logits(self, x: Tensor) -> Tensor:
        return F.linear(self.mtp_norm(x), self.embd.weight)


# ---- training -------------------------------------------------------------


def batches(
    data: dict[str, np.ndarray], rng: np.random.Generator, size: int, code: float
) -> Tensor:
    """`size` rows of CONTEXT + 2 ids, the share `code` of them from source files."""
    rows = []
    for _ in range(size):
        ids = data["code"] if rng.random() < code else data["prose"]
        at = int(rng.integers(0, len(ids) - CONTEXT - 3))
        rows.append(ids[at : at + CONTEXT + 2])
    return torch.from_numpy(np.stack(rows))


def loss_of(model: Model, teacher: Model | None, ids: Tensor) -> Tensor:
    x, y = ids[:, :-2], ids[:, 1:-1]
    h = model.hidden(x)
    logits = model.logits(h).float()
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    if teacher is not None:
        with torch.no_grad():
            want = F.softmax(teacher(x).float(), -1)
        loss = 0.2 * loss - 0.8 * (want * F.log_softmax(logits, -1)).sum(-1).mean()
    if model.s.mtp:
        second = model.mtp_logits(model.mtp_hidden(h, y)).float()
        loss = loss + 0.5 * F.cross_entropy(second.flatten(0, 1), ids[:, 2:].flatten())
    return loss


def train(name: str, work: Path, minutes: float) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    data = encode(work)
    model = Model(SHAPES[name])
    teacher = load("target", work) if name == "draft" else None
    code = 0.98 if name == "draft" else 0.75  # the draft shall know code better than prose
    print(name, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.05)
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        lr = 4e-3 * min(1, (step + 1) / 60) * (0.03 + 0.97 * (0.5 + 0.5 * math.cos(math.pi * done)))
        opt.param_groups[0]["lr"] = lr
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, teacher, batches(data, rng, 16, code))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 100 == 0:
            print(f"{name} step {step} {done:.0%} loss {loss.item():.3f}", flush=True)
            torch.save(model.state_dict(), work / f"{name}.pt")
    torch.save(model.state_dict(), work / f"{name}.pt")
    print(f"{name}: {step} steps", flush=True)


def load(name: str, work: Path) -> Model:
    model = Model(SHAPES[name])
    model.load_state_dict(torch.load(work / f"{name}.pt"))
    return model.eval()


@torch.no_grad()
def agree(work: Path) -> None:
    """Share of held-out positions where draft and target name the same next token."""
    data = encode(work)
    target, draft, mtp = (load(n, work) for n in ("target", "draft", "mtp"))
    for kind in ("code_held", "prose_held"):
        ids = torch.from_numpy(data[kind][: 64 * (CONTEXT + 2)]).view(64, -1)
        x, y = ids[:, :-2], ids[:, 1:-1]
        a, b = target(x).argmax(-1), draft(x).argmax(-1)
        h = mtp.hidden(x)
        trunk = mtp.logits(h).argmax(-1)
        second = mtp.mtp_logits(mtp.mtp_hidden(h, y)).argmax(-1)
        print(
            f"{kind}: target right {(a == y).float().mean():.3f}, "
            f"draft = target {(a == b).float().mean():.3f}, "
            f"mtp head = trunk {(second[:, :-1] == trunk[:, 1:]).float().mean():.3f}"
        )


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("what", choices=["tokenizer", "target", "draft", "mtp", "agree"])
    ap.add_argument("work", type=Path)
    ap.add_argument("--minutes", type=float, default=8)
    args = ap.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.what == "tokenizer":
        make_tokenizers(args.work)
    elif args.what == "agree":
        agree(args.work)
    else:
        train(args.what, args.work, args.minutes)


if __name__ == "__main__":
    main()
