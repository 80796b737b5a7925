"""GGUF model files: a header reader, and the model's properties from it."""

from specllama.gguf.errors import GgufError
from specllama.gguf.files import is_later_shard, read_model, tensors
from specllama.gguf.header import Header, Tensor, read_header
from specllama.gguf.model import ModelInfo, file_of_kind, model_info
from specllama.gguf.values import LazyArray
from specllama.gguf.vocabulary import Vocabulary

__all__ = [
    "GgufError",
    "Header",
    "LazyArray",
    "ModelInfo",
    "Tensor",
    "Vocabulary",
    "file_of_kind",
    "is_later_shard",
    "model_info",
    "read_header",
    "read_model",
    "tensors",
]
