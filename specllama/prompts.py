"""Prompt files: JSON lines, or texts separated by `---` lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from specllama.engine.client import Conversation, Prompt, conversation
from specllama.errors import UsageError

MAX_PROMPTS = 200  # prompts
_MAX_CHARS = 2**22  # characters of a line or prompt; more than any model accepts
_MAX_DEPTH = 50  # levels of a line's JSON; OpenAI's messages have six
_ROLES = {"system", "user", "assistant", "developer", "tool"}
_RESPONSES = ("response", "answer", "completion")  # names that datasets use


@dataclass(frozen=True)
class PromptRecord:
    """A prompt and the other fields of its record. `response`: the response's text, "" = none;
    `max_tokens`: its limit."""

    prompt: Prompt
    response: str = ""
    temperature: float | None = None
    max_tokens: int | None = None


def read_prompts(path: Path, option: str = "--prompts") -> tuple[Prompt, ...]:
    """Like `read_records`, but only the prompts."""
    return tuple(a.prompt for a in read_records(path, option))


def read_records(path: Path, option: str) -> tuple[PromptRecord, ...]:
    """The first MAX_PROMPTS prompts of a file: `{"prompt": …}` or `{"messages": […]}` per line, or
    plain text. A response at the end of the messages, as in a conversation log, is not sent.

    Raises UsageError, which names the `option`, for a file that cannot be read or has no prompts;
    a bad line is named by its number.
    """
    lines = file_lines(path, option)
    first = next(((n, line) for n, line in lines if line.strip()), (0, ""))
    again = chain([first], lines)
    by_line = path.suffix in (".jsonl", ".json") or first[1].lstrip().startswith("{")
    found = _json_lines(path, again, option) if by_line else _texts(path, again, option)
    out = tuple(islice(found, MAX_PROMPTS))
    if not out:
        raise UsageError(f"{option} {path}: no prompts found")
    return out


def as_text(prompt: Prompt) -> str:
    """A prompt as plain text, without roles."""
    if isinstance(prompt, str):
        return prompt
    texts = [_tools_text(prompt.tools)] if prompt.tools else []
    return "\n\n".join((*texts, *(str(m.get("content") or "") for m in prompt.messages)))


def without_tools(prompt: Prompt) -> Prompt:
    """The prompt with its tools as text before the first user message, for a server that does not
    support tools."""
    if isinstance(prompt, str) or not prompt.tools:
        return prompt
    messages = [dict(m) for m in prompt.messages]
    first = next((m for m in messages if m.get("role") == "user"), None)
    tools_text = _tools_text(prompt.tools)
    if first is None:
        return Conversation(({"role": "user", "content": tools_text}, *messages))
    first["content"] = f"{tools_text}\n\n{first.get('content') or ''}"
    return Conversation(tuple(messages))


def as_record(prompt: Prompt) -> dict[str, Any]:
    """A prompt as a line of a prompt file."""
    return {"prompt": prompt} if isinstance(prompt, str) else prompt.body


def _tools_text(tools: Iterable[Mapping[str, Any]]) -> str:
    schemas = ",\n ".join(json.dumps(t.get("function", t), ensure_ascii=False) for t in tools)
    return (
        "You can call these tools. Answer with a JSON array of calls, each "
        f'{{"name": …, "arguments": {{…}}}}, and nothing else.\n\n[{schemas}]'
    )


def file_lines(path: Path, option: str) -> Iterator[tuple[int, str]]:
    """The file's lines with their numbers, read lazily. A line ends at a line feed only: U+2028 is
    part of a text. Raises UsageError, which names the option, if the file cannot be read, and
    for a line that is too long for any model."""
    try:
        with path.open(encoding="utf-8-sig") as f:
            for number in count(1):
                line = f.readline(_MAX_CHARS + 1)
                if not line:
                    return
                if len(line) > _MAX_CHARS:
                    raise UsageError(
                        f"{option} {path}: line {number} is longer than {_MAX_CHARS >> 20} Mi characters"
                    )
                yield number, line.removesuffix("\n")
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{option} {path}: cannot be read ({reason})") from None


def json_lines(
    path: Path, lines: Iterable[tuple[int, str]], option: str
) -> Iterator[tuple[int, Any]]:
    """Line numbers and parsed lines; empty lines are skipped. Raises UsageError for a line that is
    not JSON or cannot be sent to a server: NaN, half a surrogate pair."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            data = json.loads(line, parse_constant=_reject_constant)
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise UsageError(f"{option} {path}: line {number} is not JSON") from None
        if _is_deeper(data, _MAX_DEPTH):
            raise UsageError(f"{option} {path}: line {number} is nested too deeply")
        yield number, data


