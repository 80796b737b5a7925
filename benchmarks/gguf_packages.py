"""gguf-py and numpy, of the extra `test`, or one line that says how to install them."""

from __future__ import annotations

try:
    import gguf
    import numpy as np
except ImportError as e:
    raise SystemExit(
        f"error: {e.name} is not installed; in the repository: pip install '.[test]'"
    ) from None

__all__ = ["gguf", "np"]
