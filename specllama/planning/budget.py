"""A plan's memory: whether it fits, and the option to use if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.capabilities import Capabilities
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import MAX_CONTEXT, Settings
from specllama.gguf import ModelInfo
from specllama.memory import oracle
from specllama.memory.decide import (
    FITS,
    MIN_CONTEXT,
    TOO_BIG,
    FitRequest,
    MemoryOption,
    best_option,
    longest_context,
    memory_options,
    verdict_of,
    with_lines,
)
from specllama.memory.devices import MIB, Machine
from specllama.memory.estimate import Drafting, MemoryLine, draft_use, per_device, target_use
from specllama.planning import memory_inputs
from specllama.planning.choose import Alternative, Choice

SPEED, CONTEXT = "speed", "context"


@dataclass(frozen=True)
class PromptCache:
    """llama-server's cache of earlier prompts in RAM. `bytes`: its limit, None = unlimited;
    `message`: why it is not the default."""

    bytes: int | None
    message: str = ""


@dataclass(frozen=True)
class Budget:
    """The request and the options for it. `requested_context`: tokens before any reduction. `chosen`:
    the option that the plan uses; `remaining`: the options after it."""

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
    """Checks the choice and picks an option that fits. `prefer`: a shorter context with the draft
    (speed), or the full context without it (context); None = the context the user set, or else
    as much as fits with the draft. `tool`: a llama-fit-params to run.

    Raises MemoryInputError for settings or files whose memory cannot be computed.
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
        context_limit=min(max(use.context, target.context_length or 0), MAX_CONTEXT),
        split=memory_inputs.tensor_split(user),
        extra=(
            *memory_inputs.projector_lines(user, machine),
            *memory_inputs.lora_lines(user, machine),
        ),
    )
    request = _with_context(request, prefer, settings.context, user.value("-c"))
    found = memory_options(request)
    check = _checker(request, tool, user)
    requested = check(found[0])
    chosen = (
        requested if requested.verdict.kind == FITS else check(best_option((requested, *found[1:])))
    )
    while chosen.verdict.kind == TOO_BIG and chosen is not requested:
        rest = found[found.index(_find_option(found, chosen)) + 1 :]
        if not rest:
            break  # not even the plain target fits
        found = (found[0], *rest)
        chosen = check(best_option(rest))
    found = tuple(_checked_version(o, requested, chosen) for o in found)
    return Budget(request, use.context, found, chosen, found[found.index(chosen) + 1 :])


def _find_option(found: Sequence[MemoryOption], option: MemoryOption) -> MemoryOption:
    return next(o for o in found if o.name == option.name)


def _checked_version(option: MemoryOption, *checked: MemoryOption) -> MemoryOption:
    return next((c for c in checked if c.name == option.name), option)


def _with_context(
    q: FitRequest, prefer: str | None, own_context: int, user_context: str | None
) -> FitRequest:
    """The request with the longest context that fits, if the user set none or prefers speed. A
    context after `--` is never changed."""
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
        if longest >= min(MIN_CONTEXT, q.use.context):
            return replace(q, use=replace(q.use, context=longest))
    if not own_context and (longest := longest_context(q, None, partly=True)) >= MIN_CONTEXT:
        return replace(q, use=replace(q.use, context=min(longest, q.use.context)))
    return q


def _checker(
    q: FitRequest, tool: Path | None, user: LaunchOptions
) -> Callable[[MemoryOption], MemoryOption]:
    """A function that replaces an option's computed figures with llama.cpp's own."""
    if tool is None or any(g.source == "--vram" for g in q.machine.gpus):
        return lambda option: option
    flags, drafts = (
        memory_inputs.tool_flags(user, draft=False),
        memory_inputs.tool_flags(user, draft=True),
    )

    def check(option: MemoryOption) -> MemoryOption:
        lines = option.lines
        use = replace(option.use, gpu_layers=option.verdict.gpu_layers or option.use.gpu_layers)
        if figures := oracle.ask_oracle(tool, q.target, use, flags):
            exact = target_use(q.target, use, option.drafting)
            lines = oracle.corrected("target", lines, figures, exact)
        drafting = option.drafting
        if (
            drafting is not None
            and drafting.model is not None
            and drafting.method == "draft-simple"
        ):
            draft_context = draft_use(use, drafting)
            if figures := oracle.ask_oracle(tool, drafting.model, draft_context, drafts):
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


def explain_budget(b: Budget) -> Iterator[str]:
    """The budget, one line per device, for a server that ran out of memory."""
    for device, size in per_device(b.chosen.lines).items():
        d = b.request.machine.device(device)
        if d is None:
            continue
        parts = sorted((x for x in b.chosen.lines if x.device == device), key=lambda x: -x.bytes)
        largest = ", ".join(f"{x.who} {x.what} {x.bytes / MIB:,.0f}" for x in parts[:4])
        yield f"{device}: {size / MIB:,.0f} of {d.free / MIB:,.0f} MiB free ({largest})"


def budget_with(b: Budget, drafting: Drafting | None) -> Budget:
    """The budget of the same server with another draft, or none."""
    request = replace(b.request, use=b.chosen.use, drafting=drafting)
    found = memory_options(request)
    return Budget(request, b.requested_context, found, found[0], found[1:], b.prompt_cache)
