"""specllama: llama.cpp serving with speculative decoding, chosen and checked for you."""

__version__ = "0.1.0"
