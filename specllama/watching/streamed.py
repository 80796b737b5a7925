"""Events of a streamed chat completion: text, tokens, acceptance. Pure.

Reasoning is made of tokens like any other: vLLM streams it as `delta.reasoning` (older versions,
SGLang and llama.cpp: `reasoning_content`), tool calls as `delta.tool_calls`. A completion's
acceptance comes as llama.cpp's `timings` (server-common.cpp), vLLM's `metrics.speculative_decoding`
(--per-request-spec-decode-metrics, PR 48915) or TensorRT-LLM's `choices[].speculative_decoding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.watching.counters import contradiction

_THOUGHTS = ("reasoning", "reasoning_content", "reasoning_text")
_TEXTS = (*_THOUGHTS, "content", "tool_calls", "function_call", "refusal")


@dataclass(frozen=True)
class DraftCounts:
    """Draft tokens of completions. `steps`: verify steps; `accepted_by_steps`: how many of them
    accepted 0, 1, 2, … tokens. None and () if not reported."""

    drafted: int
    accepted: int
    steps: int | None = None
    accepted_by_steps: tuple[int, ...] = ()

    @property
    def alpha(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tau(self) -> float | None:
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """a_i: the share of verify steps that accepted the first i drafted tokens."""
        counts = self.accepted_by_steps
        total = sum(counts)
        return tuple(sum(counts[i:]) / total for i in range(1, len(counts))) if total else ()


def combined(all_drafts: Sequence[DraftCounts]) -> DraftCounts | None:
    """The sum over several completions; None if there are none."""
    if not all_drafts:
        return None
    steps = [d.steps for d in all_drafts]
    longest = max(len(d.accepted_by_steps) for d in all_drafts)
    complete = all(d.accepted_by_steps for d in all_drafts)
    counts = [
        sum(d.accepted_by_steps[i] for d in all_drafts if i < len(d.accepted_by_steps))
        for i in range(longest)
    ]
    return DraftCounts(
        sum(d.drafted for d in all_drafts),
        sum(d.accepted for d in all_drafts),
        None if None in steps else sum(s for s in steps if s is not None),
        tuple(counts) if complete else (),
    )


def says_something(event: Mapping[str, Any]) -> bool:
    """Whether an event contains generated tokens of any kind."""
    delta = _delta(event)
    return any(delta.get(name) for name in _TEXTS)


def thinks(event: Mapping[str, Any]) -> bool:
    """Whether an event contains reasoning."""
    delta = _delta(event)
    return any(delta.get(name) for name in _THOUGHTS)


def tokens(event: Mapping[str, Any], thoughts_seen: bool) -> int:
    """Tokens of the whole completion, 0 if the event does not report them. Reasoning that was
    counted but not streamed is excluded: it was generated before the first piece."""
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return 0
    count = _count(usage.get("completion_tokens")) or 0
    details = usage.get("completion_tokens_details")
    hidden = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else 0
    return count - (hidden or 0) if not thoughts_seen and count > (hidden or 0) else count


def draft_counts(event: Mapping[str, Any]) -> DraftCounts | None:
    """The completion's draft counts in an event; None if it has none, or impossible ones."""
    found = _of_llama_cpp(event.get("timings"))
    metrics = event.get("metrics")
    found = found or _by_histogram(
        metrics.get("speculative_decoding") if isinstance(metrics, dict) else None,
        "num_draft_tokens",
        "num_accepted_draft_tokens",
    )
    return found or _by_histogram(
        _choice(event).get("speculative_decoding"),
        "total_draft_tokens",
        "total_accepted_draft_tokens",
    )


def _of_llama_cpp(timings: Any) -> DraftCounts | None:
    """`draft_n` is omitted when nothing was drafted."""
    if not isinstance(timings, dict):
        return None
    drafted, accepted = _count(timings.get("draft_n")), _count(timings.get("draft_n_accepted"))
    if drafted is None or accepted is None or contradiction(drafted, accepted):
        return None
    return DraftCounts(drafted, accepted)


def _by_histogram(data: Any, drafted_name: str, accepted_name: str) -> DraftCounts | None:
    if not isinstance(data, dict):
        return None
    drafted, accepted = _count(data.get(drafted_name)), _count(data.get(accepted_name))
    if drafted is None or accepted is None or contradiction(drafted, accepted):
        return None
    steps = _count(data.get("num_spec_steps"))
    histogram = data.get("acceptance_histogram")
    counts = [n for n in histogram if _count(n) is not None] if isinstance(histogram, list) else []
    fits = sum(counts) == steps and sum(i * n for i, n in enumerate(counts)) == accepted
    return DraftCounts(drafted, accepted, steps, tuple(counts) if fits else ())


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _delta(event: Mapping[str, Any]) -> Mapping[str, Any]:
    delta = _choice(event).get("delta")
    return delta if isinstance(delta, dict) else {}


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole else None
