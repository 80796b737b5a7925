"""The engine package's exception."""

from specllama.errors import SpecllamaError


class EngineError(SpecllamaError):
    """No usable llama-server, or one that failed. exit_code 1: a run that failed."""
