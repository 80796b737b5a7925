"""The counters of speculation in llama-server's /metrics."""

from __future__ import annotations

_TEXT = """\
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:tokens_predicted_total {tokens}
llamacpp:tokens_predicted_seconds_total {seconds}
llamacpp:spec_decode_num_draft_tokens_total {drafted}
llamacpp:spec_decode_num_accepted_tokens_total {accepted}
llamacpp:spec_decode_num_drafts_total {steps}
llamacpp:requests_processing {processing}
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {first}
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {second}
"""


def metrics_text(processing: int = 1, **counts: float | str) -> str:
    """`counts`: tokens, seconds, drafted, accepted, steps, first, second."""
    return _TEXT.format(processing=processing, **counts)
