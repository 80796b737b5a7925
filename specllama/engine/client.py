"""llama-server over HTTP: health, props, slots, completions, metrics.

Numbers that a build does not report are None, not 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from specllama.engine.errors import EngineError
from specllama.engine.keys import first

# Metric names, exact (llama.cpp b10289+, server-task.cpp). A name that merely
# contains one (…_per_pos_total) is another series.
_PREFIX = "llamacpp:spec_decode_"
DRAFTED, ACCEPTED = _PREFIX + "num_draft_tokens_total", _PREFIX + "num_accepted_tokens_total"
VERIFY_STEPS = _PREFIX + "num_drafts_total"
PER_POSITION = _PREFIX + "num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tools that an answer may call, as OpenAI's API has them."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        """Its part of a request."""
        body: dict[str, Any] = {"messages": list(self.messages)}
        return {**body, "tools": list(self.tools)} if self.tools else body


Prompt = str | Conversation
Ids = tuple[int, ...]  # token ids in the target's vocabulary
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Timings:
    """What a completion reports about itself. Milliseconds and token counts.

    `drafted`/`accepted` are 0 when the server drafted nothing: it then leaves the
    fields out (server-common.cpp), in every build since the server can speculate.
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
    """`timings` is None when the server sent none; `ids` () where it sent no token ids."""

    text: str
    timings: Timings | None
    ids: Ids = ()


@dataclass(frozen=True)
class Metrics:
    """Counters since the server started; None where the build has no such series."""

    drafted: int | None
    accepted: int | None
    verify_steps: int | None
    accepted_by_position: tuple[int, ...]


class Client:
    """One server. `timeout` in seconds applies to a single read of a completion."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 300.0) -> None:
        headers = {"Authorization": f"Bearer {first(api_key)}"} if api_key else {}
        # trust_env=False: a proxy set for the internet must not catch localhost. verify=False:
        # it is a server of our own, whose certificate names another host than 127.0.0.1.
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
        """Whether the server answers that its model is loaded. Never raises."""
        try:
            return self._http.get("/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def props(self) -> dict[str, Any]:
        """`GET /props`."""
        data = self._get_json("/props")
        return data if isinstance(data, dict) else {}

    def slots(self) -> list[dict[str, Any]] | None:
        """`GET /slots`; None when the server does not offer it (--no-slots, builds up to p0.3.16)."""
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
            raise EngineError("the server's chat answer has no message") from None
        return Completion(text, _timings(data))

    def render(self, prompt: Prompt, sampling: Mapping[str, Any] = _NOTHING) -> str:
        """`POST /apply-template`: the text that the chat endpoint would make of a conversation."""
        told = {k: v for k, v in sampling.items() if k == "chat_template_kwargs"}
        data = self._post_json("/apply-template", {**told, **conversation(prompt).body})
        return str(data.get("prompt", ""))

    def tokenize(self, text: str, special: bool = True) -> Ids:
        """`POST /tokenize`: the ids of a prompt, special tokens and all, as completions see it;
        without `special` those of a text that is an answer, as it stands."""
        body = {"content": text, "add_special": special, "parse_special": special}
        return _ids(self._post_json("/tokenize", body))

    def continue_ids(
        self, ids: Sequence[int], tokens: int, sampling: Mapping[str, Any], cache: bool
    ) -> Completion:
        """`POST /completion` for a prompt given as ids, answered with ids (`return_tokens`).
        `cache`: only what differs from the last prompt is evaluated; `timings.prompt_tokens`
        says how much that was."""
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
        """`POST /completion`, or with `chat` the chat endpoint, piece by piece. Every piece
        carries the timings so far where the build knows `timings_per_token`, else the last.
        Token ids as a prompt always go to `/completion`."""
        if isinstance(prompt, tuple) or (isinstance(prompt, str) and not chat):
            given = list(prompt) if isinstance(prompt, tuple) else prompt
            path, body = "/completion", _completion_body(given, tokens, sampling)
        else:
            path, body = "/v1/chat/completions", _chat_body(prompt, tokens, sampling)
        body |= {"stream": True, "timings_per_token": True, "cache_prompt": cache}
        try:
            # A connection of its own: llama-server may close one right after a stream
            # (seen with b11549), and the next request on it would find nobody there.
            close = {"Connection": "close"}
            with self._http.stream("POST", path, json=body, headers=close) as response:
                if response.status_code != 200:
                    response.read()
                    raise EngineError(_problem(path, response))
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _piece(json.loads(line[6:]))
        except (httpx.HTTPError, ValueError) as e:
            raise EngineError(f"the server broke off a streamed completion ({e})") from None

    def metrics(self) -> Metrics | None:
        """`GET /metrics`; None when the server was started without --metrics."""
        try:
            response = self._http.get("/metrics")
        except httpx.HTTPError as e:
            raise EngineError(f"the server does not answer /metrics ({e})") from None
        return parse_metrics(response.text) if response.status_code == 200 else None

    def prompt_speed(self) -> float | None:
        """Tokens per second of reading prompts, by /metrics; None where nothing was read yet, or
        it is not counted."""
        try:
            response = self._http.get("/metrics")
        except httpx.HTTPError as e:
            raise EngineError(f"the server does not answer /metrics ({e})") from None
        return parse_prompt_speed(response.text) if response.status_code == 200 else None

    def _get_json(self, path: str) -> Any:
        return self._json(path, lambda: self._http.get(path))

    def _post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        data = self._json(path, lambda: self._http.post(path, json=dict(body)))
        return data if isinstance(data, dict) else {}

    def _json(self, path: str, send: Any) -> Any:
        try:
            response: httpx.Response = send()
        except httpx.HTTPError as e:
            raise EngineError(
                f"the server does not answer {path} ({e or type(e).__name__})"
            ) from None
        if response.status_code != 200:
            raise EngineError(_problem(path, response))
        try:
            return response.json()
        except ValueError:
            raise EngineError(
                f"the server answers {path} with something that is not JSON"
            ) from None


def parse_metrics(text: str) -> Metrics:
    """Counters from the Prometheus text, by exact sample name."""
    from prometheus_client.parser import text_string_to_metric_families

    single: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == PER_POSITION and "position" in sample.labels:
                by_position[int(sample.labels["position"])] = int(sample.value)
            elif sample.name in (DRAFTED, ACCEPTED, VERIFY_STEPS):
                single[sample.name] = int(sample.value)
    positions = range(max(by_position, default=-1) + 1)
    return Metrics(
        drafted=single.get(DRAFTED),
        accepted=single.get(ACCEPTED),
        verify_steps=single.get(VERIFY_STEPS),
        accepted_by_position=tuple(by_position.get(i, 0) for i in positions),
    )


def parse_prompt_speed(text: str) -> float | None:
    """Tokens per second from the Prometheus text, by exact sample name."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    values = {s.name: s.value for f in families for s in f.samples}
    tokens, seconds = (values.get(f"llamacpp:prompt_{x}_total", 0.0) for x in ("tokens", "seconds"))
    return tokens / seconds if tokens > 0 and seconds > 0 else None


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
    """A text as a user's message."""
    if isinstance(prompt, Conversation):
        return prompt
    return Conversation(({"role": "user", "content": prompt},))


