"""What can go wrong in memory/."""

from specllama.errors import SpecllamaError


class MemoryInputError(SpecllamaError):
    """Sizes, contexts or files that cannot be summed up."""

    exit_code = 2
