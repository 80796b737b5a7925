"""What running servers count of their speculation, by the engines' exact sample names:
llama.cpp (server-task.cpp, b10289+), vLLM 0.33 (v1/spec_decode/metrics.py), SGLang 0.5.23
(observability/metrics_collector.py), TensorRT-LLM (metrics/collector.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specllama.engine.counters import contradiction


@dataclass(frozen=True)
class Names:
    """Where an engine counts: path and exact sample names, "" = it has none. Gauges hold the
    value itself, counters grow."""

    path: str
    drafts: str = ""
    drafted: str = ""
    accepted: str = ""
    per_position: str = ""
    length_gauge: str = ""
    rate_gauge: str = ""


ENGINES: Mapping[str, Names] = {
    "llama.cpp": Names(
        "/metrics",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    ),
    "vLLM": Names(
        "/metrics",
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    ),
    "SGLang": Names(
        "/metrics",
        drafts="sglang:spec_verify_calls_total",
        length_gauge="sglang:spec_accept_length",
        rate_gauge="sglang:spec_accept_rate",
    ),
    "TensorRT-LLM": Names(
        "/prometheus/metrics",
        drafted="trtllm_spec_decode_num_draft_tokens_total",
        accepted="trtllm_spec_decode_num_accepted_tokens_total",
        length_gauge="trtllm_spec_decode_acceptance_length",
    ),
}
_PREFIXES = {
    "llama.cpp": "llamacpp:",
    "vLLM": "vllm:",
    "SGLang": "sglang:",
    "TensorRT-LLM": "trtllm_",
}


@dataclass(frozen=True)
class Counters:
    """Sample name → sum over all labels; and accepted tokens by position."""

    values: Mapping[str, float]
    by_position: Mapping[int, float]


def parse(text: str) -> tuple[str, Counters] | None:
    """Engine and counters from Prometheus text, by exact sample name; None for anything else."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    by_position: dict[int, float] = {}
    positions = {n.per_position for n in ENGINES.values() if n.per_position}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in positions and str(sample.labels.get("position", "")).isdigit():
                    at = int(sample.labels["position"])
                    by_position[at] = by_position.get(at, 0.0) + sample.value
                else:
                    values[sample.name] = values.get(sample.name, 0.0) + sample.value
    except (ValueError, KeyError, IndexError):
        return None  # not Prometheus' format
    engine = next((e for e, p in _PREFIXES.items() if any(n.startswith(p) for n in values)), None)
    return (engine, Counters(values, by_position)) if engine else None


@dataclass(frozen=True)
class Acceptance:
    """α, τ and a_i, None or () where they are not counted. `doubt`: why the counters are not
    believed; then there is nothing else."""

    alpha: float | None = None
    tau: float | None = None
    by_position: tuple[float, ...] = ()
    doubt: str = ""


def acceptance(engine: str, before: Counters | None, after: Counters | None) -> Acceptance:
    """What `engine` counted between the two; gauges as they stand."""
    if after is None:
        return Acceptance()
    names = ENGINES[engine]
    old = before or Counters({}, {})

    def grown(name: str) -> float:
        return after.values.get(name, 0.0) - old.values.get(name, 0.0) if name else 0.0

    drafted, accepted, drafts = grown(names.drafted), grown(names.accepted), grown(names.drafts)
    alpha, tau = _gauges(names, after)
    if drafted > 0:
        alpha = accepted / drafted
        tau = 1 + accepted / drafts if drafts > 0 else tau
    by_position = tuple(
        (after.by_position[i] - old.by_position.get(i, 0.0)) / drafts
        for i in sorted(after.by_position)
        if drafts > 0
    )
    doubt = _impossible(alpha, tau, by_position)
    if names.drafted in after.values:
        doubt = contradiction(drafted, accepted, drafts) or doubt
    return Acceptance(doubt=doubt) if doubt else Acceptance(alpha, tau, by_position)


def _gauges(names: Names, now: Counters) -> tuple[float | None, float | None]:
    """(α, τ) as they stand, None where there are none. A length of 0 says that nothing was
    drafted yet."""
    length = now.values.get(names.length_gauge)
    return (None, None) if length == 0 else (now.values.get(names.rate_gauge), length)


def _impossible(alpha: float | None, tau: float | None, by_position: Sequence[float]) -> str:
    """What no engine can have seen, "" when all of it can be."""
    shown = [f"α={alpha:g}"] if alpha is not None and not 0 <= alpha <= 1 else []
    shown += [f"τ={tau:g}"] if tau is not None and not 1 <= tau < math.inf else []
    shown += [f"{a:g} of the drafts accepted" for a in by_position if not 0 <= a <= 1]
    return f"the counters contradict themselves: {shown[0]}" if shown else ""
