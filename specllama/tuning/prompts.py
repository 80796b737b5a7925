"""The user's own prompts: JSON lines, or texts parted by lines of `---`."""

from __future__ import annotations

import json
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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"--prompts {path}: cannot be read ({reason})") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    json_lines = path.suffix == ".jsonl" or first.lstrip().startswith("{")
    found = _json_lines(path, text) if json_lines else _texts(text)
    if not found:
        raise UsageError(f"--prompts {path}: no prompt in it")
    return tuple(found[:_MOST])


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
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError:
            raise UsageError(f"--prompts {path}: line {number} is not JSON") from None
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
    found = [_message(m) for m in messages]
    good = [m for m in found if m is not None]
    if len(good) < len(found):
        return None
    while good and good[-1]["role"] == "assistant":
        good.pop()
    return tuple(good)


def _message(data: Any) -> dict[str, Any] | None:
    """A message with its text in one piece; None when it is none."""
    if not isinstance(data, dict) or data.get("role") not in _ROLES:
        return None
    content = data.get("content")
    if isinstance(content, list):  # OpenAI's parts
        texts = [p.get("text") if isinstance(p, dict) else None for p in content]
        content = "".join(t for t in texts if isinstance(t, str)) if all(texts) else None
    if content is None and data["role"] == "assistant" and data.get("tool_calls"):
        return data
    return {**data, "content": content} if isinstance(content, str) else None
