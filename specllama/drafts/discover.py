"""Where draft files may lie: beside the target, in folders the user names, in caches."""

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

_MOST_FILES = 20_000  # a folder tree with more is not a model folder
_MOST_FOLDERS = 50_000
_DEPTH = 8
TOO_LARGE = ("size", "it is as large as the target or larger")  # rule, detail


@dataclass(frozen=True)
class Rejected:
    """Something that could have drafted and does not: the rule and what it found."""

    what: str
    rule: str
    detail: str


@dataclass(frozen=True)
class Found:
    """The models found, smallest first, and the files that cannot be drafts whatever the
    rules say."""

    models: tuple[ModelInfo, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    outside: frozenset[Path] = frozenset()  # links that lead out of the folder searched
    near: frozenset[Path] = frozenset()  # in the target's folder, or in one the user named
    skipped: tuple[str, ...] = ()  # folders near the target that were not searched to the end

    def and_also(self, other: Found) -> Found:
        """Both together; what was found here first wins a tie."""
        return Found(
            self.models + other.models,
            self.rejected + other.rejected,
            self.outside | other.outside,
            self.near | other.near,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class _Place:
    """A file and the folder or tree it was found in, None where links are no matter. `called`:
    its name in another program."""

    path: Path
    root: Path | None = None
    near: bool = False
    called: str = ""


def discover(target: ModelInfo, folders: Iterable[Path] = (), everywhere: bool = True) -> Found:
    """The other models in the target's folder, its parent's and those below (neighbours.py), in
    `folders` (recursive), and with `everywhere` in the caches of Hugging Face, llama.cpp, LM Studio and Ollama and in the
    config's `model_dirs`. The header of a file as large as the target is not even read."""
    cache = InspectCache()
    models: list[ModelInfo] = []
    rejected: list[Rejected] = []
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
                rejected.append(Rejected(what, *TOO_LARGE))
                continue
            models.append(replace(cache.inspect(path), called=place.called))
            if place.near:
                near.add(path)
            if place.root is not None and not path.resolve().is_relative_to(place.root.resolve()):
                outside.add(path)
        except GgufError as e:
            rejected.append(Rejected(what, "unreadable", e.message))
        except OSError as e:
            rejected.append(Rejected(what, "unreadable", f"{path}: {e.strerror or e}"))
    cache.save()
    own = [] if _on_hub(target) else [around.here]
    for c in checkpoints.among(dict.fromkeys([*own, *folders])):
        rejected.append(Rejected(c.folder.name, "not a GGUF file", f"{c.what}. {c.advice}"))
    models.sort(key=lambda m: m.file_bytes)  # of equals, the nearest comes first
    skipped = tuple(f"{folder}: {why}" for folder, why in around.skipped.items())
    return Found(tuple(models), tuple(rejected), frozenset(outside), frozenset(near), skipped)


def _on_hub(target: ModelInfo) -> bool:
    """Whether only its headers are here."""
    return not os.path.exists(target.path)


def _places(
    target: ModelInfo, around: Neighbours, folders: Iterable[Path], everywhere: bool
) -> Iterator[_Place]:
    """Nearest first; a target on the Hub has no neighbours. A file may come up more than once."""
    here, on_hub = around.here, _on_hub(target)
    for folder in (here, here / "MTP", here / "mtp") if not on_hub else ():
        yield from (_Place(p, _whole(here), near=True) for p in _in_folder(folder))
    if not on_hub:
        yield from (_Place(p, _whole(here), near=True) for p in around.files(0))
    for folder in folders:
        yield from (_Place(p, folder, near=True) for p in in_tree(folder))
    for folder in (here.parent, here.parent / "MTP") if not on_hub else ():
        yield from (_Place(p, _whole(here.parent)) for p in _in_folder(folder))
    for up in (1, 2) if not on_hub and len(here.parents) > 1 else ():
        yield from (_Place(p, _whole(here.parents[up - 1])) for p in around.files(up))
    if not everywhere:
        return
    for tree in (*(expand_user(d) for d in config.load().model_dirs), *cache_folders()):
        yield from (_Place(p, tree) for p in in_tree(tree))
    yield from (_Place(p, called=name) for p, name in ollama.models())


def _whole(folder: Path) -> Path:
    """The folder itself; of a snapshot in Hugging Face's cache, whose files are links to its
    blobs, the repository with both."""
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
    """GGUF files below `root`. Links are followed; one that leads back is entered once.
    Hugging Face's blobs have no suffix, so its files come up by their snapshot names."""
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
        if len(entered) > _MOST_FOLDERS:
            return
        below.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if is_gguf(path):
                count += 1
                if count > _MOST_FILES:
                    return
                yield path


def _identity(path: Path) -> tuple[int, int] | str:
    """The same for two names of one file (links, hard links)."""
    try:
        stat = path.stat()
    except OSError:
        return str(path)
    return (stat.st_dev, stat.st_ino) if stat.st_ino else str(path.resolve())
