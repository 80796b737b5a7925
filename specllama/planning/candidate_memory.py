"""Memory of each pick-draft candidate on top of the target, and the context that still fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specllama.drafts.pick import Candidate
from specllama.engine.capabilities import Capabilities
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.settings import Settings
from specllama.gguf import ModelInfo
from specllama.memory.decide import FITS, FitRequest, FitVerdict, longest_context, verdict_of
from specllama.memory.devices import Machine
from specllama.memory.estimate import Drafting, total
from specllama.planning import memory_inputs

DEFAULT_CONTEXT = 8192  # tokens, unless the user sets another or the model's own is shorter


@dataclass(frozen=True)
class CandidateMemory:
    """`extra`: bytes on top of the target alone, at `context` tokens. `longest`: tokens that
    fit with the candidate, 0 = none; `longest_without`: without it."""

    context: int
    extra: int
    verdict: FitVerdict
    longest: int
    longest_without: int

    @property
    def fits(self) -> bool:
        return self.verdict.kind == FITS


def memory_of_candidates(
    target: ModelInfo,
    candidates: Sequence[Candidate],
    caps: Capabilities,
    machine: Machine,
    user: LaunchOptions,
    context: int = 0,
) -> tuple[CandidateMemory | None, ...]:
    """One per candidate, in order; None if a header contradicts its tensors."""
    own = target.context_length or DEFAULT_CONTEXT
    settings = Settings(target.path, "", 0, context=context or min(own, DEFAULT_CONTEXT))
    machine = memory_inputs.with_margins(memory_inputs.chosen_devices(machine, user), user)
    use = memory_inputs.model_use(target, settings, user, caps, machine)
    q = FitRequest(
        target,
        use,
        machine,
        None,
        context_limit=max(use.context, own),
        split=memory_inputs.tensor_split(user),
    )
    if target.layout.problem:
        return (None,) * len(candidates)
    alone, plain = total(q.lines(use, None)), longest_context(q, None)
    return tuple(_memory_of(q, c, alone, plain) for c in candidates)


def _memory_of(q: FitRequest, c: Candidate, alone: int, plain: int) -> CandidateMemory | None:
    if c.draft is not None and c.draft.layout.problem:
        return None
    drafting = Drafting((c.method,), c.draft, c.prediction.k)
    request = replace(q, drafting=drafting)
    verdict, _ = verdict_of(request, q.use, drafting)
    extra = total(q.lines(q.use, drafting)) - alone
    return CandidateMemory(q.use.context, extra, verdict, longest_context(request, drafting), plain)
