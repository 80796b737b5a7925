"""Does this build load that file? Faults of a header, weighed by who refuses them."""

from __future__ import annotations

from specllama.engine.capabilities import MAINLINE, Capabilities
from specllama.gguf import GgufError, ModelInfo
from specllama.gguf import faults as by
from specllama.gguf.architectures import KNOWN_BUILD
from specllama.gguf.faults import Fault


def refusal(model: ModelInfo, caps: Capabilities | None) -> Fault | None:
    """The first fault for which this build surely does not load the file (`caps` None: no
    build does)."""
    return next((f for f in model.faults if _sure(f, caps)), None)


def doubts(model: ModelInfo, caps: Capabilities | None) -> tuple[Fault, ...]:
    """The faults for which this build may not load the file: a fork or a newer build may."""
    flavour = caps.flavour if caps is not None else MAINLINE
    return tuple(f for f in model.faults if not _sure(f, caps) and f.fork != flavour)


def check_loads(model: ModelInfo, caps: Capabilities, mended: bool = False) -> tuple[str, ...]:
    """What to warn of before `model` is launched. `mended`: the user's --override-kv stands in
    for some of its keys, so that nothing is sure. Raises GgufError when this build surely does
    not load it."""
    sure = refusal(model, caps)
    if sure is not None and not mended:
        raise GgufError(
            f"{model.path}: llama-server does not load this file: {sure.detail} ({sure.rule})",
            "Get another conversion of the model, made for llama.cpp.",
        )
    return tuple(
        f"llama-server may not load {model.title}: {f.detail} ({f.rule})"
        for f in (*((sure,) if sure is not None else ()), *doubts(model, caps))
    )


def _sure(fault: Fault, caps: Capabilities | None) -> bool:
    if fault.by == by.ALWAYS:
        return True
    if caps is None or caps.flavour != MAINLINE:
        return False
    known = caps.build is not None and caps.build <= KNOWN_BUILD
    return fault.by == by.MAINLINE or known
