"""Replayed n-gram drafts: the rules' edge cases as in llama.cpp's source, and real servers' counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import process
from specllama.engine.client import Client
from specllama.engine.metrics import parse_metrics
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.planning.plan import free_port
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.tuning.ngram_map import MapRule
from specllama.tuning.ngram_rules import CacheRule, ModRule, SimpleRule
from specllama.tuning.ngram_text import Rule, Text
from specllama.tuning.ngrams import (
    METHODS,
    KnownText,
    TextReplay,
    grid,
    replay,
    replay_combined,
    rule,
)
from tests.support import MODELS
from tests.test_serve import CODE

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
NEW = range(1000, 2000)  # tokens that occur nowhere else


def drafts(speculator: Rule, tokens: Sequence[int], prompt: int = 0) -> list[int]:
    """What a rule drafts after all of `tokens`, the last of which was just sampled."""
    text = Text(tuple(tokens))
    speculator.begin(text, prompt or len(tokens) - 1)
    return list(speculator.draft(len(tokens) - 1))


def test_simple_drafts_what_followed_the_last_match() -> None:
    text = [9, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, *NEW[:5], 1, 2]
    assert drafts(SimpleRule(2, 3), text) == [6, 7, 8]  # the later one of two
    assert drafts(SimpleRule(2, 2), text) == [6, 7]
    assert drafts(SimpleRule(2, 14), text) == []  # the history must be longer than n + m + 1
    assert drafts(SimpleRule(2, 14), [9, *text]) == [6, 7, 8, *NEW[:5], 1]
    assert drafts(SimpleRule(3, 3), text) == []  # no such 3-gram


def test_simple_treats_a_match_at_position_0_as_none() -> None:
    tail = [*NEW[:9], 1, 2]
    assert drafts(SimpleRule(2, 3), [1, 2, 3, 4, 5, *tail]) == []
    assert drafts(SimpleRule(2, 3), [0, 1, 2, 3, 4, 5, *tail]) == [3, 4, 5]


def test_simple_needs_n_tokens_after_the_match() -> None:
    assert drafts(SimpleRule(2, 3), [*NEW[:9], 1, 2, 7, 1, 2]) == [7, 1]
    assert drafts(SimpleRule(2, 3), [*NEW[:9], 5, 5, 5]) == []  # the match one back is left out
    # one token behind the last match, however long the run: it is never drafted
    assert drafts(SimpleRule(2, 3), [*NEW[:9], *[5] * 20]) == []
    assert drafts(SimpleRule(1, 3), [*NEW[:9], *[5] * 20]) == [5]
    assert drafts(SimpleRule(3, 2), [0, 1, 2, 3, 4, 5, 6, *NEW[:9], 1, 2, 3]) == []  # m < n: never


def test_a_draft_never_exceeds_the_rest_of_the_response() -> None:
    prompt = (0, *range(1, 20), *NEW[:5])
    (one,) = replay("ngram-simple", NgramSizes(2, 8), [KnownText(prompt, tuple(range(1, 10)))])
    # 1 from the prompt, 2 in a plain step; of 3..9, 6 are drafted and verification adds one
    assert one.steps == ((0, 0), (6, 6))
    assert (one.drafted, one.accepted, one.tokens, one.by_ngram) == (6, 6, 8, (False, True))
    assert one.tau == 4
    (short,) = replay("ngram-simple", NgramSizes(2, 8), [KnownText(prompt, (1, 2))])
    assert short.steps == ((0, 0),)
    (least,) = replay("ngram-simple", NgramSizes(2, 8), [KnownText(prompt, (1,))])
    assert (least.steps, least.tau) == ((), 1.0)


def test_an_end_of_generation_token_ends_the_step() -> None:
    prompt, response = (0, *range(1, 20), *NEW[:5]), tuple(range(1, 10))
    sizes = NgramSizes(2, 7)
    # Within a draft it is the token that verification adds; at its end it is accepted.
    (middle,) = replay("ngram-simple", NgramSizes(2, 8), [KnownText(prompt, response, 50)])
    assert middle.steps == ((0, 0), (8, 6))
    (end,) = replay("ngram-simple", sizes, [KnownText(prompt, response, 50)])
    assert end.steps == ((0, 0), (7, 7))


def test_the_end_of_the_context_limits_drafts() -> None:
    prompt, response = (0, *range(1, 20), *NEW[:5]), tuple(range(1, 16))
    full = len(prompt) + 1 + 2
    for context, drafted in ((full + 5, 5), (full + 1, 1), (full, 0), (0, 8)):
        (one,) = replay("ngram-simple", NgramSizes(2, 8), [KnownText(prompt, response)], context)
        assert one.steps[1] == (drafted, drafted)


def reference_scan(tokens: Sequence[int], sampled: int, n: int, m: int) -> list[int]:
    """common_ngram_simple_draft (common/ngram-map.cpp, b11434), line by line."""
    length = len(tokens)
    if length <= n + m + 1:
        return []
    pattern = [*tokens[length - n + 1 : length], sampled]
    match = 0
    for j in range(length - n - 1, 0, -1):
        if list(tokens[j : j + n]) == pattern:
            match = j
            break
    if match == 0:
        return []
    size = min(m, length - (match + n))
    if size < n:
        return []
    return list(tokens[match + n : match + n + size])


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=60),
    st.integers(1, 6),
    st.integers(1, 12),
)
def test_simple_agrees_with_a_transcription_of_llama_cpp(tokens: list[int], n: int, m: int) -> None:
    text = Text(tuple(tokens))
    fast = SimpleRule(n, m)
    fast.begin(text, 1)
    for length in range(1, len(tokens)):
        assert list(fast.draft(length)) == reference_scan(tokens[:length], tokens[length], n, m)


@given(
    st.sampled_from(METHODS),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=4, max_size=50),
            st.lists(st.integers(0, 2), min_size=1, max_size=50),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_counts_of_every_replay_are_consistent(
    method: str, requests: list[tuple[list[int], list[int], int]], n: int, m: int
) -> None:
    texts = [KnownText(tuple(p), tuple(a), len(a) + more) for p, a, more in requests]
    for text, one in zip(texts, replay(method, NgramSizes(n, m), texts), strict=True):
        made = sum(accepted + 1 for _, accepted in one.steps)
        # an end of generation as the draft's last token is followed by one more
        assert one.tokens <= made <= one.tokens + (text.limit > len(text.response))
        assert all(0 <= a <= d <= max(m, 8) for d, a in one.steps)


def test_map_k_drafts_fewer_tokens_after_rejections() -> None:
    key, text = [1, 2], [0, 1, 2, 3, 4, 5, 6, *NEW[:9], 1, 2, 3, 4, *NEW[9:20], 1, 2, *NEW[20:30]]
    text += [1, 2]
    ends = [i for i in range(1, len(text)) if text[i - 1 : i + 1] == key][1:]
    speculator = MapRule(2, 4, four=False)
    speculator.begin(Text(tuple(text)), 14)
    assert list(speculator.draft(ends[0])) == [3, 4, 5, 6]
    speculator.accept(2)
    assert list(speculator.draft(ends[1])) == [3, 4]
    speculator.accept(0)
    assert list(speculator.draft(ends[2])) == []  # and never again


def test_map_k_needs_an_earlier_key_with_a_value() -> None:
    assert drafts(MapRule(2, 4, four=False), [0, 1, 2, 3, 4, 5, 1, 2], prompt=5) == []
    text = [0, 1, 2, 3, 4, 5, 6, *NEW[:4], 1, 2]
    assert drafts(MapRule(2, 4, four=False), text, prompt=9) == [3, 4, 5, 6]
    assert drafts(MapRule(2, 4, four=False), text[1:], prompt=9) == []  # position 0
    # a shorter draft uses the first match: the table holds one position per n-gram
    assert drafts(MapRule(2, 1, four=False), text, prompt=9) == [3]


def test_map_k_drops_keys_beyond_a_shorter_request() -> None:
    long = Text((0, *NEW[:20], 1, 2, 3, 4, 5, 6, *NEW[20:30], 1, 2, *NEW[30:40]))
    speculator = MapRule(2, 4, four=False)
    speculator.begin(long, 30)
    assert list(speculator.draft(38)) == [3, 4, 5, 6]
    speculator.accept(0)
    speculator.begin(long, 30)  # shorter than before: keys and positions from 30 on are dropped
    assert list(speculator.draft(38)) == []  # the key at 21 and its failure are kept
    speculator.begin(Text(long.tokens[:12]), 11)
    speculator.begin(long, 30)
    assert list(speculator.draft(38)) == [3, 4, 5, 6]


def repeated_pair(*followers: int, tail: int = 8) -> Text:
    """(1, 2) repeated, each time followed by one of `followers` twice and unique tokens."""
    new = iter(NEW)
    tokens = [0, *(next(new) for _ in range(tail))]
    for follower in followers:
        tokens += [1, 2, follower, follower, *(next(new) for _ in range(tail))]
    return Text((*tokens, 1, 2))


def k4v_drafts(text: Text, min_hits: int = 1) -> list[list[int]]:
    """The drafts of k4v with sizes 2/2 after every (1, 2) of the text except the first, if all
    are accepted."""
    speculator = MapRule(2, 2, four=True, min_hits=min_hits)
    speculator.begin(text, 8)
    found = []
    for at in range(8, len(text.tokens)):
        draft = list(speculator.draft(at))
        if text.tokens[at - 1 : at + 1] == (1, 2):
            found.append(draft)
        if draft:
            speculator.accept(len(draft))
    return found[1:]


def test_k4v_drafts_only_after_min_hits() -> None:
    same = repeated_pair(7, 7, 7, 7)
    assert k4v_drafts(same) == [[7, 7]] * 4
    assert k4v_drafts(same, min_hits=3) == [[], [], [7, 7], [7, 7]]


def test_k4v_drafts_only_a_clearly_most_frequent_value() -> None:
    for followers, expected in (
        ((7, 8, 7), [7, 7]),  # twice as often as all others together
        ((7, 8, 9, 7), []),
        ((7, 7, 7, 7, 8, 9), [9, 9]),  # 7 is frequent, but the token at the match is drafted
        ((7, 8, 9, 10, 11), []),  # the fifth is not counted
        ((7, 8, 9, 10, *[11] * 9), []),
    ):
        text = repeated_pair(*followers)
        end = len(text.tokens) - 1
        speculator = MapRule(2, 2, four=True)
        speculator.begin(text, end)
        assert list(speculator.draft(end)) == expected


def test_mod_keeps_its_table_across_requests() -> None:
    long = (0, *range(1, 30))
    text = Text((*long, *NEW[:3], 1, 2, 3))
    speculator = ModRule(3, 2, 5)
    speculator.begin(text, 33)
    assert list(speculator.draft(35)) == [4, 5, 6, 7, 8]
    other = Text((*NEW[50:60], 20, 21, 22))
    speculator.begin(other, 10)  # another request, the same table
    assert list(speculator.draft(12)) == [23, 24, 25, 26, 27]


def test_mod_discards_drafts_shorter_than_the_minimum() -> None:
    tokens = (0, *range(1, 9), 1, 2, 3)
    for least, most, expected in ((5, 9, [4, 5, 6, 7, 8]), (6, 9, []), (6, 3, [4, 5, 6])):
        speculator = ModRule(3, least, most)
        speculator.begin(Text(tokens), 9)
        # the table has nothing after 8: [6, 7, 8] was the last n-gram of the prompt
        assert list(speculator.draft(11)) == expected


def test_mod_clears_its_table_after_five_bad_drafts_in_a_row() -> None:
    long = Text((0, *range(1, 30), *NEW[:3], 1, 2, 3))
    speculator = ModRule(3, 1, 8)
    speculator.begin(long, 33)
    for accepted in (1, 0, 1, 1, 2, 0, 1, 1, 1):  # 2 of 8 is a quarter: the count restarts
        assert len(speculator.draft(35)) == 8
        speculator.accept(accepted)
    speculator.accept(1)  # the fifth below a quarter in a row
    assert len(speculator.draft(35)) == 8  # the history is added again: 35 > 32
    short = Text((*NEW[50:60], 20, 21, 22))
    speculator.begin(short, 10)
    assert list(speculator.draft(12)) == [23, 24, 25, 26, 27, 28, 29, 1000]
    for _ in range(5):
        speculator.draft(12)
        speculator.accept(0)
    assert list(speculator.draft(12)) == []


def test_mod_adds_new_history_in_chunks() -> None:
    text = Text((*NEW[:10], *range(1, 60), 1, 2, 3))
    speculator = ModRule(3, 1, 2)
    speculator.begin(text, 10)
    assert list(speculator.draft(71)) == [4, 5]
    late = Text((*NEW[:10], 1, 2, 3, 4, 5, *NEW[20:30], 1, 2, 3))
    speculator = ModRule(3, 1, 2)
    speculator.begin(late, 10)
    assert list(speculator.draft(27)) == []  # fewer than 32 tokens since the prompt


def test_cache_drafts_at_most_eight_tokens_with_enough_samples() -> None:
    text = [0, *range(1, 20), *NEW[:3], 1, 2]
    assert drafts(CacheRule(), [*text, 3]) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert drafts(CacheRule(), text) == []  # n-grams of 1 and 2 tokens need two samples
    assert drafts(CacheRule(), [0, *NEW[:3], 1]) == []
    # after one token alone: two samples at least, two thirds of them the same
    assert drafts(CacheRule(), [0, 5, 6, *NEW[:3], 5]) == []
    assert drafts(CacheRule(), [0, 5, 6, 9, 5, 6, 8, 5])[:1] == [6]
    assert drafts(CacheRule(), [0, 5, 6, 9, 5, 7, 8, 5]) == []


def test_cache_prefers_the_newer_of_two_equally_frequent_tokens() -> None:
    assert drafts(CacheRule(), [0, 3, 5, 6, 9, 3, 5, 7, 8, 3, 5])[:1] == [7]


def test_cache_learns_nothing_from_single_tokens_and_shorter_requests() -> None:
    text = Text((0, *NEW[:4], 1, 2, *NEW[4:8], 1, 2))
    speculator = CacheRule()
    speculator.begin(text, 3)
    for length in range(3, 12):  # one token at a time: nothing is learned
        assert list(speculator.draft(length)) == []
    longer = Text((*NEW[20:24], 1, 2, *NEW[24:28], 1, 2))
    speculator.begin(longer, 11)
    assert list(speculator.draft(11)) == []  # not longer than the previous request
    assert list(CacheRule().draft(0)) == []


def test_the_draft_model_drafts_where_no_n_gram_matches() -> None:
    prompt, response = (0, *range(1, 20), *NEW[:5]), (50, 51, 52, 53, *range(1, 14))
    agrees = [True, True, False, True, *[False] * 12]
    (one,) = replay_combined(
        "ngram-simple", NgramSizes(2, 4), [KnownText(prompt, response)], [agrees], 3
    )
    # 50 | 51 52 ✓✓ 53 ✗ → 53 added | 1 ✓ 2 ✗ → 2 added | n-grams: 3 4 5 6 +7, 8 9 10 11 +12 | 13
    assert one.steps == ((3, 2), (3, 1), (4, 4), (4, 4), (0, 0))
    assert one.by_ngram == (False, False, True, True, False)
    assert one.tokens == len(response) - 1
    (alone,) = replay("ngram-simple", NgramSizes(2, 4), [KnownText(prompt, response)])
    assert alone.accepted == 8


def test_the_grid_contains_only_sizes_that_can_draft() -> None:
    for method in METHODS:
        sizes = grid(method)
        assert len(set(sizes)) == len(sizes)
        assert all(2 <= s.n <= 24 and 2 <= s.m <= 64 for s in sizes)
        assert all(replay(method, s, []) == () for s in sizes)
    assert all(s.m >= s.n for s in grid("ngram-simple"))
    for call in (grid, lambda m: rule(m, NgramSizes(2, 2))):
        with pytest.raises(ValueError, match="not an n-gram method"):
            call("draft-simple")


# Against real servers.


@contextmanager
def serving(
    engine: str, model: Path, tmp_path: Path, spec: Speculation | None
) -> Iterator[httpx.Client]:
    """llama-server with one slot and one thread, and a client for raw requests."""
    settings = Settings(model, "127.0.0.1", free_port("127.0.0.1", 0), context=2048)
    plan = prepare(
        settings,
        SpeculationOptions("code", DRAFT if model == TARGET else None),
        ("-t", "1"),
        engine,
    )
    plan = plan.with_speculation(spec)
    server = process.start(plan.command, tmp_path / "log")
    try:
        with Client(plan.settings.url) as client:
            process.wait_ready(server, client.healthy)
        with httpx.Client(base_url=plan.settings.url, timeout=120, trust_env=False) as raw:
            yield raw
    finally:
        server.stop()


def post(server: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    data = response.json()
    assert isinstance(data, dict)
    return data


def tokenize(server: httpx.Client, text: str) -> tuple[int, ...]:
    body = {"content": text, "add_special": True, "parse_special": True}
    return tuple(post(server, "/tokenize", body)["tokens"])


def request_with_counts(
    server: httpx.Client, prompt: tuple[int, ...], limit: int
) -> tuple[KnownText, tuple[int, int]]:
    """The request with its response, and the server's counts of drafted and accepted tokens."""
    body = {"prompt": prompt, "n_predict": limit, "temperature": 0, "cache_prompt": False}
    data = post(server, "/completion", body | {"return_tokens": True})
    assert data["timings"]["prompt_n"] == len(prompt)
    known = KnownText(prompt, tuple(data["tokens"]), limit)
    counts = data["timings"].get("draft_n", 0), data["timings"].get("draft_n_accepted", 0)
    return known, counts


