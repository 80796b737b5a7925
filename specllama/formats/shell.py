"""A shell script (POSIX sh)."""

from __future__ import annotations

import shlex

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented


def write(decision: Decision) -> WrittenFiles:
    """The command, one option per line. Variables that would change the decision are unset: some
    add to --spec-type."""
    cmd = server.command(decision)
    lines = [shlex.join(cmd.program), *(shlex.join(o.words) for o in cmd.options)]
    unset = "".join(f"unset {name}\n" for name in decision.plan.user.ignored)
    key = ("set LLAMA_API_KEY before you run it: llama-server reads the API key from there",)
    text = "#!/bin/sh\n" + commented(decision.comments)
    notes = key if decision.plan.settings.api_key and not cmd.value(server.KEY_FILE) else ()
    return WrittenFiles(
        text + commented(notes) + unset + "exec " + " \\\n  ".join(lines) + "\n", notes
    )
