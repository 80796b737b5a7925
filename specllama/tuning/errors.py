"""Errors of tuning/."""

from specllama.errors import SpecllamaError


class TuningError(SpecllamaError):
    """A measurement failed."""