def _is_deeper(data: Any, than: int) -> bool:
    if not isinstance(data, (list, dict)):
        return False
    inner = data.values() if isinstance(data, dict) else data
    return than == 0 or any(_is_deeper(x, than - 1) for x in inner)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _texts(path: Path, lines: Iterable[tuple[int, str]], option: str) -> Iterator[PromptRecord]:
    part: list[str] = []
    size = 0
    for _, line in chain(lines, [(0, "---")]):
        if line.strip() != "---":
            part.append(line)
            size += len(line) + 1
            if size > _MAX_CHARS:
                raise UsageError(
                    f"{option} {path}: a prompt is longer than {_MAX_CHARS >> 20} Mi characters",
                    "Separate prompts with `---` lines.",
                )
            continue
        text = "\n".join(part).strip("\n")
        if text.strip():
            yield PromptRecord(text)
        part, size = [], 0


def _json_lines(
    path: Path, lines: Iterable[tuple[int, str]], option: str
) -> Iterator[PromptRecord]:
    for number, data in json_lines(path, lines, option):
        prompt = _prompt(data)
        if prompt is None:
            raise UsageError(
                f"{option} {path}: line {number} has neither a prompt nor messages",
                'Each line must be {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}.',
            )
        if isinstance(prompt, Conversation) and not prompt.messages:
            raise UsageError(f"{option} {path}: line {number} has only assistant messages")
        tools = tools_of(data)
        if tools is None:
            raise UsageError(
                f"{option} {path}: line {number} has tools that are not in OpenAI's format",
                'Each must be {"type": "function", "function": {"name": "…", "parameters": {…}}}.',
            )
        if tools:
            prompt = Conversation(conversation(prompt).messages, tools)
        yield _record(data, prompt)


def tools_of(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """The tools of a record, () if it has none; None if they are not in OpenAI's format."""
    tools = data.get("tools")
    if tools is None:
        return ()
    good = isinstance(tools, list) and all(
        isinstance(t, dict)
        and t.get("type") == "function"
        and isinstance(t.get("function"), dict)
        and isinstance(t["function"].get("name"), str)
        for t in tools
    )
    return tuple(tools) if good else None


def _record(data: Mapping[str, Any], prompt: Prompt) -> PromptRecord:
    """The record with the other fields of OpenAI's requests and of logs of them."""
    messages = data.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    response = message(last) if isinstance(last, dict) and last.get("role") == "assistant" else None
    text = response.get("content") if response else recorded_response(data)
    max_tokens = _number(data.get("max_tokens", data.get("max_completion_tokens")), 10**6)
    return PromptRecord(
        prompt,
        text if isinstance(text, str) else "",
        _number(data.get("temperature"), 2),
        int(max_tokens) if max_tokens else None,
    )


def recorded_response(data: Mapping[str, Any]) -> Any:
    """The response of a record without messages, whatever its type; None if there is none."""
    return next((data[k] for k in _RESPONSES if k in data), None)


def _number(value: Any, most: float) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good and 0 <= value <= most else None


def _prompt(data: Any) -> Prompt | None:
    if not isinstance(data, dict):
        return None
    prompt, messages = data.get("prompt"), data.get("messages")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if not isinstance(messages, list) or not messages:
        return None
    found = [message(m) for m in messages]
    good = [m for m in found if m is not None]
    if len(good) < len(found):
        return None
    while good and good[-1]["role"] == "assistant":
        good.pop()
    return Conversation(tuple(good))


def message(data: Any) -> dict[str, Any] | None:
    """A message with its text joined; None if it is not a message."""
    if not isinstance(data, dict):
        return None
    role = data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return None
    content = data.get("content")
    if isinstance(content, list):  # OpenAI's parts
        texts = [p.get("text") if isinstance(p, dict) else None for p in content]
        all_text = all(isinstance(t, str) for t in texts)
        content = "".join(t for t in texts if isinstance(t, str)) if all_text else None
    if content is None and role == "assistant" and data.get("tool_calls"):
        return data
    return {**data, "content": content} if isinstance(content, str) else None
