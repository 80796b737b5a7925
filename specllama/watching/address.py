"""Where a server that somebody else started is, and how it is reached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from ipaddress import ip_address

import httpx

from specllama.errors import UsageError

_MOST_BYTES = 16 * 2**20  # of an answer: a thousand models' metrics are one
# Of a connection, which the body that was read is no part of any more.
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


def client(
    url: str, api_key: str | None, timeout: float, own: bool = False
) -> tuple[str, httpx.Client]:
    """(the address without /v1, a client for it). `api_key` goes into the header only; `timeout`
    in seconds. Proxies of the environment are honoured, but for a server on this machine. `own`:
    a server of ours, whose certificate may name another host than 127.0.0.1.

    Raises UsageError for what is no URL, and for a proxy that is none.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    try:
        at = httpx.URL(base)
        if at.scheme not in ("http", "https") or not at.host or not (at.port or 1) < 2**16:
            raise ValueError("not an address of HTTP")
        proxies = not own and not on_this_machine(at.host)
        return base, httpx.Client(
            base_url=base, headers=headers, timeout=timeout, trust_env=proxies, verify=not own
        )
    except (httpx.InvalidURL, ValueError) as e:  # ValueError: a proxy's scheme
        raise UsageError(
            f"--url {url}: {e}", "Give an address like http://127.0.0.1:8080."
        ) from None


def get(
    http: httpx.Client, path: str, params: Mapping[str, str] | None, seconds: float
) -> httpx.Response:
    """A whole answer within `seconds` and 16 MiB: httpx's timeout is of each piece, and a server
    may trickle for ever. Raises httpx.HTTPError, of what does not end too."""
    until, body = time.monotonic() + seconds, bytearray()
    with http.stream("GET", path, params=params) as response:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > _MOST_BYTES:
                raise httpx.ReadError(f"its answer to {path} is larger than 16 MiB")
            if time.monotonic() > until:
                raise httpx.ReadTimeout(f"its answer to {path} did not end in {seconds:g} s")
        headers = [(k, v) for k, v in response.headers.items() if k not in _OF_THE_BODY]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body))


def on_this_machine(host: str) -> bool:
    """Whether a host name means this machine, whatever a name server would say."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
