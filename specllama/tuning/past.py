"""Past conversations, tokenized by a server without speculation, and what verifying several
tokens at once costs there. Nothing of them is generated again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.tuning.baseline import server_batch_times
from specllama.tuning.conversations import Conversations, conversation_groups
from specllama.tuning.costs import VerifyCosts, verify_costs
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import Job, TokenizedPrompt, decoding
from specllama.tuning.ngrams import KnownText
from specllama.tuning.replayed import KnownTexts
from specllama.tuning.run import Task
from specllama.tuning.speedup import mean_cost

# How much of a large file is replayed per second of the budget (all sizes then take a third).
_GENERATED_PER_S, _TOKENS_PER_S = 130, 800
_MAX_GROUPS, _MIN_CONVERSATIONS = 40, 5
_MIN_TOKENS = 2  # the first token comes from the prompt: a one-token response has no step
_PLAIN_TOKENS, _PLAIN_ROUNDS = 17, 2
_ROUNDS = 8  # of batches, if there is time: everything depends on V(b)
_NO_LIMIT = 1 << 20
# Tokens of the cached prefix before the batches, and of the text that the batches come from.
_MIN_PREFIX, _LONGEST_PREFIX, _WORDS = 16, 512, 100

Tick = Callable[[], None]


@dataclass(frozen=True)
class TokenizedConversations:
    """`left_out`: reason → number of requests; `refused`: the server's message for the first request
    it rejects, "" if there is none."""

    texts: KnownTexts
    left_out: Mapping[str, int]
    refused: str = ""


def tokenize_conversations(
    client: Client, task: Task, source: Conversations, end: int, tick: Tick
) -> TokenizedConversations:
    """The requests as token ids, as many as the budget allows. `end`: the end-of-generation token,
    -1 = unknown."""
    out: list[tuple[int, KnownText]] = []
    left: Counter[str] = Counter()
    refused = ""
    generated = total = 0
    for i, r in enumerate(source.requests):
        spent = max(generated / _GENERATED_PER_S, total / _TOKENS_PER_S)
        if out and spent >= task.budget:
            left["over the --budget (raise it to replay them)"] = len(source.requests) - i
            break
        try:
            as_is = isinstance(r.prompt, str) and not task.chat
            prompt = client.tokenize(str(r.prompt) if as_is else client.render(r.prompt))
            response = client.tokenize(r.response, special=False)
        except EngineError as e:
            if not client.healthy():
                raise
            refused = refused or e.message
            left["rejected by the server"] += 1
            continue
        ended = end >= 0 and not r.truncated
        response += (end,) if ended else ()
        if task.context and len(prompt) + len(response) > task.context:
            left[f"too long for a context of {task.context:,}"] += 1
        elif not prompt or len(response) < _MIN_TOKENS:
            left["too short to draft"] += 1
        else:
            out.append((i, KnownText(prompt, response, _NO_LIMIT if ended else 0)))
            generated, total = generated + len(response), total + len(prompt) + len(response)
        tick()
    if not out:
        reasons = ", ".join(f"{n} {reason}" for reason, n in left.items())
        more = f" ({refused})" if refused else ""
        raise TuningError(
            f"nothing to replay: of {len(source.requests)} responses, {reasons}{more}"
        )
    replayable = [source.requests[i] for i, _ in out]
    groups = tuple(conversation_groups(replayable, _MAX_GROUPS))
    if len(set(groups)) < _MIN_CONVERSATIONS:  # then each response is a group of its own
        groups = tuple(
            i * min(_MAX_GROUPS, len(replayable)) // len(replayable) for i in range(len(replayable))
        )
    return TokenizedConversations(
        KnownTexts(tuple(k for _, k in out), groups, task.context), dict(left), refused
    )


def _prefixes(texts: KnownTexts) -> tuple[TokenizedPrompt, ...]:
    """The prefix of the batches: a prompt of median length, and a longer text with enough tokens
    for the largest batch."""
    longest = min(_LONGEST_PREFIX, max(16, texts.context - _WORDS) if texts.context else 1 << 20)
    ordered = sorted((k.prompt for k in texts.texts), key=len)
    usual = ordered[len(ordered) // 2][:longest]
    all_words = (t for k in cycle(texts.texts) for t in (*k.prompt, *k.response))
    words = tuple(islice(all_words, len(usual) + _WORDS))
    enough = len(usual) >= _MIN_PREFIX
    return (
        (TokenizedPrompt("", usual), TokenizedPrompt("", words))
        if enough
        else (TokenizedPrompt("", words),)
    )


def measure_verify_costs(
    client: Client, task: Task, texts: KnownTexts, seconds: float, tick: Tick
) -> VerifyCosts:
    """Measures t_1 and V(b) in about `seconds`, with plain steps before and after the batches.
    Raises TuningError if the server does not report timings."""
    prompts = _prefixes(texts)
    prefix = prompts[0].ids
    cold = {"temperature": 0.0, "ignore_eos": True}
    job = Job(cold, _PLAIN_TOKENS, False, time.monotonic() + seconds, tick=tick)
    times = []
    samples: dict[int, list[float]] = {}
    for turn in range(2):
        for i in range(_PLAIN_ROUNDS + (turn == 0)):
            t = client.continue_ids(prefix, _PLAIN_TOKENS, cold, True).timings
            if (turn or i) and t is not None:  # the first request is slower
                times.append(decoding(t.ms, t.tokens))
        if turn == 0:
            samples = server_batch_times(client, prompts, job, rounds=_ROUNDS)
    times = [t for t in times if t > 0]
    plain_step = mean_cost(times)
    if plain_step is None:
        raise TuningError("the server's responses contain no timings, so step costs are unknown")
    costs = verify_costs(samples, plain_step, task.output_share)
    if not costs.known:
        raise TuningError(
            "this server does not cache prompts (cache_prompt), so verification costs are unknown",
            "`specllama probe` without --replay measures them.",
        )
    return costs
