"""The user's own past conversations: every answer in them is a request whose text is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.engine.client import Conversation, Prompt
from specllama.errors import UsageError
from specllama.prompts import json_lines, message, read_lines, tools_of

_OPTION = "--replay"
_FORM = (
    'Each line is {"messages": [… {"role": "assistant", "content": "…"}]} '
    'or {"prompt": "…", "answer": "…"}.'
)
_ANSWERS = ("answer", "completion")
_CUT = "length"  # OpenAI's finish_reason of an answer that did not end by itself


@dataclass(frozen=True)
class PastRequest:
    """One answered request. `line`: of the file, whose requests are one conversation; `cut`:
    the answer reached its limit, so that nothing ended it."""

    line: int
    prompt: Prompt
    answer: str
    cut: bool = False


@dataclass(frozen=True)
class Conversations:
    """What a file holds. `calls`: answers that are tool calls: what the model wrote of them,
    token by token, is not in the file, so that they are context only."""

    path: Path
    requests: tuple[PastRequest, ...]
    calls: int = 0


def read_conversations(path: Path) -> Conversations:
    """All answered requests of a file, in order.

    Raises UsageError for a file that cannot be read or holds none, and names a bad line, or
    one without an answer, by its number.
    """
    requests: list[PastRequest] = []
    calls = 0
    for number, data in json_lines(path, read_lines(path, _OPTION), _OPTION):
        found = _record(number, data) if isinstance(data, dict) else None
        if found is None:
            raise UsageError(
                f"{_OPTION} {path}: line {number} has neither messages nor a prompt with its answer",
                _FORM,
            )
        answered, called = found
        if not answered and not called:
            raise UsageError(f"{_OPTION} {path}: line {number} has no answer in it", _FORM)
        requests += answered
        calls += called
    if not requests:
        what = "no answer but tool calls" if calls else "no conversation"
        raise UsageError(f"{_OPTION} {path}: {what} in it", _FORM)
    return Conversations(path, tuple(requests), calls)


def _record(number: int, data: Mapping[str, Any]) -> tuple[list[PastRequest], int] | None:
    """The requests of a line, and how many answers are tool calls; None when it is none."""
    cut = data.get("finish_reason") == _CUT
    messages = data.get("messages")
    if isinstance(messages, list) and messages:
        found = [message(m) for m in messages]
        good = [m for m in found if m is not None]
        tools = tools_of(data)
        if len(good) < len(found) or tools is None:
            return None
        return _turns(number, Conversation(tuple(good), tools), cut)
    prompt = data.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        return None
    answer = next((data[k] for k in _ANSWERS if k in data), None)
    if not isinstance(answer, str) or not answer:
        return [], 0
    return [PastRequest(number, prompt, answer, cut)], 0


def _turns(number: int, talk: Conversation, cut: bool) -> tuple[list[PastRequest], int]:
    """An answer with nothing before it was not asked for; `cut` is said of the last one."""
    messages = talk.messages
    answers = [i for i, m in enumerate(messages) if i and m["role"] == "assistant"]
    requests, calls = [], 0
    for i in answers:
        said = messages[i]
        if said.get("tool_calls"):
            calls += 1
        elif said["content"]:
            own = said.get("finish_reason") == _CUT or (cut and i == answers[-1])
            before = Conversation(messages[:i], talk.tools)
            requests.append(PastRequest(number, before, str(said["content"]), own))
    return requests, calls


def by_conversation(requests: Sequence[PastRequest], most: int) -> Iterator[int]:
    """For each request the number of its group: those of a conversation belong together, and
    neighbours share a group where there would be more than `most`."""
    lines = {line: i for i, line in enumerate(dict.fromkeys(r.line for r in requests))}
    groups = max(1, min(most, len(lines)))
    yield from (lines[r.line] * groups // len(lines) for r in requests)
