"""Errors of tuning/."""

from specllama.errors import SpecllamaError


class TuningError(SpecllamaError):
    """A measurement failed."""


class NothingMeasured(TuningError):
    """Ctrl-C before there was a result."""

    exit_code = 130
