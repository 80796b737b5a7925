"""LLAMA_ARG_* variables that end llama-server, or that it ignores by now."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.engine.capabilities import MAINLINE
from specllama.formats import flags, known_builds
from specllama.formats.finding import ENDS, NOTHING, Finding
from specllama.formats.found_command import SpanEdit
from specllama.formats.parsed_command import ParsedCommand


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    build = parsed.caps.build or parsed.caps.at_least or known_builds.NEWEST
    if parsed.caps.flavour != MAINLINE or build < known_builds.DRAFT_FLAGS_REMOVED:
        return
    for v in parsed.command.variables:
        first, fix = flags.removed_variables().get(v.name, (build + 1, ""))
        if build >= first:
            why = f"llama-server ignores it from b{first} on"
            yield Finding("renamed-variable", NOTHING, f"{v.name}={v.value}", why, fix)
        name = flags.renamed_variables().get(v.name)
        if name is None:
            continue
        fatal = v.name in ("LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_DRAFT_MIN")
        yield Finding(
            "fatal-variable" if fatal else "renamed-variable",
            ENDS if fatal else NOTHING,
            f"{v.name}={v.value}",
            "llama-server reads it and ends: it stands for an option that was removed"
            if fatal
            else f"it was renamed in b{known_builds.DRAFT_FLAGS_REMOVED}: llama-server ignores it",
            f"{name}={v.value}"
            if v.in_text
            else f"{name}={v.value} in {v.source}"
            if v.source
            else f"unset {v.name}",
            (SpanEdit(v.start, v.end, name),) if v.in_text else (),
        )
