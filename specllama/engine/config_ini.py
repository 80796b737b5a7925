"""llama.cpp's own config.ini: options that every server of this user starts with (from b10405;
common/arg.cpp, common_params_apply_system_config; common/preset.cpp)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

FIRST_BUILD = 10405
_SECTIONS = ("", "*", "default")  # the others are a router's models


def paths(environ: Mapping[str, str]) -> list[Path]:
    """Where llama.cpp looks, a later file over an earlier one."""
    if sys.platform == "win32":
        roots = [environ.get("PROGRAMDATA"), environ.get("APPDATA")]
    else:
        home = environ.get("HOME")
        roots = ["/etc", environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)]
    return [Path(root) / "llama.cpp" / "config.ini" for root in roots if root]


def entries(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Path]]:
    """(key, value, file) of everything they set. A file that cannot be read sets nothing: what
    llama-server makes of it, its log says."""
    for path in paths(environ):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        yield from ((key, value, path) for key, value in parse(text))


def parse(text: str) -> Iterator[tuple[str, str]]:
    """The `key = value` lines that hold for every server."""
    section = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped[1:-1].strip()
        elif "=" in stripped and stripped[0] not in ";#" and section in _SECTIONS:
            key, value = stripped.split("=", 1)
            yield key.strip(), value.strip()
