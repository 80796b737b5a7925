"""HTTP responses read within limits of size and time.

httpx's timeout applies to each piece, and it reads a body or a line of any length: a server that
never stops sending would hang us or fill the memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

MAX_BODY = 64 * 2**20  # bytes; the ids of a million tokens take 8 MiB
MAX_LINE = 16 * 2**20  # bytes of one event; llama-server's last one repeats the prompt
_OF_THE_STREAM = ("content-encoding", "content-length", "transfer-encoding")


def read_body(
    response: httpx.Response, limit: int = MAX_BODY, seconds: float | None = None
) -> bytes:
    """The body of a streamed response. Raises httpx.ReadError for more than `limit` bytes,
    httpx.ReadTimeout when it takes longer than `seconds`, and whatever httpx raises."""
    until, body = _deadline(seconds), bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > limit:
            raise httpx.ReadError(f"the response is larger than {limit >> 20} MiB")
        if time.monotonic() > until:
            raise httpx.ReadTimeout(f"the response took longer than {seconds:g} s")
    return bytes(body)


def read_response(
    response: httpx.Response, limit: int = MAX_BODY, seconds: float | None = None
) -> httpx.Response:
    """A streamed response with its body read; limits and errors as in `read_body`."""
    body = read_body(response, limit, seconds)
    headers = [(k, v) for k, v in response.headers.items() if k not in _OF_THE_STREAM]
    return httpx.Response(response.status_code, headers=headers, content=body)


def response_lines(
    response: httpx.Response, limit: int = MAX_LINE, seconds: float | None = None
) -> Iterator[str]:
    """The lines of a streamed response, without their ends. Only LF and CRLF end a line: JSON may
    contain the other line separators of Unicode. Raises as `read_body` does; `limit` is per line,
    `seconds` for all of them."""
    until, line = _deadline(seconds), bytearray()
    for piece in response.iter_bytes():
        first, *others = piece.split(b"\n")
        line += first
        if len(line) > limit:
            raise httpx.ReadError(f"a line of the response is longer than {limit >> 20} MiB")
        if time.monotonic() > until:
            raise httpx.ReadTimeout(f"the response took longer than {seconds:g} s")
        for other in others:
            yield _text(line)
            line = bytearray(other)
    if line:
        yield _text(line)


def _deadline(seconds: float | None) -> float:
    return time.monotonic() + seconds if seconds is not None else float("inf")


def _text(line: bytearray) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
