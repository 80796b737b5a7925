"""The gguf package's exception."""

from specllama.errors import SpecllamaError


class GgufError(SpecllamaError):
    """A file that is not a readable GGUF model. The message names the file and the reason."""

    exit_code = 2
