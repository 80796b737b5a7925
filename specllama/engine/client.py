"""llama-server's HTTP API: health, props, slots, completions, metrics.

Numbers that a build does not report are None, not 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from specllama.engine.errors import EngineError
from specllama.engine.http_limits import read_response, response_lines
from specllama.engine.keys import first
from specllama.engine.metrics import Metrics, parse_metrics, parse_prompt_speed


@dataclass(frozen=True)
class Conversation:
    """Messages and tools, as in OpenAI's API."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        """Its part of the request body."""
        body: dict[str, Any] = {"messages": list(self.messages)}
        return {**body, "tools": list(self.tools)} if self.tools else body


Prompt = str | Conversation
Ids = tuple[int, ...]  # token ids in the target's vocabulary
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Timings:
    """The timings of a completion, in milliseconds and tokens.

    `drafted`/`accepted` are 0 when the server drafted nothing: every build with
    speculation omits the fields then (server-common.cpp).
    """

    prompt_tokens: int
    prompt_ms: float
    tokens: int
    ms: float
    drafted: int
    accepted: int

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Timings:
        return cls(
            prompt_tokens=int(data.get("prompt_n", 0)),
            prompt_ms=float(data.get("prompt_ms", 0.0)),
            tokens=int(data.get("predicted_n", 0)),
            ms=float(data.get("predicted_ms", 0.0)),
            drafted=int(data.get("draft_n", 0)),
            accepted=int(data.get("draft_n_accepted", 0)),
        )


@dataclass(frozen=True)
class Completion:
    """`timings` is None if the server sent none; `ids` is () if it sent no token ids."""

    text: str
    timings: Timings | None
    ids: Ids = ()


class Client:
    """One server. `timeout` in seconds applies to a single read of a completion.

    All methods that send a request raise EngineError when it fails, unless they say otherwise.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 300.0) -> None:
        headers = {"Authorization": f"Bearer {first(api_key)}"} if api_key else {}
        # trust_env=False: a proxy for the internet must not apply to localhost. verify=False:
        # our own server, whose certificate names another host than 127.0.0.1.
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=False
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def healthy(self) -> bool:
        """Whether the server reports that its model is loaded. Never raises."""
        try:
            with self._http.stream("GET", "/health", timeout=2.0) as response:
                return read_response(response, seconds=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def props(self) -> dict[str, Any]:
        """`GET /props`."""
        data = self._get_json("/props")
        return data if isinstance(data, dict) else {}

    def slots(self) -> list[dict[str, Any]] | None:
        """`GET /slots`; None if the server does not offer it (--no-slots, builds up to p0.3.16)."""
        try:
            data = self._get_json("/slots")
        except EngineError:
            return None
        return [s for s in data if isinstance(s, dict)] if isinstance(data, list) else None

    def complete(self, prompt: str, tokens: int, sampling: Mapping[str, Any]) -> Completion:
        """`POST /completion`: continues `prompt` by at most `tokens` tokens, cache off."""
        data = self._post_json("/completion", _completion_body(prompt, tokens, sampling))
        return Completion(str(data.get("content", "")), _timings(data))

    def chat(self, prompt: Prompt, tokens: int, sampling: Mapping[str, Any]) -> Completion:
        """`POST /v1/chat/completions` with one user message (or a conversation), cache off."""
        data = self._post_json("/v1/chat/completions", _chat_body(prompt, tokens, sampling))
        try:
            text = str(data["choices"][0]["message"].get("content") or "")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EngineError("the server's chat completion has no message") from None
        return Completion(text, _timings(data))

    def render(self, prompt: Prompt, sampling: Mapping[str, Any] = _NOTHING) -> str:
        """`POST /apply-template`: the prompt that the chat endpoint makes of a conversation."""
        options = {k: v for k, v in sampling.items() if k == "chat_template_kwargs"}
        data = self._post_json("/apply-template", {**options, **conversation(prompt).body})
        return str(data.get("prompt", ""))

    def tokenize(self, text: str, special: bool = True) -> Ids:
        """`POST /tokenize`: the ids of a prompt with special tokens, as in a completion request;
        without `special`, those of plain text."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return _ids(self._post_json("/tokenize", body))

    def continue_ids(
        self, ids: Sequence[int], tokens: int, sampling: Mapping[str, Any], cache: bool
    ) -> Completion:
        """`POST /completion` with token ids as the prompt and in the response (`return_tokens`).
        `cache`: only what differs from the last prompt is evaluated; `timings.prompt_tokens` is
        the number of evaluated tokens."""
        body = {**_completion_body(list(ids), tokens, sampling), "cache_prompt": cache}
        data = self._post_json("/completion", body | {"return_tokens": True})
        return Completion(str(data.get("content", "")), _timings(data), _ids(data))

    def stream(
        self,
        prompt: Prompt | Ids,
        tokens: int,
        sampling: Mapping[str, Any],
        chat: bool = False,
        cache: bool = False,
    ) -> Iterator[Completion]:
        """Streams `POST /completion`, or the chat endpoint if `chat`. Every piece has the timings
        so far if the build supports `timings_per_token`, else only the last one has them. Token
        ids always go to `/completion`."""
        if isinstance(prompt, tuple) or (isinstance(prompt, str) and not chat):
            text_or_ids = list(prompt) if isinstance(prompt, tuple) else prompt
            path, body = "/completion", _completion_body(text_or_ids, tokens, sampling)
        else:
            path, body = "/v1/chat/completions", _chat_body(prompt, tokens, sampling)
        body |= {"stream": True, "timings_per_token": True, "cache_prompt": cache}
        try:
            # A connection of its own: llama-server may close it right after a stream (seen with
            # b11549), and the next request on it would fail.
            close = {"Connection": "close"}
            with self._http.stream("POST", path, json=body, headers=close) as response:
                if response.status_code != 200:
                    raise EngineError(_problem(path, read_response(response)))
                for line in response_lines(response):
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _piece(json.loads(line[6:]))
        except (httpx.HTTPError, ValueError, RecursionError) as e:
            reason = str(e) or type(e).__name__
            raise EngineError(f"a streamed completion was cut off ({reason})") from None

    def metrics(self) -> Metrics | None:
        """`GET /metrics`; None if the server was started without --metrics."""
        response = self._send("GET", "/metrics")
        return parse_metrics(response.text) if response.status_code == 200 else None

    def prompt_speed(self) -> float | None:
        """Prompt processing in tokens per second, by /metrics; None if there was no prompt yet or
        it is not counted."""
        response = self._send("GET", "/metrics")
        return parse_prompt_speed(response.text) if response.status_code == 200 else None

    def _get_json(self, path: str) -> Any:
        return _json(path, self._send("GET", path))

    def _post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        data = _json(path, self._send("POST", path, dict(body)))
        return data if isinstance(data, dict) else {}

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            with self._http.stream(method, path, json=body) as response:
                return read_response(response)
        except httpx.HTTPError as e:
            reason = str(e) or type(e).__name__
            raise EngineError(f"no response from the server to {path} ({reason})") from None


