"""The decision as one JSON object, like `serve --dry-run --json`, with a comment."""

from __future__ import annotations

from specllama.formats.base import MADE, Decision, WrittenFiles
from specllama.storage import strict_json


def write(decision: Decision) -> WrittenFiles:
    return WrittenFiles(strict_json({"comment": MADE, **decision.data}, indent=2) + "\n")
