"""The user's config file: `config.toml` in the platform's config folder.

llama_server = "/path/to/llama-server"   # or "embedded"
model_dirs = ["/data/models"]            # searched for drafts, including subfolders
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass(frozen=True)
class Config:
    llama_server: str | None = None
    model_dirs: tuple[str, ...] = ()


def path() -> Path:
    """Path of the config file."""
    from platformdirs import user_config_path

    return user_config_path("specllama", appauthor=False) / "config.toml"


def load() -> Config:
    """The config, empty if there is no file. Raises UsageError naming the mistake in it."""
    file = path()
    if not os.path.isfile(file):
        return Config()
    data = read_toml(file)
    unknown = sorted(set(data) - {"llama_server", "model_dirs"})
    if unknown:
        raise UsageError(
            f"{file}: unknown setting {unknown[0]!r}", "Known: llama_server, model_dirs"
        )
    value = data.get("llama_server")
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{file}: llama_server must be a string, not {value!r}")
    dirs = data.get("model_dirs", [])
    if not isinstance(dirs, list) or not all(isinstance(d, str) and _is_path(d) for d in dirs):
        raise UsageError(f"{file}: model_dirs must be a list of folders, not {dirs!r}")
    return Config(llama_server=value, model_dirs=tuple(dirs))


def _is_path(text: str) -> bool:
    """Whether a text can name a file."""
    return bool(text) and "\0" not in text


def read_toml(file: Path) -> dict[str, Any]:
    """Parses a TOML file. Raises UsageError with the file and line of a mistake."""
    try:
        data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"{file}: not valid TOML ({e})") from None
    except OSError as e:
        raise UsageError(f"{file}: cannot be read ({e.strerror})") from None
    return data
