"""stdout and stderr whose errors never abort a command: unencodable characters are written in
ASCII, and text that cannot be written (full disk, closed pipe) is dropped and remembered."""

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


def spell_in_ascii(error: UnicodeError) -> tuple[str, int]:
    """An error handler for encoders: the characters above in ASCII, others as \\xe8, \\u4e2d."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    return "".join(_SPELT.get(c) or escaped(c) for c in piece), error.end


def escaped(char: str) -> str:
    """A character as an escape sequence."""
    code = ord(char)
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class LenientStream:
    """A stream whose writes never fail. `lost`: the first error; `optional`: losing output is not
    a failure of the command."""

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
        """Flushes for the last time. Text that cannot be written is discarded, or Python would
        report it at exit."""
        self.flush()
        if self.lost is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @property
    def why(self) -> str:
        """The reason for lost output; "" if none was lost, or its reader has gone."""
        if self.lost is None or self.lost.errno in (errno.EPIPE, errno.EINVAL, errno.ESHUTDOWN):
            return ""  # Windows reports EPIPE as EINVAL
        return self.lost.strerror or str(self.lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def output_is_optional() -> None:
    """From here on lost output is not an error: the command serves."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LenientStream):
            stream.optional = True


@contextmanager
def lenient_output() -> Iterator[tuple[LenientStream, LenientStream]]:
    """Replaces sys.stdout and sys.stderr by such streams."""
    codecs.register_error(_HANDLER, spell_in_ascii)
    before = sys.stdout, sys.stderr
    out, err = LenientStream(sys.stdout), LenientStream(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = before
        out.finish()
        err.finish()
