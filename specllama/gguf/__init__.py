"""What a model file says: a header reader and the facts drawn from it."""

from specllama.gguf.header import GgufError, Header, LazyArray, Tensor, read_header
from specllama.gguf.model import ModelInfo, Vocabulary, inspect

__all__ = [
    "GgufError",
    "Header",
    "LazyArray",
    "ModelInfo",
    "Tensor",
    "Vocabulary",
    "inspect",
    "read_header",
]
