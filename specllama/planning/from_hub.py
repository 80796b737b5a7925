"""A model named by its Hub repository: which file to serve and which draft to use, by the same
rules as for local files but from headers alone; and the downloads that this needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama import workloads
from specllama.drafts import hub
from specllama.drafts.discover import DiscoveredDrafts, Rejection, discover
from specllama.drafts.hub import HubError, RemoteFile
from specllama.drafts.pick import rank_drafts
from specllama.drafts.repository import (
    Repository,
    downloaded_files,
    is_downloaded,
    models_to_try,
    sidecars,
)
from specllama.engine.capabilities import Capabilities
from specllama.engine.launch_options import LaunchOptions, read_launch_options
from specllama.engine.settings import Settings
from specllama.errors import SpecllamaError, UsageError
from specllama.gguf import ModelInfo, file_of_kind
from specllama.memory.decide import FITS, PARTLY, FitRequest, FitVerdict, size_text, verdict_of
from specllama.memory.devices import Machine, find_machine, parse_sizes
from specllama.planning import memory_inputs
from specllama.planning.candidate_memory import DEFAULT_CONTEXT
from specllama.planning.choose import parse_methods
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare, usable_engine
from specllama.planning.spec_options import SpeculationOptions

_SPARE = 2**30  # bytes left free on the disk


@dataclass(frozen=True)
class Download:
    """A file to fetch. `size` in bytes."""

    label: str
    size: int


@dataclass(frozen=True)
class HubPlan:
    """The decision before any download. `plan` is made from headers; its paths are OWNER/REPO:FILE.
    `reason`: why this file. `downloads`: files that are not on this machine yet."""

    plan: Plan
    reason: str
    downloads: tuple[Download, ...]
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """OWNER/REPO:FILE."""
        return self.plan.target.path.as_posix()


@dataclass(frozen=True)
class LocalCopy:
    """The Hub is unreachable, but the model was downloaded before."""

    path: Path
    reason: str


def plan_from_hub(
    repo: Repository,
    settings: Settings,
    spec_options: SpeculationOptions,
    user_args: Sequence[str] = (),
    llama_server: str | None = None,
) -> HubPlan | LocalCopy:
    """The decision for a repository. Raises HubError if the Hub is unreachable, UsageError if the
    repository has no matching model or none that fits in memory."""
    engine, caps = usable_engine(llama_server)
    user = read_launch_options(user_args, caps, os.environ)
    vram = parse_sizes(spec_options.vram) if spec_options.vram is not None else ()
    devices = find_machine(engine, vram, user.values("--rpc"))
    try:
        files = hub.files(repo.name)
    except HubError as e:
        return _local_copy(repo, e)
    candidates = models_to_try(files, repo.selection)
    if not candidates:
        raise _no_candidate(repo, files)
    target, why = _first_fitting(repo, candidates, settings, user, caps, devices)
    found, notes = _drafts(target, files, spec_options, caps)
    named = replace(settings, model=target.path)
    plan = prepare(
        named, spec_options, user_args, llama_server, check_port=False, target=target, more=found
    )
    draft = plan.choice.draft
    needed = [target, *([draft] if draft is not None else [])]
    missing = [
        Download(label, m.file_bytes)
        for m in needed
        if (label := hub.hub_label(m.path)) is not None and not is_downloaded(label)
    ]
    return HubPlan(plan, why, tuple(missing), (*notes, *_projector_note(files)))


def _projector_note(files: Sequence[RemoteFile]) -> Iterator[str]:
    """What else a model needs to read images."""
    if (projector := next((f for f in files if "mmproj" in f.name.lower()), None)) is not None:
        yield f"text only: for images, download {projector.label} and pass --mmproj FILE after --"


def fetch(found: HubPlan | LocalCopy) -> Path:
    """Downloads files that are missing or outdated, resuming partial downloads. Returns the target's
    path. Raises HubError, also if the disk is too small."""
    if isinstance(found, LocalCopy):
        return found.path
    _check_disk(sum(d.size for d in found.downloads))
    for each in found.downloads:
        hub.download(each.label)
    return hub.download(found.target)


def _local_copy(repo: Repository, e: HubError) -> LocalCopy:
    """The model in the Hub's cache, when the Hub is unreachable. Raises `e` if it is not there."""
    local = downloaded_files(repo.name)
    candidates = models_to_try(tuple(local), repo.selection)
    if not candidates:
        hint = e.hint.replace("omit --hub", "name a file on this machine")
        raise HubError(e.message, hint or "There is no local file or folder of that name either.")
    return LocalCopy(local[candidates[0]], f"using the downloaded copy; {e.message}")


