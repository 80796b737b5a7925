"""From a path to a ModelInfo: all parts of a split model, complete or an error."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specllama.gguf.d2t import d2t_fault
from specllama.gguf.errors import GgufError
from specllama.gguf.header import Header, Tensor, read_header
from specllama.gguf.model import ModelInfo, model_info
from specllama.gguf.source import FileSource

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def read_model(path: Path) -> ModelInfo:
    """The model at `path` (any part of a split model).

    Raises GgufError if it is not a readable GGUF, is truncated, or parts are missing.
    """
    return read_model_with_headers(path)[0]


def read_model_with_headers(path: Path) -> tuple[ModelInfo, list[Header]]:
    """As `read_model`, with the headers of all parts of the model."""
    headers, parts = read_headers(path), shards(path)
    info = model_info(headers, parts)
    if info.vocabulary is None:
        return info, headers
    fault = d2t_fault(headers, [FileSource(p) for p in parts], info.vocabulary.n_tokens)
    if fault is not None:
        info = replace(info, faults=(fault, *info.faults))
    return info, headers


def read_headers(path: Path) -> list[Header]:
    """The headers of all parts of the model. Raises as `read_model` does."""
    headers = [read_header(p) for p in shards(path)]
    for header in headers:
        if header.missing_bytes:
            raise GgufError(
                f"{header.name}: truncated, {header.missing_bytes:,} bytes of tensor data are missing",
                "The download is incomplete: resume it, or download the file again.",
            )
    return headers


def tensors(parts: Sequence[Path]) -> tuple[Tensor, ...]:
    """The tensor table of a model, from the headers of its parts."""
    return tuple(t for part in parts for t in read_header(part).tensors)


def shard_names(name: str) -> tuple[str, ...]:
    """The file names of all parts of the model that `name` is (a part of), in order."""
    match = _SHARD.fullmatch(name)
    if not match or not 1 <= int(match[2]) <= int(match[3]) <= 1000:
        return (name,)
    return tuple(f"{match[1]}-{i:05}-of-{match[3]}.gguf" for i in range(1, int(match[3]) + 1))


def shards(path: Path) -> tuple[Path, ...]:
    """All parts of the model that `path` belongs to, in order: by their names, unless split.count
    says that the file is complete, which llama.cpp relies on. Raises GgufError with the names of
    missing parts."""
    parts = tuple(path.with_name(name) for name in shard_names(path.name) if name)
    parts = parts or (path,)  # "." and "/" have no name
    if len(parts) == 1 or _is_complete(path):
        return (path,)
    missing = [p.name for p in parts if not os.path.isfile(p)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GgufError(
            f"{path}: {len(missing)} of the {len(parts)} parts of this model are missing: "
            f"{', '.join(missing[:3])}{more}",
            "Download them to the same folder.",
        )
    return parts


def _is_complete(path: Path) -> bool:
    """Whether the file is only named like a part (llama-model-loader.cpp reads split.count)."""
    try:
        return read_header(path).number("split.count") <= 1
    except GgufError:
        return False


def is_later_shard(path: Path) -> bool:
    """Whether it is a part of a split model other than the first."""
    match = _SHARD.fullmatch(path.name)
    return match is not None and match[2] != "00001"
