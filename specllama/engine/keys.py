"""API keys that an HTTP header can contain: printable ASCII."""

from __future__ import annotations

from specllama.errors import UsageError


def usable(text: str, where: str) -> str:
    """The key without surrounding whitespace (files and `$(cat …)` leave a newline); "" if
    nothing is left. Raises UsageError, without the key in it, if no header can contain it."""
    key = text.strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError(
            f"the API key in {where} contains a character that is not allowed in an HTTP header",
            "Use ASCII letters, digits and punctuation.",
        )
    return key


def first(keys: str) -> str:
    """The key our own requests send: llama-server accepts a comma-separated list (arg.cpp)."""
    return next((k.strip() for k in keys.split(",") if k.strip()), "")
