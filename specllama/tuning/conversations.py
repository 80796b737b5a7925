"""Past conversations of the user: every response in them belongs to a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.engine.client import Conversation, Prompt
from specllama.errors import UsageError
from specllama.prompts import file_lines, json_lines, message, recorded_response, tools_of

_OPTION = "--replay"
_FORM = (
    'Each line is {"messages": [… {"role": "assistant", "content": "…"}]} '
    'or {"prompt": "…", "response": "…"}.'
)
_CUT = "length"  # OpenAI's finish_reason of a response that reached its token limit


@dataclass(frozen=True)
class PastRequest:
    """One request with its response. `line` of the file: its requests are one conversation.
    `truncated`: the response reached its token limit."""

    line: int
    prompt: Prompt
    response: str
    truncated: bool = False


@dataclass(frozen=True)
class Conversations:
    """The contents of a file. `calls`: responses that are tool calls. Their exact tokens are not in
    the file, so they only serve as context."""

    path: Path
    requests: tuple[PastRequest, ...]
    calls: int = 0


def read_conversations(path: Path) -> Conversations:
    """All requests of a file that have a response, in order.

    Raises UsageError for a file that cannot be read or has none, with the number of an invalid
    line or one without a response.
    """
    requests: list[PastRequest] = []
    calls = 0
    for number, data in json_lines(path, file_lines(path, _OPTION), _OPTION):
        found = _record(number, data) if isinstance(data, dict) else None
        if found is None:
            raise UsageError(
                f"{_OPTION} {path}: line {number} has neither messages nor a prompt with a response",
                _FORM,
            )
        found_requests, called = found
        if not found_requests and not called:
            raise UsageError(f"{_OPTION} {path}: line {number} contains no response", _FORM)
        requests += found_requests
        calls += called
    if not requests:
        what = "its only responses are tool calls" if calls else "no conversation found"
        raise UsageError(f"{_OPTION} {path}: {what}", _FORM)
    return Conversations(path, tuple(requests), calls)


def _record(number: int, data: Mapping[str, Any]) -> tuple[list[PastRequest], int] | None:
    """The requests of a line, and how many responses are tool calls; None if it is invalid."""
    truncated = data.get("finish_reason") == _CUT
    messages = data.get("messages")
    if isinstance(messages, list) and messages:
        found = [message(m) for m in messages]
        good = [m for m in found if m is not None]
        tools = tools_of(data)
        if len(good) < len(found) or tools is None:
            return None
        return _turns(number, Conversation(tuple(good), tools), truncated)
    prompt = data.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        return None
    response = recorded_response(data)
    if not isinstance(response, str) or not response:
        return [], 0
    return [PastRequest(number, prompt, response, truncated)], 0


def _turns(number: int, talk: Conversation, truncated: bool) -> tuple[list[PastRequest], int]:
    """A response without a prompt is skipped; `truncated` applies to the last one."""
    messages = talk.messages
    responses = [i for i, m in enumerate(messages) if i and m["role"] == "assistant"]
    requests, calls = [], 0
    for i in responses:
        response = messages[i]
        if response.get("tool_calls"):
            calls += 1
        elif response["content"]:
            own = response.get("finish_reason") == _CUT or (truncated and i == responses[-1])
            before = Conversation(messages[:i], talk.tools)
            requests.append(PastRequest(number, before, str(response["content"]), own))
    return requests, calls


def conversation_groups(requests: Sequence[PastRequest], most: int) -> Iterator[int]:
    """The group number of each request: one group per conversation; neighbouring conversations
    share one if there would be more than `most` groups."""
    lines = {line: i for i, line in enumerate(dict.fromkeys(r.line for r in requests))}
    groups = max(1, min(most, len(lines)))
    yield from (lines[r.line] * groups // len(lines) for r in requests)
