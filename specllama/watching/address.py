"""HTTP access to a server that someone else started."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

import httpx

from specllama.engine.http_limits import read_response
from specllama.errors import UsageError

_MAX_BYTES = 16 * 2**20  # of a response: the metrics of a thousand models take 1 MiB


def client(
    url: str, api_key: str | None, timeout: float, own: bool = False
) -> tuple[str, httpx.Client]:
    """(the address without /v1, a client for it). `api_key` goes into the header only; `timeout`
    in seconds. Proxies from the environment are used, except for a server on this machine. `own`:
    our own server, whose certificate may name another host than 127.0.0.1.

    Raises UsageError for an invalid URL or proxy.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    try:
        at = httpx.URL(base)
        if at.scheme not in ("http", "https") or not at.host or not (at.port or 1) < 2**16:
            raise ValueError("not an HTTP URL")
        proxies = not own and not on_this_machine(at.host)
        return base, httpx.Client(
            base_url=base, headers=headers, timeout=timeout, trust_env=proxies, verify=not own
        )
    except (httpx.InvalidURL, ValueError) as e:  # ValueError: a proxy's scheme
        raise UsageError(
            f"--url {url}: {e}", "Use an address like http://127.0.0.1:8080."
        ) from None


def get(
    http: httpx.Client, path: str, params: Mapping[str, str] | None, seconds: float
) -> httpx.Response:
    """A complete response, within `seconds` and 16 MiB. Raises httpx.HTTPError."""
    with http.stream("GET", path, params=params) as response:
        return read_response(response, _MAX_BYTES, seconds)


def refused(url: str, http: httpx.Client) -> tuple[str, str]:
    """(message, hint) for a response 401 or 403: there was no key, or it was the wrong one."""
    if "Authorization" in http.headers:
        return f"{url} rejects the API key", "Set the right one in SPECLLAMA_API_KEY."
    return f"{url} requires an API key", "Set it in SPECLLAMA_API_KEY."


def on_this_machine(host: str) -> bool:
    """Whether a host name always means this machine, without asking a name server."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
