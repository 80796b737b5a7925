"""Conversations that were held, through a server without speculation: their tokens, and what
verifying several at once costs. Nothing of them is generated again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.tuning.conversations import Conversations, by_conversation
from specllama.tuning.costs import VerifyCosts, verifying
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import Job, TokenizedPrompt, decoding
from specllama.tuning.ngrams import Known
from specllama.tuning.plain import batches
from specllama.tuning.replayed import Texts
from specllama.tuning.run import Task
from specllama.tuning.speedup import StepCost

# What is replayed of a large file, by seconds of the budget: all sizes take a third of it then.
_ANSWERED_PER_S, _TOKENS_PER_S = 130, 800
_MOST_GROUPS, _LEAST_CONVERSATIONS = 40, 5
_LEAST_TOKENS = 2  # the first comes from the prompt: an answer of one has no step
_PLAIN_TOKENS, _PLAIN_ROUNDS = 17, 2
_ROUNDS = 8  # of batches, in the time there is: V(b) decides everything here
_NO_LIMIT = 1 << 20
# Tokens before the batches that tell V(b), and of the text that they are taken from beyond that.
_LEAST_PREFIX, _LONGEST_PREFIX, _WORDS = 16, 512, 100

Tick = Callable[[], None]


@dataclass(frozen=True)
class Past:
    """`left_out`: why → how many requests; `refused`: what the server said of the first one
    that it does not take, "" = it takes all."""

    texts: Texts
    left_out: Mapping[str, int]
    refused: str = ""


def tokenized(client: Client, task: Task, source: Conversations, end: int, tick: Tick) -> Past:
    """The requests as token ids, as many as the budget allows. `end`: the token that ends an
    answer, -1 = not known."""
    out: list[tuple[int, Known]] = []
    left: Counter[str] = Counter()
    refused = ""
    answered = total = 0
    for i, r in enumerate(source.requests):
        spent = max(answered / _ANSWERED_PER_S, total / _TOKENS_PER_S)
        if out and spent >= task.budget:
            left["a larger --budget replays them too"] = len(source.requests) - i
            break
        try:
            as_is = isinstance(r.prompt, str) and not task.chat
            prompt = client.tokenize(str(r.prompt) if as_is else client.render(r.prompt))
            answer = client.tokenize(r.answer, special=False)
        except EngineError as e:
            if not client.healthy():
                raise
            refused = refused or e.message
            left["refused by the server"] += 1
            continue
        ended = end >= 0 and not r.cut
        answer += (end,) if ended else ()
        if task.context and len(prompt) + len(answer) > task.context:
            left[f"too long for a context of {task.context:,}"] += 1
        elif not prompt or len(answer) < _LEAST_TOKENS:
            left["too short to be drafted"] += 1
        else:
            out.append((i, Known(prompt, answer, _NO_LIMIT if ended else 0)))
            answered, total = answered + len(answer), total + len(prompt) + len(answer)
        tick()
    if not out:
        said = ", ".join(f"{n} {why}" for why, n in left.items())
        more = f" ({refused})" if refused else ""
        raise TuningError(
            f"nothing can be replayed: of {len(source.requests)} answers {said}{more}"
        )
    kept = [source.requests[i] for i, _ in out]
    groups = tuple(by_conversation(kept, _MOST_GROUPS))
    if len(set(groups)) < _LEAST_CONVERSATIONS:  # then each answer speaks for itself
        groups = tuple(i * min(_MOST_GROUPS, len(kept)) // len(kept) for i in range(len(kept)))
    return Past(Texts(tuple(k for _, k in out), groups, task.context), dict(left), refused)


def _prefixes(texts: Texts) -> tuple[TokenizedPrompt, ...]:
    """What stands before the batches: a prompt like most of them, and after it a longer text
    that has words enough for the largest one."""
    longest = min(_LONGEST_PREFIX, max(16, texts.context - _WORDS) if texts.context else 1 << 20)
    ordered = sorted((k.prompt for k in texts.known), key=len)
    usual = ordered[len(ordered) // 2][:longest]
    all_words = (t for k in cycle(texts.known) for t in (*k.prompt, *k.answer))
    words = tuple(islice(all_words, len(usual) + _WORDS))
    enough = len(usual) >= _LEAST_PREFIX
    return (
        (TokenizedPrompt("", usual), TokenizedPrompt("", words))
        if enough
        else (TokenizedPrompt("", words),)
    )


def verifying_costs(
    client: Client, task: Task, texts: Texts, seconds: float, tick: Tick
) -> VerifyCosts:
    """t_1 and V(b) in about so many seconds, the plain steps before and after the batches.
    Raises TuningError where the server does not tell them."""
    questions = _prefixes(texts)
    prefix = questions[0].ids
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
            samples = batches(client, questions, job, rounds=_ROUNDS)
    times = [t for t in times if t > 0]
    if len(times) < 2:
        raise TuningError("the server's answers carry no timings: what a step costs is not known")
    mean = sum(times) / len(times)
    error = (sum((t - mean) ** 2 for t in times) / (len(times) - 1) / len(times)) ** 0.5
    costs = verifying(samples, StepCost(mean, error, len(times)), task.output_share)
    if not costs.known:
        raise TuningError(
            "this server keeps no prompt (cache_prompt): what verifying costs is not known",
            "`specllama probe` without --replay measures it.",
        )
    return costs
