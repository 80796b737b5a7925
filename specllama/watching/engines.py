"""Counters of running servers, by the engines' exact sample names: llama.cpp (server-task.cpp,
speculation since b10289), vLLM 0.33 (v1/spec_decode/metrics.py, v1/metrics/loggers.py), SGLang
0.5.23 (observability/metrics_collector.py), TensorRT-LLM (metrics/collector.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LLAMA_CPP, VLLM, SGLANG, TENSORRT_LLM = "llama.cpp", "vLLM", "SGLang", "TensorRT-LLM"


@dataclass(frozen=True)
class CounterNames:
    """An engine's metrics: path and exact sample names, "" = it has none. Counters grow:
    `drafts` (verify steps), `drafted`, `accepted`, `per_position` (accepted, labelled by
    position), `tokens` (generated) and `seconds` (spent on them), `requests` (completed). Gauges
    hold the current value: `running`, `length_gauge` (τ), `rate_gauge` (α), `speed_gauge`
    (tok/s). `digits`: printed significant digits (0 = all), beyond which values are rounded."""

    path: str
    prefix: str
    drafts: str = ""
    drafted: str = ""
    accepted: str = ""
    per_position: str = ""
    tokens: str = ""
    seconds: str = ""
    requests: str = ""
    running: str = ""
    length_gauge: str = ""
    rate_gauge: str = ""
    speed_gauge: str = ""
    digits: int = 0


ENGINES: Mapping[str, CounterNames] = {
    LLAMA_CPP: CounterNames(
        "/metrics",
        "llamacpp:",
        drafts="llamacpp:spec_decode_num_drafts_total",
        drafted="llamacpp:spec_decode_num_draft_tokens_total",
        accepted="llamacpp:spec_decode_num_accepted_tokens_total",
        per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        tokens="llamacpp:tokens_predicted_total",
        seconds="llamacpp:tokens_predicted_seconds_total",
        running="llamacpp:requests_processing",
        # a std::stringstream as it comes (to_metrics(), b11434): 1234567 is 1.23457e+06
        digits=6,
    ),
    VLLM: CounterNames(
        "/metrics",
        "vllm:",
        drafts="vllm:spec_decode_num_drafts_total",
        drafted="vllm:spec_decode_num_draft_tokens_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
        per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
        # both histograms are updated when a request finishes, so they belong together
        tokens="vllm:request_generation_tokens_sum",
        seconds="vllm:request_decode_time_seconds_sum",
        requests="vllm:request_success_total",
        running="vllm:num_requests_running",
    ),
    SGLANG: CounterNames(
        "/metrics",
        "sglang:",
        drafts="sglang:spec_verify_calls_total",
        tokens="sglang:generation_tokens_total",
        seconds="sglang:inter_token_latency_seconds_sum",
        requests="sglang:num_requests_total",
        running="sglang:num_running_reqs",
        length_gauge="sglang:spec_accept_length",
        rate_gauge="sglang:spec_accept_rate",
        speed_gauge="sglang:gen_throughput",
    ),
    TENSORRT_LLM: CounterNames(
        "/prometheus/metrics",
        "trtllm_",
        drafted="trtllm_spec_decode_num_draft_tokens_total",
        accepted="trtllm_spec_decode_num_accepted_tokens_total",
        requests="trtllm_request_success_total",
        length_gauge="trtllm_spec_decode_acceptance_length",
    ),
}
