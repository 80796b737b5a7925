"""Files shipped with the package: profiles and the demo's models.

In a wheel they are inside the package (pyproject.toml, force-include); in a checkout they are at
the top level.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parent


def profiles_dir() -> Path:
    """The folder of the shipped workload profiles (`*.toml`, `prompts/*.txt`)."""
    packaged = _PACKAGE / "profiles"
    return packaged if packaged.is_dir() else _CHECKOUT / "profiles"


def demo_model(name: str) -> Path:
    """Path of a packaged tiny model: `target.gguf` or `draft.gguf`."""
    packaged = _PACKAGE / "demo_models" / name
    return packaged if packaged.is_file() else _CHECKOUT / "tests" / "models" / name
