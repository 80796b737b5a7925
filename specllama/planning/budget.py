"""The memory of a plan: does it fit, and what is taken instead when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.capabilities import Capabilities, Tristate
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import Settings, Speculation
from specllama.gguf import ModelInfo
from specllama.memory import oracle
from specllama.memory.decide import (
    FITS,
    LEAST_CONTEXT,
    PARTLY,
    TOO_BIG,
    FitRequest,
    MemoryOption,
    best_option,
    instead,
    longest_context,
    options,
    verdict_of,
    with_lines,
)
from specllama.memory.devices import MARGIN, MIB, Machine
from specllama.memory.estimate import Drafting, MemoryLine, draft_use, per_device, target_use, total
from specllama.memory.use import MOST_CONTEXT
from specllama.planning import memory_inputs
from specllama.planning.choose import Alternative, Choice

SPEED, CONTEXT = "speed", "context"
_CLEARLY_LESS = 0.9


@dataclass(frozen=True)
class PromptCache:
    """What llama-server keeps of earlier prompts in RAM. `bytes`: what it may grow to, None =
    without a limit; `message`: why it is not the default."""

    bytes: int | None
    message: str = ""


@dataclass(frozen=True)
class Budget:
    """What was asked and what can be had. `requested_context`: the context in tokens before anything
    was shortened. `chosen` is what the plan does; `remaining`: options after it."""

    request: FitRequest
    requested_context: int
    options: tuple[MemoryOption, ...]
    chosen: MemoryOption
    remaining: tuple[MemoryOption, ...] = ()
    prompt_cache: PromptCache | None = None

    @property
    def requested(self) -> MemoryOption:
        return self.options[0]

    @property
    def adjusted(self) -> bool:
        return self.chosen is not self.requested

    @property
    def lines(self) -> tuple[MemoryLine, ...]:
        return self.chosen.lines


def budget(
    target: ModelInfo,
    choice: Choice,
    settings: Settings,
    user: LaunchOptions,
    caps: Capabilities,
    machine: Machine,
    prefer: str | None = None,
    tool: Path | None = None,
) -> Budget:
    """Judges the choice and picks what fits. `prefer`: a shorter context with the draft
    (speed), or the context at the cost of the draft (context); None = the context the user
    named, else as much as fits with the draft. `tool`: a llama-fit-params to ask.

    Raises MemoryInputError for settings or files that cannot be summed up.
    """
    machine = memory_inputs.with_margins(memory_inputs.chosen_devices(machine, user), user)
    use = memory_inputs.model_use(target, settings, user, caps, machine)
    request = FitRequest(
        target=target,
        use=use,
        machine=machine,
        drafting=memory_inputs.drafting_of(choice.speculation, choice.draft, user, machine),
        others=_drafts(choice.alternatives, user, machine),
        ngram=_ngram(choice.alternatives, user, machine),
        context_limit=min(max(use.context, target.context_length or 0), MOST_CONTEXT),
        split=memory_inputs.tensor_split(user),
        extra=(
            *memory_inputs.projector_lines(user, machine),
            *memory_inputs.lora_lines(user, machine),
        ),
    )
    request = _with_context(request, prefer, settings.context, user.value("-c"))
    found = options(request)
    check = _checker(request, tool, user)
    requested = check(found[0])
    chosen = (
        requested if requested.verdict.kind == FITS else check(best_option((requested, *found[1:])))
    )
    while chosen.verdict.kind == TOO_BIG and chosen is not requested:
        rest = found[found.index(_same(found, chosen)) + 1 :]
        if not rest:
            break  # not even the plain target fits
        found = (found[0], *rest)
        chosen = check(best_option(rest))
    found = tuple(_replaced(o, requested, chosen) for o in found)
    return Budget(request, use.context, found, chosen, found[found.index(chosen) + 1 :])


def _same(found: Sequence[MemoryOption], option: MemoryOption) -> MemoryOption:
    return next(o for o in found if o.name == option.name)


def _replaced(option: MemoryOption, *checked: MemoryOption) -> MemoryOption:
    return next((c for c in checked if c.name == option.name), option)


def _with_context(
    q: FitRequest, prefer: str | None, own_context: int, user_context: str | None
) -> FitRequest:
    """The question with the longest context that fits, where the user leaves that open:
    named no context, or prefers speed to it. Theirs after `--` is never changed."""
    if user_context not in (None, "0"):
        return q
    ways: list[Drafting | None] = []
    if prefer == SPEED or (prefer is None and not own_context):
        ways = [q.drafting]
    elif not own_context:
        ways = [None]
    for drafting in ways:
        if verdict_of(q, q.use, drafting)[0].kind == FITS:
            return q
        longest = longest_context(q, drafting)
        if longest >= min(LEAST_CONTEXT, q.use.context):
            return replace(q, use=replace(q.use, context=longest))
    if not own_context and (longest := longest_context(q, None, partly=True)) >= LEAST_CONTEXT:
        return replace(q, use=replace(q.use, context=min(longest, q.use.context)))
    return q


def _checker(
    q: FitRequest, tool: Path | None, user: LaunchOptions
) -> Callable[[MemoryOption], MemoryOption]:
    """Options with llama.cpp's own figures in place of the formulas'."""
    if tool is None or any(g.source == "--vram" for g in q.machine.gpus):
        return lambda option: option
    flags, drafts = (
        memory_inputs.tool_flags(user, draft=False),
        memory_inputs.tool_flags(user, draft=True),
    )

    def check(option: MemoryOption) -> MemoryOption:
        lines = option.lines
        use = replace(option.use, gpu_layers=option.verdict.gpu_layers or option.use.gpu_layers)
        if figures := oracle.ask(tool, q.target, use, flags):
            exact = target_use(q.target, use, option.drafting)
            lines = oracle.corrected("target", lines, figures, exact)
        drafting = option.drafting
        if (
            drafting is not None
            and drafting.model is not None
            and drafting.method == "draft-simple"
        ):
            draft_context = draft_use(use, drafting)
            if figures := oracle.ask(tool, drafting.model, draft_context, drafts):
                lines = oracle.corrected("draft", lines, figures, draft_context)
        return with_lines(q, option, lines)

    return check


def _drafts(
    others: Sequence[Alternative], user: LaunchOptions, machine: Machine
) -> tuple[Drafting, ...]:
    found = (memory_inputs.drafting_of(a.speculation, a.draft, user, machine) for a in others)
    return tuple(d for d in found if d is not None and d.method)


def _ngram(others: Sequence[Alternative], user: LaunchOptions, machine: Machine) -> Drafting | None:
    found = (memory_inputs.drafting_of(a.speculation, a.draft, user, machine) for a in others)
    return next((d for d in found if d is not None and not d.method), None)


def apply_option(
    b: Budget,
    option: MemoryOption,
    choice: Choice,
    settings: Settings,
    user: LaunchOptions,
    caps: Capabilities,
) -> tuple[Choice, Settings]:
    """Choice and settings that bring `option` about."""
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
    """A speculation with what its file needs on GPUs: its layers said outright (left to itself
    it may land on the CPU), and the MiB for --fit to leave free: what the sum leaves free, with
    the draft where --fit does not count it; () where that is what --fit does anyway."""
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
    """Whether --fit makes room for this draft by itself. Sidecars could not be measured alone."""
    if caps.fact("fit_counts_draft") is Tristate.YES:
        return True
    return draft.kind == "model" and caps.fact("fit_adds_draft") is Tristate.YES


def _fallback_choice(b: Budget, option: MemoryOption, choice: Choice) -> Choice:
    """The choice that `option` is, with the reason why it is not what was asked."""
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
    """Why what was asked is not taken: because of the draft, or because not even the target
    by itself fits."""
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
    """The speculation of an option: the chosen one or one of the others, adjusted."""
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
    """What is taken after an out-of-memory exit, which proves the sum wrong: the next line
    that needs clearly less, or no draft at all."""
    now = total(b.chosen.lines)
    found = b.remaining or instead(b.request)
    for option in found:
        drafts = option.drafting is not None and option.drafting.method
        if option.automatic and (not drafts or total(option.lines) < _CLEARLY_LESS * now):
            return option if option.drafting != b.chosen.drafting else None
    return None


def explain_budget(b: Budget) -> Iterator[str]:
    """The sum in one line per device, for someone whose server ran out of memory."""
    for device, size in per_device(b.chosen.lines).items():
        d = b.request.machine.device(device)
        if d is None:
            continue
        parts = sorted((x for x in b.chosen.lines if x.device == device), key=lambda x: -x.bytes)
        largest = ", ".join(f"{x.who} {x.what} {x.bytes / MIB:,.0f}" for x in parts[:4])
        yield f"{device}: {size / MIB:,.0f} of {d.free / MIB:,.0f} MiB free ({largest})"


def plain_budget(b: Budget) -> Budget:
    """The budget of the same server without speculation."""
    request = replace(b.request, drafting=None, others=(), ngram=None)
    found = options(request)
    return Budget(request, b.requested_context, found, found[0])
