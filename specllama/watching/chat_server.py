"""A running server of any engine with OpenAI's API: its models, counters and streamed answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from specllama.engine.client import Conversation, Prompt, conversation
from specllama.prompts import without_tools
from specllama.tuning.errors import TuningError
from specllama.watching.address import client, get
from specllama.watching.counters import Snapshot, parse
from specllama.watching.engines import ENGINES
from specllama.watching.served_models import (
    LOADED_LISTS,
    ListedModel,
    listed,
    loaded_elsewhere,
    model_to_ask,
    with_loaded,
)
from specllama.watching.streamed import DraftCounts, draft_counts, says_something, thinks, tokens

_TIMEOUT = 120.0  # of a piece of an answer
_LISTS_S, _ANSWER_S = 30.0, 900.0  # of a list or of counters, and of an answer


class _Refused(TuningError):
    """The server does not take a request as it is."""


@dataclass(frozen=True)
class Reply:
    """Milliseconds to the first token and from it to the last; tokens in all; what the server
    told of this answer's drafts, None where it told nothing."""

    first_ms: float
    ms: float
    tokens: int
    draft_counts: DraftCounts | None = None


class Server:
    """One server over HTTP. `refuses_tools`: it was asked with tools and would not (vLLM wants
    --enable-auto-tool-choice for that). Raises UsageError as address.client does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url, self._http = client(url, api_key, _TIMEOUT)
        self.refuses_tools = False

    def close(self) -> None:
        self._http.close()

    def model(self, name: str | None = None) -> ListedModel:
        """The model to ask: `name`, else a loaded one that writes text; none is ever woken.

        Raises TuningError when there is none, or this is no OpenAI-compatible server.
        """
        response = self._get("/v1/models")
        if response.status_code in (401, 403):
            raise TuningError(f"{self.url} wants an API key", "Put it in SPECLLAMA_API_KEY.")
        models = listed(_json(response))
        if not models:
            raise TuningError(
                f"{self.url} is no LLM server: /v1/models answers {response.status_code} "
                "without a list of models",
                "Give the address that OpenAI clients use.",
            )
        if any(m.loaded is None for m in models):
            models = self._told_elsewhere(models)
        return model_to_ask(self.url, models, name)

    def _told_elsewhere(self, models: tuple[ListedModel, ...]) -> tuple[ListedModel, ...]:
        """The models, with what proxies and desktop programs say elsewhere of what is loaded."""
        for path in LOADED_LISTS:
            response = self._get(path)
            if response.status_code == 200:
                loaded = loaded_elsewhere(path, _json(response))
                if loaded is not None:
                    return with_loaded(models, loaded)
        return models

    def counters(self, model: ListedModel | None = None) -> Snapshot | None:
        """What its engine counts; None when it has no metrics that are known. `model`: whose,
        behind a router."""
        for path in dict.fromkeys(n.path for n in ENGINES.values()):
            response = self._get(path, _routing(model))
            if response.status_code != 200:
                continue
            found = parse(response.text, time.monotonic())
            if found is not None:
                return found
        return None

    def ask(
        self, model: ListedModel, prompt: Prompt, most: int, sampling: Mapping[str, float]
    ) -> Reply:
        """One streamed chat completion of at most `most` tokens, timed here. A server that
        refuses tools is given them as text."""
        if self.refuses_tools:
            prompt = without_tools(prompt)
        try:
            return self._answer(model, prompt, most, sampling)
        except _Refused:
            if not (isinstance(prompt, Conversation) and prompt.tools):
                raise
        reply = self._answer(model, without_tools(prompt), most, sampling)
        self.refuses_tools = True
        return reply

    def _answer(
        self, model: ListedModel, prompt: Prompt, most: int, sampling: Mapping[str, float]
    ) -> Reply:
        body = {
            "model": model.name,
            **conversation(prompt).body,
            "max_tokens": most,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        started, first, last, pieces, counted = time.monotonic(), 0.0, 0.0, 0, 0
        thought, drafted = False, None
        try:
            # one connection per answer: llama-server may close one right after a stream
            close = {"Connection": "close"}
            path = "/v1/chat/completions"
            with self._http.stream(
                "POST", path, json=body, headers=close, params=_autoload(model)
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise _Refused(
                        f"{self.url} answers a completion with {response.status_code}: "
                        f"{response.text[:160]}"
                    )
                for data in _events(response):
                    if time.monotonic() > started + _ANSWER_S:
                        raise httpx.ReadTimeout(f"it did not end in {_ANSWER_S:g} s")
                    if says_something(data):
                        last = time.monotonic()
                        first = first or last
                        pieces += 1
                    thought = thought or thinks(data)
                    counted = tokens(data, thought) or counted
                    drafted = draft_counts(data) or drafted
        except (httpx.HTTPError, ValueError, RecursionError) as e:
            raise TuningError(f"{self.url} broke off an answer ({e or type(e).__name__})") from None
        if not pieces:
            raise TuningError(f"{self.url} answered with no text")
        return Reply((first - started) * 1000, (last - first) * 1000, counted or pieces, drafted)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        try:
            return get(self._http, path, params, _LISTS_S)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:  # ValueError: IDNA
            raise TuningError(
                f"{self.url} does not answer {path} ({e or type(e).__name__})",
                "Is the server running, and is the address right?",
            ) from None


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            data = json.loads(line[5:])
            if isinstance(data, dict):
                yield data


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _autoload(model: ListedModel | None) -> Mapping[str, str] | None:
    """A model that was unloaded meanwhile stays so (llama.cpp server-models.cpp: is_autoload)."""
    return {"autoload": "false"} if model is not None and model.routed else None


def _routing(model: ListedModel | None) -> Mapping[str, str] | None:
    """What a router's GET wants to know."""
    if model is None or not model.routed:
        return None
    return {"model": model.name, "autoload": "false"}