def drafted_and_accepted(replays: Sequence[TextReplay]) -> list[tuple[int, int]]:
    return [(r.drafted, r.accepted) for r in replays]


def assert_agrees_with_metrics(server: httpx.Client, replays: Sequence[TextReplay]) -> None:
    """Verify steps and accepted tokens by position, over all requests."""
    metrics = parse_metrics(server.get("/metrics").text)
    steps = [s for r in replays for s in r.steps if s[0]]
    assert metrics.verify_steps == len(steps)
    for i, accepted in enumerate(metrics.accepted_by_position, 1):
        assert sum(a >= i for _, a in steps) == accepted


# Requests of different lengths, some repeated, so that state across requests matters.
REQUESTS = [
    (CODE[0] * 3, 120),
    (CODE[1] + CODE[1], 90),
    (CODE[0] * 3, 60),
    (CODE[2], 150),
    ("".join(CODE) * 2, 100),
    (CODE[1], 40),
]

SIZES = {
    "ngram-simple": [NgramSizes(2, 4), NgramSizes(4, 8), NgramSizes(3, 24), NgramSizes(12, 48)],
    "ngram-map-k": [NgramSizes(2, 4), NgramSizes(4, 16), NgramSizes(8, 3)],
    "ngram-map-k4v": [NgramSizes(2, 4), NgramSizes(3, 8, 2), NgramSizes(4, 2, 3)],
    "ngram-mod": [NgramSizes(16, 4), NgramSizes(16, 32), NgramSizes(24, 64)],
    "ngram-cache": [NgramSizes(4, 8)],
}
CASES = [(method, sizes) for method, several in SIZES.items() for sizes in several]


