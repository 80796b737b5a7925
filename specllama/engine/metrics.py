"""llama-server's /metrics, by exact sample names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specllama.engine.errors import EngineError
from specllama.engine.settings import MAX_DRAFT_TOKENS

# Exact names (llama.cpp b10289+, server-task.cpp): one that only contains another
# (…_per_pos_total) is a different series.
_PREFIX = "llamacpp:spec_decode_"
DRAFTED, ACCEPTED = _PREFIX + "num_draft_tokens_total", _PREFIX + "num_accepted_tokens_total"
VERIFY_STEPS = _PREFIX + "num_drafts_total"
PER_POSITION = _PREFIX + "num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Metrics:
    """Counters since the server started; None if the build has no such series."""

    drafted: int | None
    accepted: int | None
    verify_steps: int | None
    accepted_by_position: tuple[int, ...]


def parse_metrics(text: str) -> Metrics:
    """Counters from Prometheus text. Raises EngineError for any other text."""
    single: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for name, labels, value in _samples(text):
        position = labels.get("position", "")
        if not 0 <= value < 2**63:
            continue
        if name == PER_POSITION and position.isdecimal() and int(position) < MAX_DRAFT_TOKENS:
            by_position[int(position)] = int(value)
        elif name in (DRAFTED, ACCEPTED, VERIFY_STEPS):
            single[name] = int(value)
    positions = range(max(by_position, default=-1) + 1)
    return Metrics(
        drafted=single.get(DRAFTED),
        accepted=single.get(ACCEPTED),
        verify_steps=single.get(VERIFY_STEPS),
        accepted_by_position=tuple(by_position.get(i, 0) for i in positions),
    )


def parse_prompt_speed(text: str) -> float | None:
    """Prompt tokens per second from Prometheus text, None if nothing was counted. Raises
    EngineError for any other text."""
    values = {name: value for name, _, value in _samples(text)}
    tokens, seconds = (values.get(f"llamacpp:prompt_{x}_total", 0.0) for x in ("tokens", "seconds"))
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """(name, labels, value) of each sample."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except (ValueError, KeyError, IndexError, TypeError):
        raise EngineError("the server's /metrics are not in Prometheus format") from None