def _no_candidate(repo: Repository, files: Sequence[RemoteFile]) -> SpecllamaError:
    """Why no file of the repository is a candidate."""
    if not files:
        return UsageError(
            f"{repo.name} has no GGUF file",
            "Look for a repository of the same model whose name ends in GGUF.",
        )
    names = ", ".join(sorted(f.name for f in files)[:8]) + (", …" if len(files) > 8 else "")
    if repo.selection:
        return UsageError(f"{repo.name} has no model called {repo.selection}", f"It has {names}.")
    return UsageError(f"{repo.name} has no model that can be served on its own: {names}")


def _first_fitting(
    repo: Repository,
    candidates: Sequence[RemoteFile],
    settings: Settings,
    user: LaunchOptions,
    caps: Capabilities,
    devices: Machine,
) -> tuple[ModelInfo, str]:
    """The first file that fits entirely, or else the first that fits with layers in RAM; and why.
    A file requested by name is used as it is; serve reports what it lacks."""
    if repo.selection:
        return _model(candidates[0]), f"requested as {repo.selection}"
    available = devices.ram.usable + sum(g.usable for g in devices.gpus if not g.shared)
    partly: list[tuple[ModelInfo, str]] = []
    problem = ""
    for n, file in enumerate(candidates):
        if file.size > available:
            problem = f"it needs {size_text(file.size)}, only {size_text(available)} are available"
            continue
        target = _model(file)
        verdict = _verdict(target, settings, user, caps, devices)
        problem = verdict.detail
        if verdict.kind == FITS:
            why = f"{candidates[n - 1].name} does not fit" if n else "it fits"
            return target, why
        if verdict.kind == PARTLY:
            partly.append((target, verdict.detail))
    if partly:
        return partly[0]
    smallest = candidates[-1]
    raise UsageError(
        f"no file in {repo.name} fits: {smallest.name}: {problem}",
        "Free memory, choose a smaller model, or select a file with OWNER/REPO:QUANT.",
    )


def _model(file: RemoteFile) -> ModelInfo:
    target, _ = hub.read_remote(file.repo, file.name)
    if target.kind != "model":
        raise UsageError(f"{file.label}: {file_of_kind(target.kind)} cannot be served on its own")
    return target


def _verdict(
    target: ModelInfo, settings: Settings, user: LaunchOptions, caps: Capabilities, devices: Machine
) -> FitVerdict:
    """Whether the target fits by itself, with the requested context or the default."""
    if target.layout.problem:
        return FitVerdict(FITS)  # unknown; serve reports it
    usual = min(target.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    complete = replace(settings, model=target.path, context=settings.context or usual)
    devices = memory_inputs.with_margins(memory_inputs.chosen_devices(devices, user), user)
    use = memory_inputs.model_use(target, complete, user, caps, devices)
    request = FitRequest(target, use, devices, None, split=memory_inputs.tensor_split(user))
    return verdict_of(request, use, None)[0]


def _drafts(
    target: ModelInfo,
    files: Sequence[RemoteFile],
    spec_options: SpeculationOptions,
    caps: Capabilities,
) -> tuple[DiscoveredDrafts, tuple[str, ...]]:
    """Drafts on the Hub: searched only if a draft is wanted and none on this machine is expected to
    pay off. If the search fails, the model is served without a draft."""
    methods = parse_methods(spec_options.method) if spec_options.method else ()
    if spec_options.draft is not None or (
        methods and not any(m.startswith("draft-") for m in methods)
    ):
        return DiscoveredDrafts(), ()
    known = rank_drafts(
        target, workloads.load_workload(spec_options.workload), caps, discover(target)
    )
    if any(c.may_pay for c in known.candidates):
        return DiscoveredDrafts(), ()
    in_repository = hub.read_drafts(target, sidecars(files))
    try:
        found = hub.search(target, hub.repositories(target))
    except HubError as e:
        found = DiscoveredDrafts((), (Rejection("the Hub", "unreadable", e.message),))
        return in_repository.and_also(found), (f"skipped the search for drafts: {e.message}",)
    return in_repository.and_also(found), ()


def _check_disk(missing: int) -> None:
    """Raises HubError if the Hub's cache has no room for that many more bytes."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing and missing + _SPARE > free:
        raise HubError(
            f"the download needs {size_text(missing)}, but {folder} has only {size_text(free)} free",
            "Free disk space, or set HF_HOME to another folder.",
        )
