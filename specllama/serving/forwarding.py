"""Which parts of a request and response a relay passes on.   (pure)"""

from __future__ import annotations

from typing import Any

import h11

# RFC 9110, 7.6.1: hop-by-hop headers. `expect` is answered here.
_OF_CONNECTION = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
    *(b"transfer-encoding", b"expect"),
}


def forwarded(request: h11.Request) -> h11.Request:
    """The request for a connection of its own."""
    headers = kept_headers(request.headers)
    if not any(name.lower() == b"host" for name, _ in headers):  # HTTP/1.0
        headers.append((b"Host", b"127.0.0.1"))
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        # RFC 9112, 6.3: it overrides Content-Length
        headers = [(n, v) for n, v in headers if n.lower() != b"content-length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    headers.append((b"Connection", b"close"))
    return h11.Request(method=request.method, target=request.target, headers=headers)


def kept_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """The headers without the hop-by-hop ones."""
    named = {
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    }
    dropped = _OF_CONNECTION | named
    return [(n, v) for n, v in headers.raw_items() if n.lower() not in dropped]
