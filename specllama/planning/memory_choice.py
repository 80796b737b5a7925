"""What a memory option changes in the plan: its draft, context, GPU layers, and the reason."""

from __future__ import annotations

from dataclasses import replace

from specllama.engine.capabilities import Capabilities, Tristate
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import Settings, Speculation
from specllama.gguf import ModelInfo
from specllama.memory.decide import PARTLY, TOO_BIG, MemoryOption, alternatives
from specllama.memory.devices import MARGIN, MIB
from specllama.memory.estimate import Drafting, per_device, total
from specllama.planning import memory_inputs
from specllama.planning.budget import Budget
from specllama.planning.choose import Choice

_CLEARLY_LESS = 0.9


def apply_option(
    b: Budget,
    option: MemoryOption,
    choice: Choice,
    settings: Settings,
    user: LaunchOptions,
    caps: Capabilities,
) -> tuple[Choice, Settings]:
    """The choice and settings for `option`."""
    if option.use.context != memory_inputs.context_size(
        b.request.target, settings, LaunchOptions()
    ):
        settings = replace(settings, context=option.use.context)
    if option is not b.requested:
        choice = _fallback_choice(b, option, choice)
    spec, target = with_draft_placement(b, choice.speculation, choice.draft, user, caps)
    return replace(choice, speculation=spec), replace(settings, fit_target=target)


def with_draft_placement(
    b: Budget,
    spec: Speculation | None,
    draft: ModelInfo | None,
    user: LaunchOptions,
    caps: Capabilities,
) -> tuple[Speculation | None, tuple[int, ...]]:
    """The speculation with its draft's GPU layers set explicitly (by default it may end up on the
    CPU), and the MiB that --fit must leave free, including the draft if --fit does not count it;
    () if that is what --fit does anyway."""
    gpus = b.request.machine.gpus
    own: dict[str, int] = {}
    if spec is not None and draft is not None and gpus:
        if spec.draft_layers is None:
            spec = replace(spec, draft_layers=str(len(draft.layout.blocks) + 1))
        if not _fit_knows(draft, caps):
            drafting = memory_inputs.drafting_of(spec, draft, user, b.request.machine)
            lines = b.request.lines(b.chosen.use, drafting)
            own = per_device([line for line in lines if line.who == "draft"])
    margins = {g.name: MARGIN if g.source == "--vram" else g.margin for g in gpus}
    target = tuple((n + own.get(name, 0) + MIB - 1) // MIB for name, n in margins.items())
    return spec, () if all(n == MARGIN // MIB for n in target) else target


def _fit_knows(draft: ModelInfo, caps: Capabilities) -> bool:
    """Whether --fit makes room for this draft itself. It cannot measure sidecars alone."""
    if caps.fact("fit_counts_draft") is Tristate.YES:
        return True
    return draft.kind == "model" and caps.fact("fit_adds_draft") is Tristate.YES


def _fallback_choice(b: Budget, option: MemoryOption, choice: Choice) -> Choice:
    """The choice for `option`, with the reason why it is not the requested one."""
    why = _why_fallback(b, choice.draft.title if choice.draft is not None else "the draft")
    if option.drafting is None:
        return replace(choice, speculation=None, reason=why, draft=None, warnings=())
    found = _speculation(option.drafting, choice)
    if found is None:
        return choice
    spec, draft = found
    reason = f"{why}; {option.name}"
    warnings = choice.warnings if draft is choice.draft else ()
    return replace(choice, speculation=spec, reason=reason, draft=draft, warnings=warnings)


def _why_fallback(b: Budget, draft: str) -> str:
    """Why the request does not fit: because of the draft, or because not even the target alone
    does."""
    alone, requested = b.options[-1].verdict, b.requested.verdict
    if alone.kind == TOO_BIG:
        return f"the target does not fit, with or without a draft ({alone.missing})"
    if alone.kind == PARTLY:
        total = len(b.request.target.layout.blocks) + 1
        layers = f"{alone.gpu_layers} of the target's {total} layers fit on the GPU"
        with_draft = (
            f", {requested.gpu_layers} together with {draft}"
            if requested.gpu_layers is not None
            else ""
        )
        return f"{layers}{with_draft or f', and {draft} needs more than is free'}"
    return f"{draft} does not fit together with the target ({requested.missing})"


def _speculation(drafting: Drafting, choice: Choice) -> tuple[Speculation, ModelInfo | None] | None:
    """The speculation of an option: the chosen one or an alternative, adjusted."""
    ways = [(choice.speculation, choice.draft)]
    ways += [(a.speculation, a.draft) for a in choice.alternatives]
    for spec, draft in ways:
        if spec is None or spec.methods != drafting.methods or draft is not drafting.model:
            continue
        if spec.uses_draft:
            spec = replace(spec, n_max=min(spec.n_max, drafting.longest))
        if drafting.gpu_layers is not None:
            spec = replace(spec, draft_layers=str(drafting.gpu_layers))
        if drafting.cache_k != "f16":
            spec = replace(spec, cache_type=drafting.cache_k)
        return spec, draft
    return None


def next_option(b: Budget) -> MemoryOption | None:
    """What to try after an out-of-memory exit, which proves the estimate wrong: the next option
    that needs clearly less, or no draft at all."""
    now = total(b.chosen.lines)
    found = b.remaining or alternatives(b.request)
    for option in found:
        drafts = option.drafting is not None and option.drafting.method
        if option.automatic and (not drafts or total(option.lines) < _CLEARLY_LESS * now):
            return option if option.drafting != b.chosen.drafting else None
    return None
