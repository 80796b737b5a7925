"""Text from files, arguments and servers as it may be shown: on one line, with nothing in it
that moves the cursor, changes colours or turns the writing direction."""

from __future__ import annotations

import unicodedata

from specllama.cli.streams import escaped

_LONGEST = 4000  # characters of a message
# Marks that reorder what stands around them (a name could show another one).
_TURNING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(text: str) -> str:
    """`text` with control characters, line ends, turning marks and half characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(escaped(c) if _hidden(c) else c for c in text)


def cut(text: str) -> str:
    """`text` as `shown`, its middle left out where it is longer than a screen."""
    text = shown(text)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _TURNING