def _ids(data: Mapping[str, Any]) -> Ids:
    """The `tokens` of an answer; () when it has none, or has them with their texts."""
    tokens = data.get("tokens")
    whole = isinstance(tokens, list) and all(isinstance(t, int) for t in tokens)
    return tuple(tokens) if whole else ()  # type: ignore[arg-type]


def _piece(data: Any) -> Completion:
    """One event of a stream. Raises EngineError when the server says what went wrong in it."""
    if not isinstance(data, dict):
        return Completion("", None)
    if "error" in data:
        error = data["error"]
        said = error.get("message", error) if isinstance(error, dict) else error
        raise EngineError(f"the server broke off a streamed completion: {said}")
    text = data.get("content", "")
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        delta = choices[0].get("delta")
        if isinstance(delta, dict):  # thoughts and calls are tokens like any others
            text = delta.get("content") or delta.get("reasoning_content") or _called(delta)
    return Completion(str(text or ""), _timings(data), _ids(data))


def _called(delta: Mapping[str, Any]) -> str:
    """What a piece says of tool calls: their names and arguments."""
    calls = delta.get("tool_calls")
    functions = [c.get("function") for c in calls if isinstance(c, dict)] if calls else []
    said = (f.get(key) for f in functions if isinstance(f, dict) for key in ("name", "arguments"))
    return "".join(s for s in said if isinstance(s, str))


def _timings(data: Mapping[str, Any]) -> Timings | None:
    timings = data.get("timings")
    return Timings.parse(timings) if isinstance(timings, dict) else None


def _problem(path: str, response: httpx.Response) -> str:
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    return f"the server answers {path} with {response.status_code}: {message}"
