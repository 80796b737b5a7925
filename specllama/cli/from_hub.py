"""A MODEL that is a repository on the Hub: the downloads, and the plan or the local file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specllama.cli.render import Printer
    from specllama.engine.settings import Settings
    from specllama.planning.from_hub import HubPlan, LocalCopy
    from specllama.planning.plan import Plan
    from specllama.planning.spec_options import SpeculationOptions


def resolved(
    printer: Printer,
    model: str,
    settings: Settings,
    spec_options: SpeculationOptions,
    server_arguments: Sequence[str],
    llama_server: str | None,
    download: bool,
) -> tuple[Settings, Plan | None]:
    """(settings with a local file, None); or, if a file is only on the Hub and `download` is
    false, the plan from its headers."""
    from specllama.drafts.repository import repository

    repo = repository(model)
    if repo is None:
        return settings, None
    from specllama.planning.from_hub import HubPlan, fetch, plan_from_hub

    with printer.busy(f"reading {repo.name} on the Hub …"):
        found = plan_from_hub(repo, settings, spec_options, server_arguments, llama_server)
    printer.lines(_lines(found, repo.name, download), results=("download", "get"))
    if isinstance(found, HubPlan) and found.downloads and not download:
        return settings, found.plan
    return replace(settings, model=fetch(found)), None


def _lines(found: HubPlan | LocalCopy, repo: str, download: bool) -> Iterator[str]:
    from specllama.cli.units import mib
    from specllama.planning.from_hub import HubPlan

    if not isinstance(found, HubPlan):
        yield f"hub      {repo}: {found.path.name}, {found.reason}"
        return
    yield f"hub      {found.target}: {found.reason}"
    for note in found.notes:
        yield f"note     {note}"
    for d in found.downloads:
        size = mib(d.size)
        yield (
            f"download {d.label}, {size}"
            if download
            else f"get      {d.label}, {size}: not downloaded yet"
        )
