"""Values that shells complete for options, as of now; in a comma-separated list, its last item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

# --method also takes llama.cpp's own names
METHODS = (
    "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache "
    "none"
).split()


def workloads(incomplete: str) -> Sequence[str]:
    """Profiles, including the user's own; comma-separated."""
    from specllama.workloads import names

    return _last_of_list(names(), incomplete)


def profiles(incomplete: str) -> Sequence[str]:
    """One profile."""
    from specllama.workloads import names

    return [name for name in names() if name.startswith(incomplete)]


def methods(incomplete: str) -> Sequence[str]:
    """Types, comma-separated."""
    return _last_of_list(METHODS, incomplete)


def cache_types(incomplete: str) -> Sequence[str]:
    from specllama.memory.use import CACHE_TYPES

    return [name for name in CACHE_TYPES if name.startswith(incomplete)]


def one_of(*values: str) -> Callable[[str], Sequence[str]]:
    """A completion of fixed values."""

    def complete(incomplete: str) -> Sequence[str]:
        return [v for v in values if v.startswith(incomplete)]

    return complete


def _last_of_list(values: Iterable[str], incomplete: str) -> Sequence[str]:
    before, comma, last = incomplete.rpartition(",")
    used = before.split(",")
    return [before + comma + v for v in values if v.startswith(last) and v not in used]
