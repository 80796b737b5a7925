"""From what a user typed to a Plan: inspect, locate, probe, choose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama import workloads
from specllama.engine.capabilities import Answer, Capabilities, probe
from specllama.engine.embedded_options import API_KEY_ENV
from specllama.engine.errors import EngineError
from specllama.engine.locate import Engine, locate
from specllama.engine.settings import Settings
from specllama.engine.user_args import parse
from specllama.errors import UsageError
from specllama.gguf import ModelInfo, inspect
from specllama.planning.choose import Choice, Request, choose, parse_methods
from specllama.planning.plan import Plan, make_plan


@dataclass(frozen=True)
class Wish:
    """What the user asked of speculation; None where they left it to specllama."""

    workload: str
    draft: Path | None = None
    method: str | None = None
    n_max: int | None = None
    p_min: float | None = None
    draft_layers: str | None = None


def prepare(
    settings: Settings,
    wish: Wish,
    user_args: Sequence[str] = (),
    llama_server: str | None = None,
    check_port: bool = True,
) -> Plan:
    """The whole decision for `settings.model`. Raises SpecllamaError for bad input and
    when no engine can be used; a draft that does not fit is a reason in the plan."""
    workload = workloads.load(wish.workload)
    methods = parse_methods(wish.method) if wish.method else ()
    target = target_info(settings.model)
    draft = inspect(wish.draft) if wish.draft else None
    engine, capabilities = usable_engine(llama_server)
    user = parse(user_args, capabilities)
    request = Request(target, workload, draft, methods, wish.n_max, wish.p_min, wish.draft_layers)
    choice = choose(request, capabilities)
    notes = tuple(_slot_notes(settings.parallel, choice, capabilities))
    choice = replace(choice, warnings=choice.warnings + notes)
    settings = replace(
        settings,
        model=target.path,
        api_key=settings.api_key or os.environ.get(API_KEY_ENV) or None,
    )
    return make_plan(target, workload, engine, capabilities, choice, settings, user, check_port)


def _slot_notes(slots: int, choice: Choice, caps: Capabilities) -> Iterator[str]:
    """What more than one slot costs."""
    if slots == 1:
        return
    yield f"{slots} slots share the context, and each gains less than one alone would"
    spec = choice.speculation
    if spec and spec.uses_draft and caps.fact("slots_read_wrong_rows") is Answer.YES:
        yield f"{caps.label} drafts worse with more than one slot; b11311 and later do not"


def usable_engine(llama_server: str | None) -> tuple[Engine, Capabilities]:
    """The engine to use and what it can do. Raises EngineError when it cannot be used."""
    engine = locate(llama_server)
    capabilities = probe(engine)
    if capabilities.problem:
        raise EngineError(
            f"{engine.label} cannot be used: {capabilities.problem}",
            "Name another with --llama-server, or use `--llama-server embedded`.",
        )
    return engine, capabilities


def target_info(path: Path) -> ModelInfo:
    """The model to serve. Raises GgufError or UsageError when it cannot be one."""
    target = inspect(path)
    if target.kind != "model":
        raise UsageError(
            f"{path} is of the kind {target.kind}, which cannot be served by itself",
            "Give the model it belongs to.",
        )
    return target
