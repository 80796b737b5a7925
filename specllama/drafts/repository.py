"""A repository on the Hub instead of a file: OWNER/REPO[:QUANT]. Its models in the order in which
they are tried, its drafts, and the files that are already downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specllama.drafts.hub import RemoteFile
from specllama.gguf.files import is_later_shard, shard_names

_NAMED = re.compile(
    r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?"
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<selection>[\w./ -]+))?"
)
# Files that are not models to serve, and drafts (llama.cpp, common/download.cpp, b11434:
# gguf_filename_is_model, find_best_mtp and its neighbours).
_DRAFTS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_NO_MODELS = ("mmproj", "imatrix", *_DRAFTS)
_ASSISTANT = "-assistant"  # Gemma 4's drafter; other models may have it in their names too
# llama.cpp's defaults come first and last (find_best_model), similar ones between them.
COMMON_QUANTS = ("Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_0", "MXFP4", "Q8_0")
_MAX_DRAFTS = 4


@dataclass(frozen=True)
class Repository:
    """`selection`: a quantisation or a file in it; "" = any."""

    name: str
    selection: str = ""


def repository(text: str) -> Repository | None:
    """The repository named by `text`; None for a path: an existing file or folder, or a name that
    ends in .gguf without a repository in front."""
    match = _NAMED.fullmatch(text)
    if match is None or os.path.exists(text) or match["repo"].lower().endswith(".gguf"):
        return None
    return Repository(match["repo"], match["selection"] or "")


def models_to_try(files: Sequence[RemoteFile], selection: str) -> tuple[RemoteFile, ...]:
    """The files to try, best first: those that match `selection`; else one of the COMMON_QUANTS (the
    smallest file if there is none), then the smaller ones, largest first."""
    found = sorted((f for f in files if _is_model(f)), key=lambda f: (f.size, f.name))
    found = [f for f in found if _ASSISTANT not in f.name.lower()] or found
    if selection:
        exact = [f for f in found if selection in (f.name, f.name.rpartition("/")[2])]
        return tuple(exact or [f for f in found if is_quant(f.name, selection)])
    usual = (f for quant in COMMON_QUANTS for f in found if is_quant(f.name, quant))
    first = next(usual, found[0] if found else None)
    smaller = [f for f in reversed(found) if first is not None and f.size < first.size]
    return (first, *smaller) if first is not None else ()


def sidecars(files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The drafts in the repository, by file name."""
    words = (*_DRAFTS, _ASSISTANT, "mtp/")
    found = [f for f in files if any(word in f.name.lower() for word in words)]
    return tuple(found[:_MAX_DRAFTS])


def is_quant(name: str, quant: str) -> bool:
    """Whether a file name contains this quantisation, ignoring case: UD-Q4_K_XL is a Q4_K_XL, IQ4_XS
    is not a Q4_XS."""
    return bool(re.search(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?=[.-])", name, re.I))


def downloaded_files(repo: str) -> Mapping[RemoteFile, Path]:
    """The downloaded files of the repository, newest revision first. Partial downloads have other
    names (huggingface_hub)."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    try:
        revisions = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError:
        return {}
    out: dict[RemoteFile, Path] = {}
    for revision in revisions:
        for path in sorted(revision.rglob("*.gguf")):
            if path.is_file() and not is_later_shard(path):
                name = path.relative_to(revision).as_posix()
                out.setdefault(RemoteFile(repo, name, path.stat().st_size), path)
    return out


def is_downloaded(label: str) -> bool:
    """Whether OWNER/REPO:FILE is downloaded, with all its parts."""
    from huggingface_hub import try_to_load_from_cache

    repo, _, name = label.partition(":")
    parts = [try_to_load_from_cache(repo, part) for part in shard_names(name)]
    return all(isinstance(part, str) for part in parts)


def _is_model(file: RemoteFile) -> bool:
    name = file.name.rpartition("/")[2].lower()
    return file.size > 0 and not any(word in name for word in _NO_MODELS)
