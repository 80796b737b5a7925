"""Checks that speculation is on. Trusts `/slots` and counters, never the start-up log.

A server whose speculation failed to start logs one line and serves on without it
(llama.cpp b9113…b11434, server-context.cpp), so every launch ends with this check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specllama.engine.client import Client, Prompt, Timings
from specllama.engine.errors import EngineError
from specllama.engine.exits import why_not_speculating
from specllama.engine.metrics import Metrics
from specllama.planning.plan import Plan
from specllama.tuning.dead_draft import accepts_nothing, advice_for, cost_without_gain
from specllama.watching.counters import contradiction

PROBE_PROMPTS = 2
PROBE_TOKENS = 48
BRIEF_TOKENS = 12  # of one prompt, if the same settings were measured before


@dataclass(frozen=True)
class Engagement:
    """What the probe saw. `engaged`: the server drafted tokens. Counts are over all probe requests;
    `ms` is decoding time; `verify_steps` is None if the build has no counter. `slots`: /slots'
    `speculative`, None if it has none. `memory`: kind of the target's memory
    (gguf/architectures.py). α and τ are None if the counts cannot be right. `ngrams_only`: only
    n-grams draft, where two texts say nothing about others. `remedy`: what to do if it only costs
    time, or what it means that nothing was drafted."""

    engaged: bool
    reason: str
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    ms: float = 0.0
    verify_steps: int | None = None
    slots: bool | None = None
    memory: str = "attention"
    ngrams_only: bool = False
    remedy: str = ""

    @property
    def only_costs(self) -> str:
        """Why speculation only costs time, "" if it may gain or too little is known."""
        steps = self.verify_steps or self.tokens - self.accepted
        if (
            self._miscounted
            or self.ngrams_only
            or not accepts_nothing(self.drafted, self.accepted, steps)
        ):
            return ""
        return cost_without_gain(self.drafted, self.accepted)

    @property
    def doubt(self) -> str:
        """How the counters contradict themselves or /slots, else ""."""
        return "; ".join(s for s in (self._miscounted, self._slots_disagree) if s)

    @property
    def _miscounted(self) -> str:
        """Why the counts are not trusted. On a target whose state must be rolled back, all drafts
        accepted was seen when it is not rolled back (the text is wrong), and when only tokens
        that are verified again are counted (llama.cpp PR 22506)."""
        if problem := contradiction(self.drafted, self.accepted, self.verify_steps):
            return problem
        if self.memory != "attention" and self.drafted == self.accepted > 0:
            return (
                f"all {self.drafted} drafted tokens were accepted on a {self.memory} target: "
                "its counters or its state may be wrong"
            )
        return ""

    @property
    def _slots_disagree(self) -> str:
        if self.slots is False and self.drafted > 0:
            return "/slots reports speculative=false although tokens were drafted"
        if self.slots and self.drafted == 0 and not self.ngrams_only:  # they wait for repeated text
            return "/slots reports speculative=true"
        return ""

    @property
    def alpha(self) -> float | None:
        """Acceptance rate α = accepted / drafted."""
        return self.accepted / self.drafted if self.drafted and not self._miscounted else None

    @property
    def tokens_per_step(self) -> float | None:
        """Mean accepted length τ = 1 + accepted / verify steps."""
        steps = self.verify_steps
        return 1 + self.accepted / steps if steps and not self._miscounted else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.ms * 1000 if self.ms else None


def verify(client: Client, plan: Plan, log_text: str, brief: bool = False) -> Engagement:
    """Sends the first prompts of the workload and checks what the server reports. `brief`: one
    short request, for settings that were measured before (n-grams need more text to draft).

    Raises EngineError if the server does not respond.
    """
    before = client.metrics()
    spec = plan.settings.speculation
    short = brief and (spec is None or spec.uses_draft)
    count, tokens = (1, BRIEF_TOKENS) if short else (PROBE_PROMPTS, PROBE_TOKENS)
    timings = [_ask(client, plan, prompt, tokens) for prompt in plan.prompts()[:count]]
    result = _add(timings, _steps(before, client.metrics()))
    ngrams_only = spec is not None and not spec.uses_draft
    result = replace(
        result, slots=_slots(client), memory=plan.target.memory, ngrams_only=ngrams_only
    )
    if not plan.speculates:
        return replace(result, engaged=False, reason=plan.choice.reason)
    if result.drafted > 0:
        remedy = advice_for(spec) if spec is not None and result.only_costs else ""
        return replace(result, engaged=True, reason=plan.choice.reason, remedy=remedy)
    if result.drafted < 0 or result.accepted:
        return replace(
            result, engaged=False, reason="the server's counts of drafted tokens are not valid"
        )
    if plan.user.value("--spec-type") == "none":
        return replace(result, engaged=False, reason="--spec-type none is set")
    if result.slots is False:
        cause = why_not_speculating(log_text)
        detail = f" ({cause})" if cause else ""
        return replace(result, engaged=False, reason=f"llama-server started without it{detail}")
    reason, remedy = _nothing_drafted(plan, len(timings))
    return replace(result, engaged=False, reason=reason, remedy=remedy)


def _slots(client: Client) -> bool | None:
    """/slots' `speculative`; None if there is no /slots or no such field."""
    slots = client.slots()
    reported = slots[0].get("speculative") if slots else None
    return reported if isinstance(reported, bool) else None


def _nothing_drafted(plan: Plan, sent: int) -> tuple[str, str]:
    """What was observed in `sent` probe requests without a drafted token, and what it means."""
    spec = plan.settings.speculation
    nothing = f"no tokens were drafted in {sent} probe request{'s' if sent != 1 else ''}"
    if spec is not None and spec.ngram is not None and not spec.uses_draft:
        n, methods = spec.ngram.n, ",".join(spec.methods)
        waits = f"{methods} stays loaded and drafts once text repeats"
        if spec.methods == ("ngram-cache",):
            return f"{nothing}: nothing repeated", waits
        return (
            f"{nothing}: no {n}-token sequence repeated",
            f"{waits}; --tune full looks for shorter sequences, which repeat more often",
        )
    if spec is not None and spec.p_min > 0:
        return f"{nothing}: no drafted token reached p_min {spec.p_min:g}", "lower --p-min"
    return nothing, "`specllama doctor` checks this llama-server; --method none frees the memory"


def _ask(client: Client, plan: Plan, prompt: Prompt, tokens: int) -> Timings:
    """One probe request, as a client of this model would send it."""
    sampling = plan.workload.sampling
    if isinstance(prompt, str) and not plan.target.has_chat_template:
        timings = client.complete(prompt, tokens, sampling).timings
    else:
        timings = client.chat(prompt, tokens, sampling).timings
    if timings is None:
        raise EngineError("the server's responses contain no timings")
    return timings


def _add(timings: list[Timings], steps: int | None) -> Engagement:
    return Engagement(
        engaged=False,
        reason="",
        drafted=sum(t.drafted for t in timings),
        accepted=sum(t.accepted for t in timings),
        tokens=sum(t.tokens for t in timings),
        ms=sum(t.ms for t in timings),
        verify_steps=steps,
    )


def _steps(before: Metrics | None, after: Metrics | None) -> int | None:
    if before is None or after is None:
        return None
    if before.verify_steps is None or after.verify_steps is None:
        return None
    return after.verify_steps - before.verify_steps
