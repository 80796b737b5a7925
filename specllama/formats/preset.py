"""A preset of llama-server's router: INI as common/preset.cpp reads it (b11434).

It has no quotes and no escapes: a value ends silently at the first `#` or `;`.
"""

from __future__ import annotations

import re
import shlex

from specllama.engine.option_sources import ParsedOption
from specllama.formats import server
from specllama.formats.base import Decision, FormatError, WrittenFiles, commented

# Options of the router itself: it drops them from a section (server-models.cpp, b11434).
_ROUTERS = (server.HOST, server.PORT, server.KEY_FILE, "--ssl-key-file", "--ssl-cert-file")
# Repeated, these add up; a comma-separated list is the same (common/arg.cpp).
_ADD_UP = {
    *("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"),
    *("--override-tensor", "--override-tensor-draft", "--override-kv", "--rpc", "--spec-type"),
}
_CUTS = re.compile(r"[#;\n\r]")


def write(decision: Decision) -> WrittenFiles:
    """One section, named after the model's file. Raises FormatError for a build without a router,
    and for values that the INI parser would cut off."""
    plan = decision.plan
    if plan.capabilities.find("--models-preset") is None:
        raise FormatError(
            f"{plan.engine.label} ({plan.capabilities.label}) has no router that reads presets",
            "Set a llama-server of build b7389 or later with --llama-server.",
        )
    cmd = server.command(decision)
    keys: dict[str, str] = {}
    for option in cmd.without(*_ROUTERS).options:
        key, value = line(option)
        keys[key] = f"{keys[key]},{value}" if key in keys and _adds_up(option) else value
    own = [o for o in cmd.options if o not in cmd.without(*_ROUTERS).options]
    start = shlex.join(
        (*cmd.program, "--models-preset", "FILE", *(w for o in own for w in o.words))
    )
    how = f"start the router without model or speculation options: {start}"
    notes = (*decision.comments, how, *_notes(decision))
    lines = "".join(f"{key} = {value}".rstrip() + "\n" for key, value in keys.items())
    text = f"{commented(notes, ';')}\n[{decision.name}]\n{lines}"
    return WrittenFiles(text, (how, *_notes(decision)))


def _notes(decision: Decision) -> tuple[str, ...]:
    key = decision.plan.settings.api_key
    ignored = ", ".join(decision.plan.user.ignored)
    return (
        *(
            ("set LLAMA_API_KEY before you start the router: it reads the API key from there",)
            if key
            else ()
        ),
        *(
            (f"unset {ignored} before you start the router: its servers read them",)
            if ignored
            else ()
        ),
    )


def line(given: ParsedOption) -> tuple[str, str]:
    """(key, value) of one option, with a long spelling."""
    option, words = given.option, given.words
    off = option.opposites
    positive = [n for n in option.names if n.startswith("--") and n not in off]
    names = positive or [n for n in option.names if n not in off] or list(option.names)
    key = (words[0] if words[0] in positive else names[-1]).lstrip("-")
    if len(words) == 1:
        return key, "false" if positive and words[0] in off else "true"
    if len(words) > 2:
        raise FormatError(
            f"a preset cannot hold {shlex.join(words)}: it allows one value per option"
        )
    value = words[1]
    if _CUTS.search(value) or value != value.strip():
        what = (
            "a trailing space"
            if value != value.strip()
            else "everything after #, ; or a line break"
        )
        raise FormatError(
            f"a preset cannot hold {shlex.join(words)}: {what} would be cut off",
            "Rename the file, or use another --format." if "/" in value else "",
        )
    return key, value


def _adds_up(given: ParsedOption) -> bool:
    return bool(_ADD_UP & set(given.option.names))
