"""Concurrent requests, for servers with several slots."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from specllama.engine.client import Client
from specllama.tuning.measure import Job, Response, TokenizedPrompt, send_request
from specllama.tuning.run import Run

_MIN_ROUNDS = 3


def rounds(run: Run, client: Client, job: Job, most: int) -> list[Response]:
    """Rounds of one request per slot, while there is time, each as one Answer (see `together`)."""
    out: list[Response] = []
    while len(out) < most and not (job.over and len(out) >= _MIN_ROUNDS):
        prompts = [run.next_prompt() for _ in range(run.task.slots)]
        out.append(together(client, prompts, job))
        run.report()
    return out


def together(client: Client, prompts: Sequence[TokenizedPrompt], job: Job) -> Response:
    """All prompts at once, summed up as one Answer: tokens of all, decoding time of the slowest,
    so that its ms per token is that of the whole server. `first_ms` is the mean; `steps` stay
    empty, since those of different requests cannot be told apart."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        each = list(pool.map(lambda q: send_request(client, q, job), prompts))
    return Response(
        prompt_tokens=sum(a.prompt_tokens for a in each),
        prompt_ms=max(a.prompt_ms for a in each),
        first_ms=sum(a.first_ms for a in each) / len(each),
        tokens=1 + sum(a.tokens - 1 for a in each),
        ms=max(a.ms for a in each),
        drafted=sum(a.drafted for a in each),
        accepted=sum(a.accepted for a in each),
        text="\n".join(a.text for a in each),
        steps=(),
    )
