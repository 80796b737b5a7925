"""llama-server's own spellings, understood before `--` too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specllama.errors import UsageError

_COMMANDS = ("serve", "plan", "probe", "memory", "advise")
# What specllama has an option of its own for.
_OURS = {
    **dict.fromkeys(("-md", "--model-draft", "--draft-model", "--spec-draft-model"), "--draft"),
    **dict.fromkeys(("--spec-draft-n-max", "--draft-max", "--draft-n"), "--n-max"),
    **dict.fromkeys(("--spec-draft-p-min", "--draft-p-min"), "--p-min"),
    **dict.fromkeys(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), "--draft-layers"),
    "--spec-type": "--method",
    "--ctx-size": "--context",
    "-np": "--parallel",
}
# What only llama-server has: passed on as if it stood after --. Each takes a value.
_PASSED_ON = (
    *("-ngl", "--gpu-layers", "--n-gpu-layers", "-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
    *("-ctkd", "--cache-type-k-draft", "-ctvd", "--cache-type-v-draft"),
    *("-t", "--threads", "-ts", "--tensor-split", "-ot", "--override-tensor"),
)
_AN_OPTION = re.compile("--?[a-z]")  # -1 is a value
_SEE = "See `specllama {} --help`."
_OWN_OF_MEMORY = {"-ctk": "--cache-type-k", "-ctv": "--cache-type-v"}


def understood(ours: Sequence[str], theirs: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """specllama's arguments with its own names, and llama-server's with what belongs to them.

    Raises UsageError where one of llama-server's has no value.
    """
    if not ours or ours[0] not in _COMMANDS:
        return list(ours), tuple(theirs)
    own = {**_OURS, **_OWN_OF_MEMORY} if ours[0] == "memory" else _OURS
    passed_on = [o for o in _PASSED_ON if o not in (*own, *own.values())]
    kept, moved, words = [], [], list(ours)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in passed_on:
            if not equals and (not words or _AN_OPTION.match(words[0])):
                raise UsageError(f"Option '{name}' requires an argument.", _SEE.format(ours[0]))
            moved += [name, value if equals else words.pop(0)]
        else:
            kept.append(own.get(name, name) + equals + value)
    return kept, (*moved, *theirs)
