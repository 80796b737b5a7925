"""The one exception type of this room."""

from __future__ import annotations

from specllama.errors import SpecllamaError


class WatchingError(SpecllamaError):
    """A server cannot be watched."""
