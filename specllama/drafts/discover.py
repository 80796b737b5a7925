"""Finds draft files: next to the target, in given folders, in caches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specllama import config
from specllama.drafts import checkpoints, ollama
from specllama.drafts.neighbours import Neighbours, is_gguf
from specllama.gguf import GgufError, ModelInfo, is_later_shard
from specllama.gguf.cache import InspectCache
from specllama.storage import expand_user

_MAX_FILES = 20_000  # a folder tree with more is not a model folder
_MAX_FOLDERS = 50_000
_DEPTH = 8
TOO_LARGE = ("size", "it is at least as large as the target")  # rule, detail


@dataclass(frozen=True)
class Rejection:
    """A file that is not used as a draft: the failed rule and its detail."""

    what: str
    rule: str
    detail: str


@dataclass(frozen=True)
class DiscoveredDrafts:
    """The models found, smallest first, and the files that are rejected before any compatibility
    rule."""

    models: tuple[ModelInfo, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    outside: frozenset[Path] = frozenset()  # links to files outside the folder searched
    near: frozenset[Path] = frozenset()  # in the target's folder, or in a given one
    skipped: tuple[str, ...] = ()  # folders near the target that were not searched completely

    def and_also(self, other: DiscoveredDrafts) -> DiscoveredDrafts:
        """Both together; this one's files win ties."""
        return DiscoveredDrafts(
            self.models + other.models,
            self.rejected + other.rejected,
            self.outside | other.outside,
            self.near | other.near,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class _ModelFile:
    """A file and the folder it was found in (None = links are not checked). `called`: its name in
    another program."""

    path: Path
    root: Path | None = None
    near: bool = False
    called: str = ""


def discover(
    target: ModelInfo, folders: Iterable[Path] = (), everywhere: bool = True
) -> DiscoveredDrafts:
    """The other models in the target's folder, its parent and the folders below (neighbours.py), in
    `folders` (recursive), and with `everywhere` in the caches of Hugging Face, llama.cpp, LM
    Studio and Ollama and in the config's `model_dirs`. Headers of files at least as large as the
    target are not read."""
    cache = InspectCache()
    models: list[ModelInfo] = []
    rejected: list[Rejection] = []
    seen = {_identity(p) for p in target.shards}
    outside: set[Path] = set()
    near: set[Path] = set()
    around = Neighbours(target.path.absolute().parent)
    for place in _places(target, around, folders, everywhere):
        path, what = place.path, place.called or place.path.name
        identity = _identity(path)
        if identity in seen or is_later_shard(path):
            continue
        seen.add(identity)
        try:
            if path.stat().st_size >= target.file_bytes:
                rejected.append(Rejection(what, *TOO_LARGE))
                continue
            models.append(replace(cache.inspect(path), called=place.called))
            if place.near:
                near.add(path)
            if place.root is not None and not path.resolve().is_relative_to(place.root.resolve()):
                outside.add(path)
        except GgufError as e:
            rejected.append(Rejection(what, "unreadable", e.message.removeprefix(f"{path}: ")))
        except OSError as e:
            rejected.append(Rejection(what, "unreadable", e.strerror or str(e)))
    cache.save()
    own = [] if _on_hub(target) else [around.here]
    for c in checkpoints.find_drafters(dict.fromkeys([*own, *folders])):
        rejected.append(Rejection(c.folder.name, "not a GGUF file", f"{c.what}. {c.advice}"))
    models.sort(key=lambda m: m.file_bytes)  # for equal sizes, the nearest comes first
    skipped = tuple(f"{folder}: {reason}" for folder, reason in around.skipped.items())
    return DiscoveredDrafts(
        tuple(models), tuple(rejected), frozenset(outside), frozenset(near), skipped
    )


def _on_hub(target: ModelInfo) -> bool:
    """Whether the target is on the Hub, so that only its headers are known."""
    return not os.path.exists(target.path)


def _places(
    target: ModelInfo, around: Neighbours, folders: Iterable[Path], everywhere: bool
) -> Iterator[_ModelFile]:
    """Nearest first; a target on the Hub has no neighbours. A file may occur more than once."""
    here, on_hub = around.here, _on_hub(target)
    for folder in (here, here / "MTP", here / "mtp") if not on_hub else ():
        yield from (_ModelFile(p, _whole(here), near=True) for p in _in_folder(folder))
    if not on_hub:
        yield from (_ModelFile(p, _whole(here), near=True) for p in around.files(0))
    for folder in folders:
        yield from (_ModelFile(p, folder, near=True) for p in in_tree(folder))
    for folder in (here.parent, here.parent / "MTP") if not on_hub else ():
        yield from (_ModelFile(p, _whole(here.parent)) for p in _in_folder(folder))
    for up in (1, 2) if not on_hub and len(here.parents) > 1 else ():
        yield from (_ModelFile(p, _whole(here.parents[up - 1])) for p in around.files(up))
    if not everywhere:
        return
    for tree in (*(expand_user(d) for d in config.load().model_dirs), *cache_folders()):
        yield from (_ModelFile(p, tree) for p in in_tree(tree))
    yield from (_ModelFile(p, called=name) for p, name in ollama.models())


def _whole(folder: Path) -> Path:
    """The folder itself; for a snapshot in Hugging Face's cache, whose files link to blobs, the
    repository folder with both."""
    for parent in folder.parents:
        if folder.relative_to(parent).parts[0] == "snapshots" and (parent / "blobs").is_dir():
            return parent
    return folder


def cache_folders() -> Iterator[Path]:
    """The model folders of other programs, whether they exist or not."""
    home, env = expand_user("~"), os.environ
    xdg_cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    hf_home = Path(env.get("HF_HOME") or xdg_cache / "huggingface")
    yield Path(env.get("HF_HUB_CACHE") or hf_home / "hub")
    if env.get("LLAMA_CACHE"):
        yield Path(env["LLAMA_CACHE"])
    elif sys.platform == "darwin":
        yield home / "Library" / "Caches" / "llama.cpp"
    elif sys.platform == "win32":
        yield Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "llama.cpp"
    else:
        yield xdg_cache / "llama.cpp"
    yield home / ".lmstudio" / "models"
    yield home / ".cache" / "lm-studio" / "models"


def _in_folder(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(p for p in folder.iterdir() if is_gguf(p))
    except OSError:
        return


def in_tree(root: Path) -> Iterator[Path]:
    """GGUF files below `root`. Links are followed, but no folder is entered twice. Hugging Face's
    blobs have no suffix, so its files are found by their snapshot names."""
    entered: set[tuple[int, int]] = set()
    count = 0
    for folder, below, names in os.walk(root, followlinks=True):
        try:
            stat = os.stat(folder)
        except OSError:
            below.clear()
            continue
        key = (stat.st_dev, stat.st_ino)
        if (stat.st_ino and key in entered) or len(Path(folder).relative_to(root).parts) > _DEPTH:
            below.clear()
            continue
        entered.add(key)
        if len(entered) > _MAX_FOLDERS:
            return
        below.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if is_gguf(path):
                count += 1
                if count > _MAX_FILES:
                    return
                yield path


def _identity(path: Path) -> tuple[int, int] | str:
    """Identical for two names of one file (links, hard links)."""
    try:
        stat = path.stat()
    except OSError:
        return str(path)
    return (stat.st_dev, stat.st_ino) if stat.st_ino else str(path.resolve())
