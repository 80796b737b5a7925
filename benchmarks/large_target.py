"""Builds a large target that generates what the tiny one does.

    python -m benchmarks.large_target OUT.gguf [--layers 30] [--ff 8192] [--like tests/models/target.gguf]

The tiny target's layers stay as they are; added layers end in zero matrices, so the
residual stream passes through them unchanged, and added FFN columns meet zero rows of
ffn_down. Acceptance is the tiny pair's, the cost of a pass that of a model of 100 to
300 million parameters (memory-bound on a CPU). Q5_1 matrices. An MTP head stays the last block, with
its feed-forward widened like the others': a small part of the target, as in real models.
Nothing built here is committed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gguf_packages import gguf, np

_KIND = gguf.GGMLQuantizationType.Q5_1
_BLOCK, _BYTES = gguf.GGML_QUANT_SIZES[_KIND]
_TINY = Path(__file__).parent.parent / "tests" / "models" / "target.gguf"


def build(out: Path, layers: int, ff: int, like: Path = _TINY) -> int:
    """Writes `out` and returns its parameter count. `layers` without an MTP head; `ff` must
    be a multiple of 32."""
    reader = gguf.GGUFReader(like)
    tensors = {t.name: t for t in reader.tensors}
    arch = str(reader.fields["general.architecture"].contents())
    heads = reader.fields.get(f"{arch}.nextn_predict_layers")
    nextn = int(heads.contents()) if heads else 0
    old_layers = int(reader.fields[f"{arch}.block_count"].contents()) - nextn
    old_ff = int(reader.fields[f"{arch}.feed_forward_length"].contents())
    if layers < old_layers or ff < old_ff or ff % _BLOCK:
        raise SystemExit(
            f"need --layers ≥ {old_layers} and --ff ≥ {old_ff}, a multiple of {_BLOCK}"
        )
    writer = gguf.GGUFWriter(out, arch)
    more = layers - old_layers
    blocks = [*range(old_layers), *[old_layers - 1] * more, *range(old_layers, old_layers + nextn)]
    copy_keys(reader, writer, blocks, without=(f"{arch}.feed_forward_length",))
    writer.add_feed_forward_length(ff)
    rng = np.random.default_rng(0)
    total = 0

    def add(name: str, data: np.ndarray[Any, Any]) -> None:
        nonlocal total
        if data.dtype == np.float32:
            writer.add_tensor(name, data)
            total += data.size
        else:
            writer.add_tensor(name, data, raw_dtype=_KIND)
            total += data.size // _BYTES * _BLOCK

    for name, t in tensors.items():
        data = np.array(t.data)
        if name.endswith(("ffn_gate.weight", "ffn_up.weight")):
            data = np.concatenate((data, _random(rng, ff - old_ff, int(t.shape[0]))))
        elif name.endswith("ffn_down.weight"):
            data = np.concatenate((data, _zeros(data.shape[0], ff - old_ff)), axis=1)
        block = re.match(r"blk\.(\d+)\.(.*)", name)
        if block and int(block[1]) >= old_layers:  # the MTP head stays after the layers
            name = f"blk.{int(block[1]) + more}.{block[2]}"
        add(name, data)
    last = old_layers - 1
    added = {name: np.array(t.data) for name, t in block_tensors(reader, last).items()}
    width = int(tensors[f"blk.{last}.attn_output.weight"].shape[0])
    added["attn_output.weight"] = np.zeros_like(added["attn_output.weight"])
    for part in ("gate", "up"):
        added[f"ffn_{part}.weight"] = _random(rng, ff, width)
    added["ffn_down.weight"] = _zeros(width, ff)
    for i in range(old_layers, layers):
        for name, data in added.items():
            add(f"blk.{i}.{name}", data)
    finish(writer)
    return total


def _random(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray[Any, Any]:
    values = rng.standard_normal((rows, columns), dtype=np.float32) * 0.02
    packed: np.ndarray[Any, Any] = gguf.quantize(values, _KIND)
    return packed


def _zeros(rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Zero matrix in Q5_1: scale and minimum 0, so every element is exactly 0."""
    return np.zeros((rows, columns // _BLOCK * _BYTES), dtype=np.uint8)


def copy_keys(reader: Any, writer: Any, blocks: Sequence[int], without: Sequence[str] = ()) -> None:
    """All keys but those in `without`, for a file whose blocks are copies of the reader's
    `blocks`, in that order: their count, and each array with an entry per block, are theirs."""
    arch = str(reader.fields["general.architecture"].contents())
    own = {"general.architecture", f"{arch}.block_count", *without}
    old = int(reader.fields[f"{arch}.block_count"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in own:
            continue
        kind, value = field.types[0], field.contents()
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        if sub is not None and key.startswith(f"{arch}.") and len(value) == old:
            value = [value[i] for i in blocks]
        writer.add_key_value(key, value, kind, sub)
    writer.add_block_count(len(blocks))


def block_tensors(reader: Any, block: int) -> dict[str, Any]:
    """The tensors of one block by their names within it."""
    start = f"blk.{block}."
    return {t.name.removeprefix(start): t for t in reader.tensors if t.name.startswith(start)}


def finish(writer: Any) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(argv: Sequence[str] | None = None) -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("out", type=Path)
    ap.add_argument("--layers", type=int, default=30)
    ap.add_argument("--ff", type=int, default=8192)
    ap.add_argument("--like", type=Path, default=_TINY)
    args = ap.parse_args(argv)
    total = build(args.out, args.layers, args.ff, args.like)
    size = args.out.stat().st_size / 2**20
    print(f"{args.out}: {total / 1e6:.0f} M parameters, {size:.0f} MiB")


if __name__ == "__main__":
    main()
