"""Text from files, arguments and servers made safe to print: on one line, without characters
that move the cursor, change colours or reverse the writing direction."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Sequence

from specllama.cli.streams import escaped

_LONGEST = 4000  # characters of a message
# Marks that reorder the text around them (one name could look like another).
_DIRECTION_MARKS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(text: str) -> str:
    """`text` with control characters, line ends, direction marks and surrogates escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(escaped(c) if _hidden(c) else c for c in text)


def shorten(text: str) -> str:
    """`text` as `shown`; very long text loses its middle."""
    text = shown(text)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


def wrapped(text: str, width: int, indent: int = -1) -> Sequence[str]:
    """`text` in lines of at most `width` columns, broken at spaces only: a longer word stays
    whole. Later lines are indented by `indent`, or as the text behind the first one's label."""
    if len(text) <= width:
        return (text,)
    if indent < 0:
        label = re.match(r"[\w ]{8} (?=\S)| +", text)
        indent = len(label[0]) if label else 0
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _DIRECTION_MARKS
