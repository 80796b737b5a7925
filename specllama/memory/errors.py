"""Errors of memory/."""

from specllama.errors import SpecllamaError


class MemoryInputError(SpecllamaError):
    """Invalid sizes, contexts or files."""

    exit_code = 2
