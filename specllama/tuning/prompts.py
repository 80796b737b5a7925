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
    good = all(
        isinstance(m, dict) and m.get("role") in _ROLES and isinstance(m.get("content"), str)
        for m in messages
    )
    return tuple(messages) if good else None
