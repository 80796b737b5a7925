"""Parsing llama-server's responses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.client import Client, Timings
from specllama.engine.metrics import parse_metrics

# As printed by b11434 after two requests.
METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 32
# HELP llamacpp:spec_decode_num_draft_tokens_total x
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 192
# HELP llamacpp:spec_decode_num_accepted_tokens_total x
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 76
# HELP llamacpp:spec_decode_num_drafts_total x
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 48
# HELP llamacpp:spec_decode_num_accepted_tokens_per_pos_total x
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 28
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 22
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="3"} 12
"""


def test_counters_are_read_by_exact_name() -> None:
    m = parse_metrics(METRICS)
    assert (m.drafted, m.accepted, m.verify_steps) == (192, 76, 48)
    assert m.accepted_by_position == (28, 22, 0, 12)


def test_absent_counters_are_none_not_zero() -> None:
    m = parse_metrics(
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 3\n"
    )
    assert (m.drafted, m.accepted, m.verify_steps) == (None, None, None)
    assert m.accepted_by_position == ()


def test_timings_without_draft_fields_mean_nothing_was_drafted() -> None:
    t = Timings.parse({"predicted_n": 64, "predicted_ms": 52.4, "prompt_n": 16, "prompt_ms": 8.3})
    assert (t.tokens, t.drafted, t.accepted) == (64, 0, 0)


def test_no_server_is_not_healthy() -> None:
    with Client("http://127.0.0.1:9") as client:
        assert client.healthy() is False


@given(st.dictionaries(st.sampled_from(["draft_n", "predicted_ms", "x"]), st.integers(0, 10**9)))
def test_any_timings_are_parsed(data: dict[str, int]) -> None:
    assert Timings.parse(data).drafted == data.get("draft_n", 0)
