"""A running server of any engine with OpenAI's API: models, counters, streamed completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from specllama.engine.client import Conversation, Prompt, conversation
from specllama.engine.http_limits import read_response, response_lines
from specllama.errors import UsageError
from specllama.prompts import without_tools
from specllama.tuning.errors import TuningError
from specllama.watching.address import client, get, refused
from specllama.watching.counters import Snapshot
from specllama.watching.engines import ENGINES
from specllama.watching.prometheus_text import parse_snapshot
from specllama.watching.served_models import (
    LOADED_LISTS,
    ListedModel,
    listed_models,
    loaded_elsewhere,
    model_to_ask,
    with_loaded,
)
from specllama.watching.streamed import DraftCounts, draft_counts, says_something, thinks, tokens

_TIMEOUT = 120.0  # of one piece of a response
_LISTS_S, _COMPLETION_S = 30.0, 900.0  # of a list or counters, and of a completion


class _RequestRejected(TuningError):
    """The server rejects the request as it is."""


@dataclass(frozen=True)
class Reply:
    """Milliseconds to the first token and from it to the last; total tokens; the server's draft
    counts for this completion, None if it reported none."""

    first_ms: float
    ms: float
    tokens: int
    draft_counts: DraftCounts | None = None


class Server:
    """One server over HTTP. `refuses_tools`: it rejected a request with tools (vLLM requires
    --enable-auto-tool-choice). Raises UsageError as address.client does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url, self._http = client(url, api_key, _TIMEOUT)
        self.refuses_tools = False

    def close(self) -> None:
        self._http.close()

    def model(self, name: str | None = None) -> ListedModel:
        """The model to use: `name`, else a loaded text model; never loads or wakes one.

        Raises UsageError without its API key, TuningError if there is none, or the server is not OpenAI-compatible.
        """
        response = self._get("/v1/models")
        if response.status_code in (401, 403):
            raise UsageError(*refused(self.url, self._http))
        models = listed_models(_json(response))
        if not models:
            raise TuningError(
                f"{self.url} is not an LLM server: /v1/models returned {response.status_code} "
                "without a list of models",
                "Use the address that OpenAI clients use.",
            )
        if any(m.loaded is None for m in models):
            models = self._with_loaded(models)
        return model_to_ask(self.url, models, name)

    def _with_loaded(self, models: tuple[ListedModel, ...]) -> tuple[ListedModel, ...]:
        """The models, with their load state from the endpoints of proxies and desktop programs."""
        for path in LOADED_LISTS:
            response = self._get(path)
            if response.status_code == 200:
                loaded = loaded_elsewhere(path, _json(response))
                if loaded is not None:
                    return with_loaded(models, loaded)
        return models

    def counters(self, model: ListedModel | None = None) -> Snapshot | None:
        """The engine's counters; None without known metrics. `model`: of a router."""
        for path in dict.fromkeys(n.path for n in ENGINES.values()):
            response = self._get(path, _routing(model))
            if response.status_code != 200:
                continue
            found = parse_snapshot(response.text, time.monotonic())
            if found is not None:
                return found
        return None

    def ask(
        self, model: ListedModel, prompt: Prompt, most: int, sampling: Mapping[str, float]
    ) -> Reply:
        """One streamed chat completion of at most `most` tokens, timed by the client. A server
        that rejects tools gets them as text."""
        if self.refuses_tools:
            prompt = without_tools(prompt)
        try:
            return self._complete(model, prompt, most, sampling)
        except _RequestRejected:
            if not (isinstance(prompt, Conversation) and prompt.tools):
                raise
        reply = self._complete(model, without_tools(prompt), most, sampling)
        self.refuses_tools = True
        return reply

    def _complete(
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
            # one connection per completion: llama-server may close it right after a stream
            close = {"Connection": "close"}
            path = "/v1/chat/completions"
            with self._http.stream(
                "POST", path, json=body, headers=close, params=_autoload(model)
            ) as response:
                if response.status_code != 200:
                    text = read_response(response, seconds=_LISTS_S).text
                    raise _RequestRejected(
                        f"{self.url} answered a completion with {response.status_code}: {text[:160]}"
                    )
                for data in _events(response):
                    if says_something(data):
                        last = time.monotonic()
                        first = first or last
                        pieces += 1
                    thought = thought or thinks(data)
                    counted = tokens(data, thought) or counted
                    drafted = draft_counts(data) or drafted
        except (httpx.HTTPError, ValueError, RecursionError) as e:
            reason = str(e) or type(e).__name__
            raise TuningError(f"{self.url}: a completion was cut off ({reason})") from None
        if not pieces:
            raise TuningError(f"{self.url} returned a completion without text")
        return Reply((first - started) * 1000, (last - first) * 1000, counted or pieces, drafted)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        try:
            return get(self._http, path, params, _LISTS_S)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:  # ValueError: IDNA
            raise TuningError(
                f"no response from {self.url}{path} ({str(e) or type(e).__name__})",
                "Is the server running, and is the address correct?",
            ) from None


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response_lines(response, seconds=_COMPLETION_S):
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
    """Keeps the router from loading a model again (llama.cpp server-models.cpp: is_autoload)."""
    return {"autoload": "false"} if model is not None and model.routed else None


def _routing(model: ListedModel | None) -> Mapping[str, str] | None:
    """A router's query parameters for GET."""
    if model is None or not model.routed:
        return None
    return {"model": model.name, "autoload": "false"}
