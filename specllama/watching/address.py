"""Where a server that somebody else started is, and how it is reached."""

from __future__ import annotations

from ipaddress import ip_address

import httpx

from specllama.errors import UsageError


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


def on_this_machine(host: str) -> bool:
    """Whether a host name means this machine, whatever a name server would say."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
