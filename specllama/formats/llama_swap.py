"""A llama-swap configuration (config-schema.json and internal/config of v250)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

from specllama.formats import server
from specllama.formats.base import Decision, FormatError, WrittenFiles, commented

_MACRO = "${PORT}"  # llama-swap's own, a free port for each model
# What a YAML block cannot hold, and what ends a line in it.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MIN_TIMEOUT_S = 120


def write(decision: Decision) -> WrittenFiles:
    """One model; llama-swap gives it its port. Raises FormatError for what its `cmd` cannot say:
    `${`, which has no escape there, and line breaks."""
    cmd = server.command(decision)
    settings = decision.plan.settings
    keyed = settings.api_key and not cmd.value(server.KEY_FILE)
    lines = [quoted(cmd.program), f"--host 127.0.0.1 --port {_MACRO}"]
    options = cmd.without(server.HOST, server.PORT).options
    lines += [quoted(o.words) for o in options]
    name = decision.name
    spec = settings.speculation
    said = {
        "method": ",".join(spec.methods) if spec else "none",
        **({"n_max": spec.n_max} if spec and spec.uses_draft else {}),
    }
    meta = ", ".join(f"{k}: {v}" for k, v in said.items())
    # a model's own healthCheckTimeout is overwritten by this one (config/load.go)
    timeout = max(_MIN_TIMEOUT_S, server.loading_s(decision))
    text = (
        f"{commented(decision.comments)}"
        f"healthCheckTimeout: {timeout}  # seconds that loading may take\n"
        + ('apiKeys: ["${env.LLAMA_API_KEY}"]\n' if keyed else "")
        + f"models:\n  {name}:\n    cmd: |\n"
        + "".join(f"      {line}\n" for line in lines)
        + f"    proxy: {_text(f'{settings.scheme}://127.0.0.1:{_MACRO}{settings.prefix}')}\n"
        + f"    metadata: {{specllama: {{{meta}}}}}\n"
    )
    notes: tuple[str, ...] = ("llama-swap --config FILE --listen HOST:PORT",)
    if keyed:
        notes += ("llama-swap takes the API key from the variable LLAMA_API_KEY, and asks for it",)
    return WrittenFiles(text, notes)


def _text(text: str) -> str:
    """As YAML takes it: JSON's strings are its own."""
    return json.dumps(text, ensure_ascii=False)


def quoted(words: tuple[str, ...]) -> str:
    for word in words:
        if "${" in word:
            raise FormatError(
                f"llama-swap cannot say {word!r}: it takes ${{…}} for a macro of its own",
                "Rename the file, or take another --format.",
            )
        if _UNREADABLE.search(word):
            raise FormatError(
                f"llama-swap cannot say {word!r}: line breaks and control characters end its text"
            )
    # its splitter is POSIX's, on Windows the system's own (commands.go)
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
