"""Numbers as people write them."""

from __future__ import annotations


def count(n: int) -> str:
    """A parameter count: 3.8 M, 7.2 B."""
    return f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def mib(size: int) -> str:
    """Bytes in binary units."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def plural(n: int, noun: str) -> str:
    """`1 layer`, `1,024 tokens`. For nouns that take an s."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
