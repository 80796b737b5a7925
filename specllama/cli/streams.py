"""stdout and stderr that never end a command: what they cannot encode is spelt in ASCII, what
cannot be written (a full disk, a reader that has gone) is dropped and remembered."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_HANDLER = "specllama.ascii"
_SPELT = {
    "α": "alpha",
    "τ": "tau",
    "Σ": "sum",
    "×": "x",
    "÷": "/",
    "·": "*",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "±": "+-",
    "→": "->",
    "↓": "v",
    "−": "-",
    "–": "-",
    "—": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "●": "*",
    "│": "|",
    "█": "#",
}


def spelt(error: UnicodeError) -> tuple[str, int]:
    """An error handler for encoders: the characters above in ASCII, others as \\xe8, \\u4e2d."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    return "".join(_SPELT.get(c) or escaped(c) for c in piece), error.end


def escaped(char: str) -> str:
    """A character as a program would write it."""
    code = ord(char)
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Steady:
    """A stream whose writes never fail. `lost`: the first error that one met; `optional`: what
    is written matters less than what is done."""

    def __init__(self, stream: TextIO | None) -> None:
        # none where the descriptor is closed
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.lost: OSError | None = None
        self.optional = False
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors=_HANDLER)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as e:
            self.lost = self.lost or e
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as e:
            self.lost = self.lost or e

    def finish(self) -> None:
        """Flushes for good: what cannot go out is thrown away, or Python would complain of it
        after our end."""
        self.flush()
        if self.lost is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @property
    def why(self) -> str:
        """Why something was lost, in words; "" when nothing was, or nobody is left to read it."""
        if self.lost is None or self.lost.errno in (errno.EPIPE, errno.EINVAL, errno.ESHUTDOWN):
            return ""  # EINVAL is Windows' way to say EPIPE
        return self.lost.strerror or str(self.lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def may_be_lost() -> None:
    """From here on the command succeeds whether or not its lines can be read: it serves."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Steady):
            stream.optional = True


@contextmanager
def steady() -> Iterator[tuple[Steady, Steady]]:
    """Inside, sys.stdout and sys.stderr are steady."""
    codecs.register_error(_HANDLER, spelt)
    before = sys.stdout, sys.stderr
    out, err = Steady(sys.stdout), Steady(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = before
        out.finish()
        err.finish()
