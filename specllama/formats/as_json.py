"""The decision as one JSON object, like `serve --dry-run --json`, with a comment and absolute
paths."""

from __future__ import annotations

from specllama.formats.base import MADE, Decision, WrittenFiles
from specllama.formats.server import absolute
from specllama.storage import strict_json


def write(decision: Decision) -> WrittenFiles:
    data = {"comment": MADE, **decision.data}
    for name in ("target", "draft"):
        if path := data.get(name):
            data[name] = absolute(path)
    return WrittenFiles(strict_json(data, indent=2) + "\n")
