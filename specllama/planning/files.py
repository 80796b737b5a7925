"""The files named in arguments after --."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specllama.engine.launch_options import LaunchOptions

# Options that name files to read; the server exits if one is missing (tried on b11434).
_FILES = (
    "--lora --lora-scaled --mmproj --lookup-cache-static --lookup-cache-dynamic --api-key-file "
    "--ssl-key-file --ssl-cert-file --chat-template-file --grammar-file --json-schema-file "
    "--control-vector --control-vector-scaled"
).split()


def named_files(user: LaunchOptions) -> Iterator[tuple[str, Path]]:
    """(option, file) for each file that llama-server will read."""
    for name in _FILES:
        for value in user.values(name):
            yield from ((name, file) for file in _files(name, value))


def _files(name: str, value: str) -> Iterator[Path]:
    """The files in an option's value: adapters are separated by commas, each with a scale after a
    colon if the build supports that."""
    if "lora" not in name and "control" not in name:
        yield Path(value)
        return
    for word in value.split(",") if value else ("",):
        path = Path(word)
        yield Path(re.sub(r":[-+.\d]+$", "", word)) if not path.exists() else path


def lora_files(user: LaunchOptions) -> tuple[Path, ...]:
    """The LoRA files that are loaded with the target."""
    values = [(n, v) for n in ("--lora", "--lora-scaled") for v in user.values(n)]
    return tuple(f for name, value in values for f in _files(name, value))
