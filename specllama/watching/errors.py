"""The watching package's exception."""

from __future__ import annotations

from specllama.errors import SpecllamaError


class WatchingError(SpecllamaError):
    """A server cannot be watched."""
