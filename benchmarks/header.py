"""Our header reader against gguf-py's, and pick-draft over many real-size headers.

    python -m benchmarks.header VOCAB_FOLDER [--files 200]

VOCAB_FOLDER: llama.cpp's ggml-vocab-*.gguf files (`.ci/build-llama` keeps them in
its cache beside the binaries). Prints, per file, the time of everything `inspect` needs,
by gguf-py's GGUFReader (scalars and token strings) and by ours, and their ratio; then the
time of `pick-draft` over a folder of models with those vocabularies, cold and cached.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gguf_packages import gguf
from specllama import workloads
from specllama.drafts.discover import discover
from specllama.drafts.pick import rank_drafts
from specllama.gguf import cursor, read_model


def seconds(run: Callable[[], object], times: int = 1) -> float:
    """The median of some runs."""
    out = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        out.append(time.perf_counter() - begin)
    return statistics.median(out)


def reference(path: Path) -> int:
    """What inspect needs, with gguf-py: its reader, and the token strings."""
    reader = gguf.GGUFReader(path)
    field = reader.fields["tokenizer.ggml.tokens"]
    return len([bytes(field.parts[i]) for i in field.data])


def ours(path: Path) -> int:
    cursor._known_tables.clear()  # as in a fresh process
    info = read_model(path)
    assert info.vocabulary is not None
    return len(info.vocabulary.tokens)


def headers(folder: Path) -> None:
    print(f"{'file':36} {'tokens':>8} {'gguf-py s':>10} {'ours s':>8} {'ratio':>7}")
    large = []
    for path in sorted(folder.glob("ggml-vocab-*.gguf")):
        theirs, own = seconds(partial(reference, path)), seconds(partial(ours, path), 5)
        info = read_model(path)
        n = info.vocabulary.n_tokens if info.vocabulary else 0
        if n >= 128_000:
            large.append(theirs / own)
        print(f"{path.name:36} {n:>8} {theirs:>10.3f} {own:>8.4f} {theirs / own:>6.0f}x")
    if large:
        print(f"worst ratio on files of 128k tokens and more: {min(large):.0f}x")


def many(folder: Path, count: int) -> None:
    """pick-draft over `count` models made of the vocabulary files with tensors added."""
    sources = [p for p in sorted(folder.glob("*.gguf")) if p.stat().st_size > 4 * 2**20]
    with tempfile.TemporaryDirectory() as tmp:
        made = [
            _model(Path(tmp) / f"{i:03}.gguf", sources[i % len(sources)], i) for i in range(count)
        ]
        target = read_model(made[0])
        work = workloads.load_workload("code")

        def run() -> None:
            cursor._known_tables.clear()
            rank_drafts(target, work, None, discover(target, [Path(tmp)], everywhere=False))

        print(
            f"pick-draft over {count} headers: cold {seconds(run):.2f} s, cached {seconds(run):.2f} s"
        )


def _model(path: Path, vocabulary: Path, i: int) -> Path:
    """The vocabulary file with one small sparse tensor (0 is the large target)."""
    raw = vocabulary.read_bytes()
    size = 4 * (2**28 if i == 0 else 2**20 + 64 * i)
    name = b"blk.0.attn_norm.weight"
    row = len(name).to_bytes(8, "little") + name + (1).to_bytes(4, "little")
    row += (size // 4).to_bytes(8, "little") + (0).to_bytes(4, "little") + (0).to_bytes(8, "little")
    head = raw[:8] + (1).to_bytes(8, "little") + raw[16:] + row
    start = -(-len(head) // 32) * 32
    with path.open("wb") as f:
        f.write(head)
        f.truncate(start + size)
    return path


def main(argv: Sequence[str] | None = None) -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("folder", type=Path)
    ap.add_argument("--files", type=int, default=200)
    args = ap.parse_args(argv)
    headers(args.folder)
    many(args.folder, args.files)


if __name__ == "__main__":
    main()