def _json(path: str, response: httpx.Response) -> Any:
    if response.status_code != 200:
        raise EngineError(_problem(path, response))
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise EngineError(f"the server's response to {path} is not JSON") from None


def _completion_body(prompt: Any, tokens: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {**sampling, "prompt": prompt, "n_predict": tokens, "cache_prompt": False}


def _chat_body(prompt: Prompt, tokens: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **sampling,
        **conversation(prompt).body,
        "max_tokens": tokens,
        "cache_prompt": False,
    }


def conversation(prompt: Prompt) -> Conversation:
    """The prompt as messages; text becomes one user message."""
    if isinstance(prompt, Conversation):
        return prompt
    return Conversation(({"role": "user", "content": prompt},))


def _ids(data: Mapping[str, Any]) -> Ids:
    """The `tokens` of a response; () if it has none, or has objects with their text."""
    tokens = data.get("tokens")
    whole = isinstance(tokens, list) and all(isinstance(t, int) for t in tokens)
    return tuple(tokens) if whole else ()  # type: ignore[arg-type]


def _piece(data: Any) -> Completion:
    """One event of a stream. Raises EngineError for an error event."""
    if not isinstance(data, dict):
        return Completion("", None)
    if "error" in data:
        error = data["error"]
        message = error.get("message", error) if isinstance(error, dict) else error
        raise EngineError(f"the server aborted a streamed completion: {message}")
    text = data.get("content", "")
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        delta = choices[0].get("delta")
        if isinstance(delta, dict):  # reasoning and tool calls are tokens too
            text = delta.get("content") or delta.get("reasoning_content") or _tool_calls(delta)
    return Completion(str(text or ""), _timings(data), _ids(data))


def _tool_calls(delta: Mapping[str, Any]) -> str:
    """The names and arguments of a piece's tool calls."""
    calls = delta.get("tool_calls")
    functions = [c.get("function") for c in calls if isinstance(c, dict)] if calls else []
    texts = (f.get(key) for f in functions if isinstance(f, dict) for key in ("name", "arguments"))
    return "".join(s for s in texts if isinstance(s, str))


def _timings(data: Mapping[str, Any]) -> Timings | None:
    timings = data.get("timings")
    return Timings.parse(timings) if isinstance(timings, dict) else None


def _problem(path: str, response: httpx.Response) -> str:
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    return f"the server answered {path} with {response.status_code}: {message}"
