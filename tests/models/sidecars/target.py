"""The tiny target in PyTorch, and the text that its drafters learn from.

    pip install torch tokenizers gguf
    python -m tests.models.sidecars.target check LLAMA_SERVER   # does it say what the server says?

Read from the GGUF file that is served, weights dequantised, so that a drafter is trained
on what the server's target computes; `train.py`'s checkpoint is not needed.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGUFReader, dequantize
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor

from tests.models.train import EOS, Block, Model, Shape, corpus

HERE = Path(__file__).parents[1]
TARGET = HERE / "target.gguf"
PROMPT, WRITTEN = 96, 160  # tokens of a prompt and of what the target writes after it


# ---- the model ------------------------------------------------------------


def read(path: Path = TARGET) -> Model:
    """The `llama` model of a GGUF file, frozen."""
    reader = GGUFReader(path)

    def key(name: str) -> int:
        return int(reader.fields[f"llama.{name}"].contents())

    shape = Shape(
        d=key("embedding_length"),
        layers=key("block_count"),
        heads=key("attention.head_count"),
        kv_heads=key("attention.head_count_kv"),
        ff=key("feed_forward_length"),
    )
    weights = {
        t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32))
        for t in reader.tensors
    }
    model = Model(shape)
    names = {"embd.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    parts = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    for own in model.state_dict():
        if own.startswith("blocks."):
            _, i, part, _ = own.split(".")
            renamed = parts.get(part, part if part.endswith("norm") else f"ffn_{part}")
            names[own] = f"blk.{i}.{renamed}.weight"
    model.load_state_dict({own: weights[theirs] for own, theirs in names.items()})
    return model.eval().requires_grad_(False)


def layer_inputs(model: Model, ids: Tensor) -> list[Tensor]:
    """The residual stream before each layer, and after the last one: L + 1 states.

    Entry i < L is what llama.cpp gives a drafter as the input of layer i
    (src/models/llama.cpp, b11434); entry L has no hook there.
    """
    states = [model.embd(ids)]
    for block in model.blocks:
        states.append(block(states[-1]))
    return states


class _Cache:
    """Keys and values of one layer, room for `length` positions."""

    def __init__(self, shape: Shape, rows: int, length: int) -> None:
        self.keys = torch.empty(rows, shape.kv_heads, length, shape.d // shape.heads)
        self.values = torch.empty_like(self.keys)
        self.used = 0

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        end = self.used + keys.shape[2]
        self.keys[:, :, self.used : end] = keys
        self.values[:, :, self.used : end] = values
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]


def _rope_at(x: Tensor, first: int) -> Tensor:
    """Interleaved RoPE for positions from `first` on; x: (batch, heads, positions, size)."""
    size = x.shape[3]
    freq = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.outer(torch.arange(first, first + x.shape[2]).float(), freq)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _cached_block(block: Block, x: Tensor, cache: _Cache) -> Tensor:
    rows, steps, _ = x.shape
    h = block.attn_norm(x)
    q, k, v = (
        part(h).view(rows, steps, -1, block.hd).transpose(1, 2)
        for part in (block.q, block.k, block.v)
    )
    q, k = _rope_at(q, cache.used), _rope_at(k, cache.used)
    k, v = cache.add(k, v)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=steps > 1, enable_gqa=True)
    x = x + block.o(a.transpose(1, 2).reshape(rows, steps, -1))
    h = block.ffn_norm(x)
    return x + block.down(F.silu(block.gate(h)) * block.up(h))


@torch.no_grad()
def continue_greedily(model: Model, prompts: Tensor, count: int) -> Tensor:
    """`prompts` (rows, length) with `count` greedy tokens behind each."""
    rows, length = prompts.shape
    caches = [_Cache(model.s, rows, length + count) for _ in model.blocks]
    ids, fresh = prompts, prompts
    for _ in range(count):
        x = model.embd(fresh)
        for block, cache in zip(model.blocks, caches, strict=True):
            x = _cached_block(block, x, cache)
        fresh = model.logits(x[:, -1:]).argmax(-1)
        ids = torch.cat((ids, fresh), 1)
    return ids


# ---- text -----------------------------------------------------------------


def tokenizer(path: Path = TARGET) -> ByteLevelBPETokenizer:
    fields = GGUFReader(path).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges: list[str] = fields["tokenizer.ggml.merges"].contents()
    bpe = ByteLevelBPETokenizer(
        {t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]
    )
    bpe.add_special_tokens([EOS])
    return bpe


def encoded(work: Path) -> dict[str, Tensor]:
    """{code, prose, code_held, prose_held} of `train.py`'s corpus → ids; every tenth
    document is held out. Cached in WORK."""
    cache = work / "tokens.npz"
    if not cache.exists():
        bpe = tokenizer()
        parts: dict[str, list[int]] = {}
        for name, docs in zip(("code", "prose"), corpus(), strict=True):
            for i, doc in enumerate(docs):
                key = name + ("_held" if i % 10 == 9 else "")
                parts.setdefault(key, []).extend([*bpe.encode(doc).ids, 0])
        np.savez(cache, **{k: np.array(v, dtype=np.int64) for k, v in parts.items()})
    return {k: torch.from_numpy(v) for k, v in np.load(cache).items()}


def windows(ids: Tensor, rng: np.random.Generator, rows: int, length: int) -> Tensor:
    """`rows` random stretches of `length` tokens."""
    at = rng.integers(0, len(ids) - length, rows)
    return torch.stack([ids[i : i + length] for i in at])


def written(model: Model, work: Path, rows: int = 512) -> Tensor:
    """Training text in the target's own hand: a real prompt (4 of 5 code) and its greedy
    continuation, (rows, PROMPT + WRITTEN). Cached in WORK, resumed where it was broken off."""
    cache = work / "written.pt"
    done: Tensor = torch.load(cache) if cache.exists() else torch.empty(0, 0, dtype=torch.long)
    texts = encoded(work)
    while len(done) < rows:
        rng = np.random.default_rng(len(done))
        code = windows(texts["code"], rng, 51, PROMPT)
        prompts = torch.cat((code, windows(texts["prose"], rng, 13, PROMPT)))
        more = continue_greedily(model, prompts, WRITTEN)
        done = more if not len(done) else torch.cat((done, more))
        torch.save(done, cache)
        print(f"written: {len(done)} of {rows} texts", flush=True)
    return done[:rows]


# ---- the check ------------------------------------------------------------


@contextmanager
def running(binary: str, *arguments: str, model: Path = TARGET) -> Iterator[str]:
    """A llama-server with these arguments; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [binary, "-m", str(model), "--port", str(port), "-t", "1", "-np", "1", *arguments]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=1)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def post(address: str, prompt: list[int], count: int) -> dict[str, object]:
    """The server's greedy answer to a prompt of token ids."""
    body = {
        "prompt": prompt,
        "n_predict": count,
        "temperature": 0,
        "cache_prompt": False,
        "ignore_eos": True,
        "return_tokens": True,
    }
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def held_prompts(work: Path, kind: str, count: int, length: int = 120) -> list[list[int]]:
    """`count` prompts from held-out text, the same at every call."""
    ids = encoded(work)[f"{kind}_held"]
    stride = len(ids) // count
    return [ids[i * stride : i * stride + length].tolist() for i in range(count)]


def check(binary: str, work: Path) -> None:
    """Share of the server's greedy tokens that PyTorch says too, given the same text before."""
    model = read()
    same = total = 0
    with running(binary) as address:
        for prompt in held_prompts(work, "code", 6):
            tokens = post(address, prompt, 64)["tokens"]
            assert isinstance(tokens, list)
            said = model(torch.tensor([prompt + tokens[:-1]])).argmax(-1)[0, len(prompt) - 1 :]
            same += int((said == torch.tensor(tokens)).sum())
            total += len(tokens)
    print(f"PyTorch and the server agree on {same} of {total} tokens")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("what", choices=["check", "write"])
    ap.add_argument("server", nargs="?")
    ap.add_argument("--work", type=Path, default=Path("build/sidecars"))
    ap.add_argument("--rows", type=int, default=512)
    args = ap.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.what == "check":
        check(args.server, args.work)
    else:
        written(read(), args.work, args.rows)


if __name__ == "__main__":
    main()