@pytest.mark.parametrize(
    ("method", "sizes"), CASES, ids=[f"{m}-{s.n}-{s.m}-{s.min_hits}" for m, s in CASES]
)
def test_the_replay_agrees_with_a_real_servers_drafts(
    tmp_path: Path, engine: str, method: str, sizes: NgramSizes
) -> None:
    spec = Speculation((method,), ngram=sizes)
    with serving(engine, TARGET, tmp_path, spec) as server:
        found = [
            request_with_counts(server, tokenize(server, text), limit) for text, limit in REQUESTS
        ]
        replays = replay(method, sizes, [known for known, _ in found])
        assert drafted_and_accepted(replays) == [counts for _, counts in found]
        assert_agrees_with_metrics(server, replays)
    assert sum(r.drafted for r in replays) > 0


def test_the_replay_of_n_grams_with_a_draft_model_agrees_with_a_server(
    tmp_path: Path, native: Path
) -> None:
    sizes, k = NgramSizes(3, 6), 4
    spec = Speculation(("ngram-simple", "draft-simple"), DRAFT, n_max=k, ngram=sizes)
    with serving(str(native), TARGET, tmp_path, spec) as server:
        found = [
            request_with_counts(server, tokenize(server, text), limit)
            for text, limit in REQUESTS[:4]
        ]
        metrics = parse_metrics(server.get("/metrics").text)
    with serving(str(native), DRAFT, tmp_path, None) as draft:
        agrees = [agreements(draft, known) for known, _ in found]
    texts = [known for known, _ in found]
    replays = replay_combined("ngram-simple", sizes, texts, agrees, k)
    pairs = zip(drafted_and_accepted(replays), (counts for _, counts in found), strict=True)
    same = sum(replayed == counted for replayed, counted in pairs)
    # The draft was queried token by token: between equally likely tokens, rounding may decide.
    assert same >= len(found) - 1
    if same == len(found):
        assert metrics.verify_steps == sum(d > 0 for r in replays for d, _ in r.steps)
    chose = [by for r in replays for by in r.by_ngram]
    assert {True, False} == set(chose)


