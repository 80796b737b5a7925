"""Settings that make the server exit or leave nothing to draft, by the rules of `serve`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from specllama.engine.launch_options import LaunchOptions
from specllama.engine.option_sources import ParsedOption
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.errors import UsageError
from specllama.formats.finding import ENDS, NOTHING, WORSE, Finding, remove_option
from specllama.formats.parsed_command import ParsedCommand
from specllama.planning import refusals
from specllama.planning.choose import Choice
from specllama.planning.files import named_files

_AUTO_SLOTS = 4  # without -np (llama.cpp, server.cpp)


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    user = _options(parsed)
    slots = _slots(parsed)
    try:
        refusals.check_launch(Settings(Path(), "127.0.0.1", 8080, parallel=slots), user)
    except UsageError as e:
        yield _refused(e)
        return  # the checks below read the same values
    if not parsed.types:
        return
    try:
        suited = refusals.suitable_choice(Choice(_speculation(parsed), "", ()), user, slots)
    except UsageError as e:
        yield replace(
            _refused(e), edits=tuple(remove_option(u) for u in parsed.all("--batch-size"))
        )
    else:
        if suited.speculation is None:
            why = suited.reason
            named = (*parsed.all("--spec-type", "--spec-default"), *parsed.draft_uses)
            yield Finding(
                "nothing-to-draft",
                NOTHING,
                why.split(":")[0],
                why,
                "remove the speculative options",
                tuple(remove_option(u) for u in named),
            )
    for option, why, advice in refusals.crash_risks(parsed.types, user):
        use = parsed.last(option)
        edits = (remove_option(use),) if use is not None and advice == "leave it out" else ()
        yield Finding(
            "harmful-flag",
            WORSE,
            parsed.show(use) if use is not None else option,
            why,
            advice,
            edits,
        )


def _refused(e: UsageError) -> Finding:
    # where serve found the option does not matter here
    what = e.message.replace(" after --", "")
    return Finding("refused", ENDS, what.split(":")[0], what, "correct it, or remove it")


def _options(parsed: ParsedCommand) -> LaunchOptions:
    """The options whose values are known; missing files are on another machine."""
    given = tuple(
        ParsedOption(u.option, (u.name, *(parsed.word(v).text for v in u.values)))
        for u in parsed.uses
        if u.option is not None
        and not u.option.removed
        and len(u.values) == u.option.arity
        and all(parsed.word(v).fixed for v in u.values)
    )
    user = LaunchOptions(given)
    return user.without({name for name, file in named_files(user) if not os.path.isfile(file)})


def _slots(parsed: ParsedCommand) -> int:
    word = parsed.value("--parallel")
    known = word is not None and re.fullmatch(r"\d{1,9}", word.text)
    return max(1, int(word.text)) if known and word is not None else _AUTO_SLOTS


def _speculation(parsed: ParsedCommand) -> Speculation:
    """The lengths set by the command line, otherwise llama.cpp's defaults."""

    def number(name: str, default: int) -> int:
        word = parsed.value(name)
        found = word is not None and re.fullmatch(r"\d{1,9}", word.text)
        return int(word.text) if found and word is not None else default

    lengths = [
        number("--spec-ngram-mod-n-max", 64)
        if t == "ngram-mod"
        else number(f"--spec-{t}-size-m", 48)
        for t in parsed.ngram_types
    ]
    sizes = NgramSizes(12, max(lengths)) if lengths else None
    return Speculation(parsed.types, n_max=number("--spec-draft-n-max", 3), ngram=sizes)
