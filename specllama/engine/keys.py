"""API keys as they may be sent: in a header, where line ends and umlauts have no place."""

from __future__ import annotations

from specllama.errors import UsageError


def usable(text: str, where: str) -> str:
    """The key without the space around it (files and `$(cat …)` leave a line end); "" when that
    is all. Raises UsageError for what no header can carry; the message does not hold the key."""
    key = text.strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError(
            f"the API key in {where} holds a character that no HTTP header can carry",
            "Use letters, digits and signs of ASCII.",
        )
    return key


def first(keys: str) -> str:
    """The key our own requests send: llama-server takes several by comma (common/arg.cpp)."""
    return next((k.strip() for k in keys.split(",") if k.strip()), "")