def agreements(draft: httpx.Client, known: KnownText) -> list[bool]:
    """For every token of the response except the first: would the draft model predict it?"""
    found = []
    for i in range(1, len(known.response)):
        prompt = known.prompt + known.response[:i]
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "return_tokens": True}
        found.append(post(draft, "/completion", body)["tokens"] == [known.response[i]])
    return found


# A real model copies and edits; its responses end by themselves, the last one within a draft.
EDITS = (
    "Repeat this text exactly, but replace 'cat' by 'dog': The cat sat on the mat. The cat was "
    "happy. Another cat came by and the cat greeted the cat. The cat then ate its dinner and the "
    "cat slept all night long on the mat by the door.",
    "Repeat this code unchanged:\ndef total(items):\n    result = 0\n    for item in items:\n"
    "        if item.price > 0:\n            result += item.price * item.count\n"
    "    return result\n\ndef mean(items):\n    if not items:\n        return 0\n"
    "    return total(items) / len(items)\n",
    "Repeat this exactly: The cat sat on the mat. The cat was happy all day long.",
)


def test_baseline_responses_of_a_real_model_predict_every_draft(
    tmp_path: Path, native: Path, smollm2: Path
) -> None:
    """One launch without speculation, compared with two servers that use n-grams."""
    with serving(str(native), smollm2, tmp_path, None) as plain:
        texts = []
        for edit in EDITS:
            chat = {"messages": [{"role": "user", "content": edit}]}
            prompt = tokenize(plain, post(plain, "/apply-template", chat)["prompt"])
            known, counts = request_with_counts(plain, prompt, 110)
            assert counts == (0, 0)
            texts.append(known)
    assert any(len(known.response) < known.limit for known in texts)
    for method, sizes in (("ngram-simple", NgramSizes(4, 8)), ("ngram-mod", NgramSizes(16, 16))):
        with serving(str(native), smollm2, tmp_path, Speculation((method,), ngram=sizes)) as server:
            found = [request_with_counts(server, known.prompt, 110) for known in texts]
            replayed = replay(method, sizes, [known for known, _ in found])
            assert drafted_and_accepted(replayed) == [counts for _, counts in found]
            assert_agrees_with_metrics(server, replayed)
        assert sum(r.accepted for r in replayed) > 0
        # Batches of other shapes round differently: on some processors a token differs.
        same = [
            baseline.response == known.response
            for baseline, (known, _) in zip(texts, found, strict=True)
        ]
        assert sum(same) >= 2
        if all(same):
            assert replay(method, sizes, texts) == replayed
