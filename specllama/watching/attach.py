"""Measuring a server that somebody else started, of any engine with OpenAI's API.

Speed is taken at the client; acceptance from the engine's own counters (engines.py).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from specllama.engine.client import Prompt
from specllama.tuning.confidence import Interval, ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import decoding
from specllama.watching.address import client
from specllama.watching.counters import Snapshot, between, parse
from specllama.watching.engines import ENGINES

_TIMEOUT = 120.0


@dataclass(frozen=True)
class Attached:
    """What one server showed. None where its engine does not count it. Times in ms."""

    engine: str
    model: str
    alpha: float | None
    tau: float | None
    acceptance: tuple[float, ...]
    tokens_per_second: float
    first_ms: float
    ms_per_token: tuple[float, ...]
    missing: tuple[str, ...]


class Server:
    """One server over HTTP. Raises UsageError as address.client does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url, self._http = client(url, api_key, _TIMEOUT)

    def close(self) -> None:
        self._http.close()

    def model(self) -> str:
        """The served model's name. Raises TuningError when this is no OpenAI-compatible server."""
        response = self._get("/v1/models")
        if response.status_code in (401, 403):
            raise TuningError(f"{self.url} wants an API key", "Put it in SPECLLAMA_API_KEY.")
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise TuningError(
                f"{self.url} is no LLM server: /v1/models answers {response.status_code} "
                "without a list of models",
                "Give the address that OpenAI clients use.",
            ) from None

    def counters(self) -> Snapshot | None:
        """What its engine counts; None when it has no metrics that are known."""
        for path in dict.fromkeys(n.path for n in ENGINES.values()):
            response = self._get(path)
            if response.status_code != 200:
                continue
            found = parse(response.text, time.monotonic())
            if found is not None:
                return found
        return None

    def ask(self, model: str, prompt: Prompt, tokens: int, sampling: Mapping[str, float]) -> Reply:
        """One streamed chat completion, timed here."""
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        started, first, last, chunks, usage = time.monotonic(), 0.0, 0.0, 0, 0
        try:
            # one connection per answer: llama-server may close one right after a stream
            close = {"Connection": "close"}
            path = "/v1/chat/completions"
            with self._http.stream("POST", path, json=body, headers=close) as response:
                if response.status_code != 200:
                    response.read()
                    raise TuningError(
                        f"{self.url} answers a completion with {response.status_code}: "
                        f"{response.text[:160]}"
                    )
                for data in _events(response):
                    if _has_text(data):
                        last = time.monotonic()
                        first = first or last
                        chunks += 1
                    usage = _usage(data) or usage
        except (httpx.HTTPError, ValueError) as e:
            raise TuningError(f"{self.url} broke off an answer ({e or type(e).__name__})") from None
        if not chunks:
            raise TuningError(f"{self.url} answered with no text")
        return Reply((first - started) * 1000, (last - first) * 1000, usage or chunks)

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:  # ValueError: IDNA
            raise TuningError(
                f"{self.url} does not answer {path} ({e or type(e).__name__})",
                "Is the server running, and is the address right?",
            ) from None


@dataclass(frozen=True)
class Reply:
    """Milliseconds to the first token and from it to the last; tokens in all."""

    first_ms: float
    ms: float
    tokens: int


def probe(
    server: Server,
    prompts: Sequence[Prompt],
    sampling: Mapping[str, float],
    tokens: int,
    until: float,
) -> Attached:
    """All prompts once, the shortest first, until the time is over (but two at least). Those
    that are too long for the server are left out.

    Raises TuningError with one clear line for everything that keeps it from being measured.
    """
    model = server.model()
    server.ask(model, "Say hello.", 8, sampling)
    before = server.counters()
    replies: list[Reply] = []
    for prompt in sorted(prompts, key=lambda p: len(str(p))):
        if len(replies) >= 2 and time.monotonic() > until:
            break
        try:
            replies.append(server.ask(model, prompt, tokens, sampling))
        except TuningError:
            if len(replies) < 2:
                raise
            break  # the rest is longer still
    after = server.counters()
    missing = [] if after else ["no metrics that are known: acceptance cannot be read"]
    engine = after.engine if after else "unknown engine"
    seen = acceptance(before, after)
    if seen.doubt:
        missing.append(seen.doubt)
    elif after and seen.alpha is None and seen.tau is None:
        missing.append("it counted no drafted tokens: speculation is off there")
    ms = sum(r.ms for r in replies)
    if not ms:
        missing.append("answers come in one piece: their speed is not seen")
    return Attached(
        engine=engine,
        model=model,
        alpha=seen.alpha,
        tau=seen.tau,
        acceptance=seen.by_position,
        tokens_per_second=sum(r.tokens - 1 for r in replies) / ms * 1000 if ms > 0 else 0.0,
        first_ms=sum(r.first_ms for r in replies) / len(replies),
        ms_per_token=tuple(decoding(r.ms, r.tokens) for r in replies),
        missing=tuple(missing),
    )


@dataclass(frozen=True)
class Acceptance:
    """α, τ and a_i, None or () where they are not counted. `doubt`: why the counters are not
    believed; then there is nothing else."""

    alpha: float | None = None
    tau: float | None = None
    by_position: tuple[float, ...] = ()
    doubt: str = ""


def acceptance(before: Snapshot | None, after: Snapshot | None) -> Acceptance:
    """What was counted between the two; gauges as they stand."""
    if after is None:
        return Acceptance()
    new = between(before, after) if before is not None else after.counts
    gauges = after.gauges
    doubt = new.doubt or _impossible(gauges.alpha, gauges.tau)
    if doubt:
        return Acceptance(doubt=doubt)
    alpha = new.alpha if new.alpha is not None else gauges.alpha
    return Acceptance(alpha, new.tau or gauges.tau, new.acceptance)


def _impossible(alpha: float | None, tau: float | None) -> str:
    """What no engine can have seen, "" when all of it can be."""
    if alpha is not None and not 0 <= alpha <= 1:
        return f"the counters contradict themselves: α={alpha:g}"
    if tau is not None and not 1 <= tau < math.inf:
        return f"the counters contradict themselves: τ={tau:g}"
    return ""


def speedup(baseline: Attached, other: Attached) -> Interval:
    """How many times faster `other` decodes the same prompts. Raises TuningError when an
    answer came in one piece, which shows no speed."""
    pairs = zip(baseline.ms_per_token, other.ms_per_token, strict=False)
    found = ratios([(plain, own, 1.0) for plain, own in pairs])
    if not len(found):
        said = "the answers came in one piece or after a word: there is no speed to compare"
        raise TuningError(said)
    return found.interval()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            data = json.loads(line[5:])
            if isinstance(data, dict):
                yield data


def _has_text(data: Mapping[str, Any]) -> bool:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    return isinstance(delta, dict) and bool(delta.get("content") or delta.get("reasoning_content"))


def _usage(data: Mapping[str, Any]) -> int:
    usage = data.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0
