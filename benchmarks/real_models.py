"""Builds a large target and an imperfect draft from a real model.

    python -m benchmarks.real_models large SRC OUT [--layers 80]
    python -m benchmarks.real_models draft SRC OUT [--drop 18,22]

SRC is SmolLM2-135M-Instruct, as `.ci/fetch-models` brings it. The large target says what SRC
says: its matrices are widened to F32, and the added layers change nothing in the residual
stream. It is memory-bound on a CPU, as big models are, so that verifying several tokens costs
little more than one: 1.7 GB with 80 added layers, 0.7 GB with 10. The draft is SRC without
some of its layers: it agrees with it as a smaller model of the same family would. Nothing
built here is committed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gguf_packages import gguf, np
from benchmarks.large_target import block_tensors, copy_keys, finish

_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
# What a layer adds to the residual stream; with these zero it passes it through unchanged.
_ADDS = ("attn_output.", "ffn_down.")
# They say how SRC is quantised, which the F32 file is not.
_QUANTISED = ("general.file_type", "general.quantization_version")


def large(src: Path, out: Path, layers: int = 80) -> None:
    """Writes `out`: `src` in F32 with `layers` added layers that change nothing."""
    reader, arch, blocks = _opened(src)
    last = block_tensors(reader, blocks - 1)
    if not all(any(name.startswith(part) for name in last) for part in _ADDS):
        raise SystemExit(f"{src}: its layers have no {' or no '.join(_ADDS)}: not a dense model")
    writer = gguf.GGUFWriter(out, arch)
    copy_keys(reader, writer, [*range(blocks), *[blocks - 1] * layers], without=_QUANTISED)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for t in reader.tensors:
        writer.add_tensor(t.name, _widened(t))
    added = {name: _widened(t) for name, t in last.items()}
    added.update({n: np.zeros_like(a) for n, a in added.items() if n.startswith(_ADDS)})
    for i in range(blocks, blocks + layers):
        for name, data in added.items():
            writer.add_tensor(f"blk.{i}.{name}", data)
    finish(writer)


def draft(src: Path, out: Path, drop: Sequence[int] = (18, 22)) -> None:
    """Writes `out`: `src` without the layers `drop`, the others numbered anew."""
    reader, arch, blocks = _opened(src)
    kept = [i for i in range(blocks) if i not in drop]
    if not kept or not set(drop) <= set(range(blocks)):
        raise SystemExit(f"{src} has layers 0 to {blocks - 1}; at least one must stay")
    writer = gguf.GGUFWriter(out, arch)
    copy_keys(reader, writer, kept)
    for t in reader.tensors:
        name = t.name
        if block := _BLOCK.match(name):
            if int(block[1]) in drop:
                continue
            name = f"blk.{kept.index(int(block[1]))}.{block[2]}"
        writer.add_tensor(name, t.data, raw_dtype=t.tensor_type)
    finish(writer)


def widen(src: Path, out: Path) -> None:
    """Writes `out`: `src` in F32, whatever heads it has. It says the same, and is memory-bound."""
    reader = gguf.GGUFReader(src)
    arch = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, arch)
    blocks = int(reader.fields[f"{arch}.block_count"].contents())
    copy_keys(reader, writer, range(blocks), without=_QUANTISED)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for t in reader.tensors:
        writer.add_tensor(t.name, _widened(t))
    finish(writer)


def _opened(src: Path) -> tuple[Any, str, int]:
    """The file, its architecture and its number of blocks, none of them an MTP head."""
    reader = gguf.GGUFReader(src)
    arch = str(reader.fields["general.architecture"].contents())
    if f"{arch}.nextn_predict_layers" in reader.fields:
        raise SystemExit(f"{src} has an MTP head, which is not handled here")
    return reader, arch, int(reader.fields[f"{arch}.block_count"].contents())


def _widened(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor in F32."""
    values: np.ndarray[Any, Any] = gguf.dequantize(tensor.data, tensor.tensor_type)
    return values


def main(argv: Sequence[str] | None = None) -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = ap.add_subparsers(dest="command", required=True)
    for name in ("large", "draft"):
        command = commands.add_parser(name)
        command.add_argument("src", type=Path)
        command.add_argument("out", type=Path)
        if name == "large":
            command.add_argument("--layers", type=int, default=80, help="layers to add")
        else:
            command.add_argument("--drop", default="18,22", help="layers to leave out")
    args = ap.parse_args(argv)
    if args.command == "large":
        large(args.src, args.out, args.layers)
    else:
        draft(args.src, args.out, [int(i) for i in args.drop.split(",")])
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
