"""The user's own prompts: JSON lines, or texts parted by lines of `---`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specllama.engine.client import Prompt
from specllama.errors import UsageError

_MOST = 200  # prompts
_ROLES = {"system", "user", "assistant", "developer", "tool"}


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """All prompts of a file: `{"prompt": …}` or `{"messages": […]}` by line, or plain text.
    An answer at the end of the messages, as in a log of conversations, is not asked.

    Raises UsageError for a file that cannot be read or holds none, and names a bad line by
    its number.
    """
    text = read_text(path, "--prompts")
    first = next((line for line in text.splitlines() if line.strip()), "")
    by_line = path.suffix == ".jsonl" or first.lstrip().startswith("{")
    found = _json_lines(path, text) if by_line else _texts(text)
    if not found:
        raise UsageError(f"--prompts {path}: no prompt in it")
    return tuple(found[:_MOST])


def read_text(path: Path, option: str) -> str:
    """The file's text. Raises UsageError, which names the option, when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{option} {path}: cannot be read ({reason})") from None


def json_lines(path: Path, text: str, option: str) -> Iterator[tuple[int, Any]]:
    """Line numbers and what stands there; empty lines are left out. Raises UsageError for a
    line that is not JSON, or that no server could be sent: NaN, half a character."""
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() parts at U+2028 too
        if not line.strip():
            continue
        try:
            data = json.loads(line, parse_constant=_refused)
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise UsageError(f"{option} {path}: line {number} is not JSON") from None
        yield number, data


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _texts(text: str) -> list[Prompt]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == "---":
            parts.append([])
        else:
            parts[-1].append(line)
    joined = ("\n".join(p).strip("\n") for p in parts)
    return [p for p in joined if p.strip()]


def _json_lines(path: Path, text: str) -> list[Prompt]:
    out: list[Prompt] = []
    for number, data in json_lines(path, text, "--prompts"):
        prompt = _prompt(data)
        if prompt is None:
            raise UsageError(
                f"--prompts {path}: line {number} has neither a prompt nor messages",
                'Each line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}.',
            )
        if not prompt:
            raise UsageError(f"--prompts {path}: line {number} has answers only, no question")
        out.append(prompt)
    return out


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
    return tuple(good)


def message(data: Any) -> dict[str, Any] | None:
    """A message with its text in one piece; None when it is none."""
    if not isinstance(data, dict):
        return None
    role = data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return None
    content = data.get("content")
    if isinstance(content, list):  # OpenAI's parts
        texts = [p.get("text") if isinstance(p, dict) else None for p in content]
        told = all(isinstance(t, str) for t in texts)
        content = "".join(t for t in texts if isinstance(t, str)) if told else None
    if content is None and role == "assistant" and data.get("tool_calls"):
        return data
    return {**data, "content": content} if isinstance(content, str) else None
