"""llama-server's names of options, before `--`: translated, or passed on to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specllama.errors import UsageError

# The commands that take llama-server's options, after --.
PASSTHROUGH_COMMANDS = ("serve", "plan", "probe", "memory", "advise")
# llama-server's name → specllama's.
OWN_NAMES = {
    **dict.fromkeys(("-md", "--model-draft", "--draft-model", "--spec-draft-model"), "--draft"),
    **dict.fromkeys(("--spec-draft-n-max", "--draft-max", "--draft-n"), "--n-max"),
    **dict.fromkeys(("--spec-draft-p-min", "--draft-p-min"), "--p-min"),
    **dict.fromkeys(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), "--draft-layers"),
    "--spec-type": "--method",
    "--ctx-size": "--context",
    "-np": "--parallel",
}
# Options that only llama-server has, passed on as if after --. Each takes a value.
_PASSED_ON = (
    *("-ngl", "--gpu-layers", "--n-gpu-layers", "-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
    *("-ctkd", "--cache-type-k-draft", "-ctvd", "--cache-type-v-draft"),
    *("-t", "--threads", "-ts", "--tensor-split", "-ot", "--override-tensor"),
)
_AN_OPTION = re.compile("--?[a-z]")  # -1 is a value
_SEE = "See `specllama {} --help`."
# Where a command has another option for it.
_NAMES_IN = {
    "memory": {"-ctk": "--cache-type-k", "-ctv": "--cache-type-v"},
    "probe": dict.fromkeys(("--spec-draft-n-max", "--draft-max", "--draft-n"), "--draft-lengths"),
}


def with_own_names(
    arguments: Sequence[str], server_arguments: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """(specllama's arguments in its own names, llama-server's arguments).

    Raises UsageError if an option that is passed on has no value.
    """
    if not arguments or arguments[0] not in PASSTHROUGH_COMMANDS:
        return list(arguments), tuple(server_arguments)
    own = {**OWN_NAMES, **_NAMES_IN.get(arguments[0], {})}
    passed_on = [o for o in _PASSED_ON if o not in (*own, *own.values())]
    own_words, passed, words = [], [], list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in passed_on:
            if not equals and (not words or _AN_OPTION.match(words[0])):
                raise UsageError(
                    f"Option '{name}' requires an argument.", _SEE.format(arguments[0])
                )
            passed += [name, value if equals else words.pop(0)]
        else:
            own_words.append(own.get(name, name) + equals + value)
    return own_words, (*passed, *server_arguments)
