"""Whether a build can load a file: header faults, by which builds reject them."""

from __future__ import annotations

from specllama.engine.capabilities import MAINLINE, Capabilities
from specllama.gguf import GgufError, ModelInfo
from specllama.gguf import faults as by
from specllama.gguf.architectures import KNOWN_BUILD
from specllama.gguf.faults import Fault


def refusal(model: ModelInfo, caps: Capabilities | None) -> Fault | None:
    """The first fault for which this build certainly rejects the file (`caps` None: every build
    rejects it)."""
    return next((f for f in model.faults if _sure(f, caps)), None)


def doubts(model: ModelInfo, caps: Capabilities | None) -> tuple[Fault, ...]:
    """The faults for which this build may reject the file: a fork or a newer build may not."""
    flavour = caps.flavour if caps is not None else MAINLINE
    return tuple(f for f in model.faults if not _sure(f, caps) and f.fork != flavour)


def check_loads(model: ModelInfo, caps: Capabilities, mended: bool = False) -> tuple[str, ...]:
    """Warnings before `model` is launched. `mended`: --override-kv replaces some of its keys, so
    nothing is certain. Raises GgufError when this build certainly rejects it."""
    sure = refusal(model, caps)
    if sure is not None and not mended:
        raise GgufError(
            f"{model.path}: llama-server cannot load this file: {sure.detail} ({sure.rule})",
            "Get a conversion of the model made for llama.cpp.",
        )
    return tuple(
        f"llama-server may be unable to load {model.title}: {f.detail} ({f.rule})"
        for f in (*((sure,) if sure is not None else ()), *doubts(model, caps))
    )


def _sure(fault: Fault, caps: Capabilities | None) -> bool:
    if fault.by == by.ALWAYS:
        return True
    if caps is None or caps.flavour != MAINLINE:
        return False
    known = caps.build is not None and caps.build <= KNOWN_BUILD
    return fault.by == by.MAINLINE or known
