"""A launchd agent for macOS."""

from __future__ import annotations

import plistlib
import re
from pathlib import Path
from xml.parsers.expat import ExpatError

from specllama.formats import server
from specllama.formats.base import Decision, FormatError, WrittenFiles, one_line

_KEY_FILE = "~/.config/specllama/api-key"


def write(decision: Decision) -> WrittenFiles:
    """The agent's property list: argv unquoted."""
    cmd = server.command(decision)
    label = f"specllama.{decision.name}"
    argv = list(cmd.argv)
    notes: tuple[str, ...] = (
        f"save as ~/Library/LaunchAgents/{label}.plist; "
        f"launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/{label}.plist",
    )
    if decision.plan.settings.api_key and not cmd.value(server.KEY_FILE):
        argv += [server.KEY_FILE, str(Path(_KEY_FILE).expanduser())]
        notes += (f"write the API key to {_KEY_FILE} (mode 0600)",)
    logs = str(Path(f"~/Library/Logs/{label}.log").expanduser())
    agent = {
        "Label": label,
        "ProgramArguments": argv,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Interactive",  # otherwise macOS throttles it
        "StandardOutPath": logs,
        "StandardErrorPath": logs,
    }
    try:
        text = plistlib.dumps(agent, sort_keys=False).decode()
        same = plistlib.loads(text.encode()) == agent  # a carriage return becomes a line feed
    except (ValueError, ExpatError):
        same = False
    if not same:
        raise FormatError("a property list cannot hold control characters", "Rename the file.")
    head, rest = text.split("<plist", 1)
    comment = "".join(f"  {_comment(line)}\n" for line in (*decision.comments, *notes))
    return WrittenFiles(f"{head}<!--\n{comment}-->\n<plist{rest}", notes)


def _comment(text: str) -> str:
    """Text for an XML comment, which must not contain two hyphens in a row: they become
    non-breaking hyphens."""
    return re.sub("-{2,}", lambda m: "\u2011" * len(m[0]), one_line(text))
