"""Models on the Hugging Face Hub: remote headers, search, download.

`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured by huggingface_hub. Only the
header of a remote file is fetched, in ranges of 1 MiB, each once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from specllama.drafts.discover import TOO_LARGE, DiscoveredDrafts, Rejection
from specllama.drafts.families import Suggestion, family_of
from specllama.errors import SpecllamaError, UsageError
from specllama.gguf import Header, ModelInfo, model_info
from specllama.gguf.files import (
    is_later_shard,
    read_headers,
    read_model_with_headers,
    shard_names,
)
from specllama.gguf.header import parse_header

_BLOCK = 2**20
_REMOTE = re.compile(r"([\w.-]+/[\w.-]+):(.+\.gguf)", re.I)
_REPOS_PER_SEARCH = 4
_FILES_PER_REPO = 2


class HubError(SpecllamaError):
    """The Hub could not be reached, or refused the request."""


@dataclass(frozen=True)
class RemoteFile:
    """A model file on the Hub. `size` in bytes, of all its parts."""

    repo: str
    name: str
    size: int

    @property
    def label(self) -> str:
        return f"{self.repo}:{self.name}"


class RemoteSource:
    """A Hub file as a source of header bytes (gguf/source.py)."""

    def __init__(self, repo: str, file: str) -> None:
        from huggingface_hub import HfFileSystem

        self.name = f"{repo}:{file}"
        with _explained(self.name):
            opened = HfFileSystem().open(
                f"{repo}/{file}", "rb", block_size=_BLOCK, cache_type="none"
            )
            self._file: Any = opened
            self.size = int(self._file.size)
        self._blocks: dict[int, bytes] = {}

    def read(self, at: int, n: int) -> bytes:
        n = max(0, min(n, self.size - at))
        if n == 0:
            return b""
        first, last = at // _BLOCK, (at + n - 1) // _BLOCK
        missing = [b for b in range(first, last + 1) if b not in self._blocks]
        if missing:
            self._fetch(missing[0], missing[-1])
        joined = b"".join(self._blocks[b] for b in range(first, last + 1))
        return joined[at - first * _BLOCK : at - first * _BLOCK + n]

    def _fetch(self, first: int, last: int) -> None:
        with _explained(self.name):
            self._file.seek(first * _BLOCK)
            data = self._file.read(min((last + 1) * _BLOCK, self.size) - first * _BLOCK)
        for b in range(first, last + 1):
            self._blocks[b] = data[(b - first) * _BLOCK : (b - first + 1) * _BLOCK]


def hub_label(path: PurePath) -> str | None:
    """OWNER/REPO:FILE for the path of a model on the Hub; None for a local path. Windows uses
    backslashes, and has a colon after its drive letters."""
    text = path.as_posix()
    return text if _REMOTE.fullmatch(text) and not os.path.exists(path) else None


def open_model(text: str) -> tuple[ModelInfo, list[Header]]:
    """The model at a path or at OWNER/REPO:FILE, with the headers of all its parts.
    Raises GgufError or HubError."""
    remote = _REMOTE.fullmatch(text)
    if remote and not os.path.exists(text):
        return read_remote(remote[1], remote[2])
    return read_model_with_headers(Path(text))


def read_remote(repo: str, file: str) -> tuple[ModelInfo, list[Header]]:
    """The model that a Hub file is (part of), from the headers of all its parts."""
    names = shard_names(file)
    headers = [parse_header(RemoteSource(repo, name)) for name in names]
    return model_info(headers, [Path(f"{repo}:{name}") for name in names]), headers


def search(target: ModelInfo, repos: Sequence[str]) -> DiscoveredDrafts:
    """Drafts for `target` in these repositories of the Hub. Reads headers only. Paths are
    OWNER/REPO:FILE. Raises HubError if no repository could be read."""
    failures: list[HubError] = []
    rejected: list[Rejection] = []
    candidates: list[RemoteFile] = []
    for repo in repos:
        try:
            candidates += files(repo)[:_FILES_PER_REPO]
        except HubError as e:
            failures.append(e)
            rejected.append(Rejection(repo, "unreadable", e.message))
    if repos and len(failures) == len(repos):
        raise failures[0]
    return DiscoveredDrafts((), tuple(rejected)).and_also(read_drafts(target, candidates))


def read_drafts(target: ModelInfo, found: Sequence[RemoteFile]) -> DiscoveredDrafts:
    """The models in these files, smallest first; files as large as the target are not read."""
    models: list[ModelInfo] = []
    rejected: list[Rejection] = []
    for file in found:
        if file.size >= target.file_bytes:
            rejected.append(Rejection(file.label, *TOO_LARGE))
            continue
        try:
            models.append(read_remote(file.repo, file.name)[0])
        except SpecllamaError as e:
            rejected.append(Rejection(file.label, "unreadable", e.message))
    return DiscoveredDrafts(tuple(sorted(models, key=lambda m: m.file_bytes)), tuple(rejected))


def repositories(target: ModelInfo) -> list[str]:
    """Repositories to search, each once: known drafts of its family, and those that declare its
    base model. () if the file tells neither. Raises HubError if the Hub cannot be asked."""
    repos: list[str] = []
    family = family_of(target)
    for suggestion in family.suggestions if family else ():
        repos += [suggestion.repo] if suggestion.repo else _named(suggestion)
    for base in target.names.base_models:
        repo = "/".join(base.rstrip("/").split("/")[-2:])
        repos += _list(filter=["gguf", f"base_model:{repo}"])
    return list(dict.fromkeys(repos))


def files(repo: str) -> list[RemoteFile]:
    """The GGUF files of a repository (for a split model, its first part): 8-bit ones first (better
    quantisation means a higher α), then by size."""
    from huggingface_hub import HfApi

    with _explained(repo):
        info = HfApi().model_info(repo, files_metadata=True)
    sizes = {s.rfilename: int(s.size or 0) for s in info.siblings or []}
    found = [
        RemoteFile(repo, name, sum(sizes.get(part, 0) for part in shard_names(name)))
        for name in sizes
        if name.lower().endswith(".gguf") and not is_later_shard(Path(name))
    ]
    return sorted(found, key=lambda f: ("q8_0" not in f.name.lower(), f.size, f.name))


def download(label: str) -> Path:
    """Downloads OWNER/REPO:FILE (all parts of a split model) into the Hub's cache, with a progress
    bar on a terminal. Interrupted downloads resume. The result is checked for completeness."""
    import huggingface_hub.utils as hub_utils
    from huggingface_hub import hf_hub_download

    remote = _REMOTE.fullmatch(label)
    if not remote:
        raise UsageError(f"{label!r} is not in the form OWNER/REPO:FILE.gguf")
    if not sys.stderr.isatty():
        # typed as not exported
        getattr(hub_utils, "disable_progress_bars", lambda: None)()
    with _explained(label):
        paths = [Path(hf_hub_download(remote[1], name)) for name in shard_names(remote[2])]
    read_headers(paths[0])
    return paths[0]


def _named(suggestion: Suggestion) -> list[str]:
    return _list(search=f"{suggestion.name} GGUF", filter=["gguf"])


def _list(**query: Any) -> list[str]:
    from huggingface_hub import HfApi

    with _explained("Hub search"):
        found = HfApi().list_models(sort="downloads", limit=_REPOS_PER_SEARCH, **query)
        return [m.id for m in found]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns the library's errors into HubError."""
    from huggingface_hub import errors

    # The library moved between HTTP clients; its own error derives from the client's root.
    http_error: type[Exception] = errors.HfHubHTTPError.__mro__[1]
    try:
        yield
    except (http_error, OSError, errors.EntryNotFoundError, errors.OfflineModeIsEnabled) as e:
        message, hint = _reason(e, errors)
        raise HubError(f"{what}: {message}", hint) from None


def _reason(e: BaseException, errors: Any) -> tuple[str, str]:
    """(message, hint). HfFileSystem wraps access errors in FileNotFoundError."""
    while isinstance(e, FileNotFoundError) and e.__cause__ is not None:
        e = e.__cause__
    if isinstance(e, errors.OfflineModeIsEnabled):
        return "the Hub is disabled (HF_HUB_OFFLINE is set)", "Unset it, or omit --hub."
    if isinstance(e, errors.GatedRepoError):
        return (
            "the repository is gated",
            "Accept its terms on the model's page, then set HF_TOKEN.",
        )
    if isinstance(e, errors.RepositoryNotFoundError):
        return "repository not found on the Hub, or private", ""
    if isinstance(e, (errors.EntryNotFoundError, FileNotFoundError)):
        return "file not found in that repository", ""
    if isinstance(e, errors.HfHubHTTPError):
        status = getattr(getattr(e, "response", None), "status_code", "an error")
        if status == 429:
            return (
                "rate limit of the Hub reached (429)",
                "Wait a few minutes, or set HF_TOKEN.",
            )
        return f"the Hub returned {status}", ""
    first = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
    return f"could not reach the Hub ({first})", ""
