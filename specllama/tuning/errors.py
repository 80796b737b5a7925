"""What can go wrong in tuning/."""

from specllama.errors import SpecllamaError


class TuningError(SpecllamaError):
    """A measurement that could not be made."""
