"""A llama-swap configuration (config-schema.json and internal/config of v250)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

from specllama.formats import server
from specllama.formats.base import Decision, FormatError, WrittenFiles, commented

_MACRO = "${PORT}"  # llama-swap replaces it with a free port
# Not allowed in a YAML block scalar, or a line break in one.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MIN_TIMEOUT_S = 120


def write(decision: Decision) -> WrittenFiles:
    """One model; llama-swap chooses the port. Raises FormatError for what `cmd` cannot hold: `${`,
    which cannot be escaped there, and line breaks."""
    cmd = server.command(decision)
    settings = decision.plan.settings
    keyed = settings.api_key and not cmd.value(server.KEY_FILE)
    lines = [quoted(cmd.program), f"--host 127.0.0.1 --port {_MACRO}"]
    options = cmd.without(server.HOST, server.PORT).options
    lines += [quoted(o.words) for o in options]
    name = decision.name
    spec = settings.speculation
    summary = {
        "method": ",".join(spec.methods) if spec else "none",
        **({"n_max": spec.n_max} if spec and spec.uses_draft else {}),
    }
    meta = ", ".join(f"{k}: {v}" for k, v in summary.items())
    # overrides a model's own healthCheckTimeout (config/load.go)
    timeout = max(_MIN_TIMEOUT_S, server.loading_s(decision))
    text = (
        f"{commented(decision.comments)}"
        f"healthCheckTimeout: {timeout}  # seconds for loading\n"
        + ('apiKeys: ["${env.LLAMA_API_KEY}"]\n' if keyed else "")
        + f"models:\n  {name}:\n    cmd: |\n"
        + "".join(f"      {line}\n" for line in lines)
        + f"    proxy: {_text(f'{settings.scheme}://127.0.0.1:{_MACRO}{settings.prefix}')}\n"
        + f"    metadata: {{specllama: {{{meta}}}}}\n"
    )
    notes: tuple[str, ...] = ("llama-swap --config FILE --listen HOST:PORT",)
    if keyed:
        notes += (
            "set LLAMA_API_KEY before you start llama-swap: it requires that key of its clients",
        )
    return WrittenFiles(text, notes)


def _text(text: str) -> str:
    """A YAML string: JSON strings are valid YAML."""
    return json.dumps(text, ensure_ascii=False)


def quoted(words: tuple[str, ...]) -> str:
    for word in words:
        if "${" in word:
            raise FormatError(
                f"llama-swap cannot hold {word!r}: it reads ${{…}} as one of its macros",
                "Rename the file, or use another --format.",
            )
        if _UNREADABLE.search(word):
            raise FormatError(
                f"llama-swap cannot hold {word!r}: its YAML allows no line breaks or control characters"
            )
    # it splits as POSIX does, on Windows as the system does (commands.go)
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
