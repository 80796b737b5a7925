"""Models downloaded by Ollama: its blobs have no names, its manifests do.

manifests/HOST/NAMESPACE/NAME/TAG is a JSON object whose layers name the blobs; the one with
the weights is blobs/sha256-…, a GGUF (ollama, server/manifest.go and modelpath.go).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from specllama.storage import expand_user

_WEIGHTS = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MAX_MANIFESTS = 5000
_MAX_BYTES = 2**20  # of a manifest; real ones have one or two KiB


def models() -> Iterator[tuple[Path, str]]:
    """(blob, Ollama's name) of each model, sorted by name. Damaged or missing ones are omitted."""
    for root in roots():
        yield from _models_of(root)


def _models_of(root: Path) -> Iterator[tuple[Path, str]]:
    try:
        manifests = sorted((root / "manifests").glob("*/*/*/*"))[:_MAX_MANIFESTS]
    except OSError:
        return
    for manifest in manifests:
        for blob in _blobs(root, manifest):
            yield blob, _name(*manifest.relative_to(root / "manifests").parts)


@cache
def model_name(path: Path) -> str:
    """Ollama's name for one of its blobs, "" for any other file."""
    root = path.absolute().parent.parent
    if _DIGEST.fullmatch(path.name) is None or path.parent.name != "blobs":
        return ""
    return next((name for blob, name in _models_of(root) if blob.name == path.name), "")


def shown_name(path: Path) -> str:
    """The display name of a model file."""
    return model_name(path) or path.name


def roots() -> Iterator[Path]:
    """Where its models may be, whether or not the folders exist."""
    if os.environ.get("OLLAMA_MODELS"):
        yield expand_user(os.environ["OLLAMA_MODELS"])
        return
    yield expand_user("~") / ".ollama" / "models"
    yield Path("/usr/share/ollama/.ollama/models")  # of the service that its installer sets up


def _name(host: str, namespace: str, name: str, tag: str) -> str:
    """As `ollama list` prints it."""
    if host != "registry.ollama.ai":
        return f"{host}/{namespace}/{name}:{tag}"
    return f"{name}:{tag}" if namespace == "library" else f"{namespace}/{name}:{tag}"


def _blobs(root: Path, manifest: Path) -> Iterator[Path]:
    try:
        with manifest.open("rb") as f:
            data: Any = json.loads(f.read(_MAX_BYTES))
        layers = data["layers"]
        digests = [d["digest"] for d in layers if d["mediaType"] == _WEIGHTS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    for digest in digests:
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        blob = root / "blobs" / f"sha256-{match[1]}" if match else None
        if blob is not None and os.path.isfile(blob):
            yield blob
