"""LLAMA_ARG_* variables that make llama-server exit, or that it ignores."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.engine.capabilities import MAINLINE, Capabilities
from specllama.formats import flags, known_builds
from specllama.formats.finding import ENDS, NOTHING, Finding
from specllama.formats.found_command import SpanEdit
from specllama.formats.parsed_command import ParsedCommand


def known_variables(caps: Capabilities) -> frozenset[str]:
    """The variables that matter to a command of this build."""
    newest = known_builds.capabilities(known_builds.NEWEST)
    of_options = {o.env for known in (caps, newest) for o in known.options if o.env}
    renamed = flags.renamed_variables()
    return frozenset({*of_options, *flags.removed_variables(), *renamed, *renamed.values()})


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    build = parsed.caps.build or parsed.caps.at_least or known_builds.NEWEST
    if parsed.caps.flavour != MAINLINE or build < known_builds.DRAFT_FLAGS_REMOVED:
        return
    for v in parsed.command.variables:
        first, fix = flags.removed_variables().get(v.name, (build + 1, ""))
        if build >= first:
            why = f"its option was removed in b{first}; llama-server ignores it"
            yield Finding("renamed-variable", NOTHING, f"{v.name}={v.value}", why, fix)
        name = flags.renamed_variables().get(v.name)
        if name is None:
            continue
        fatal = v.name in ("LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_DRAFT_MIN")
        yield Finding(
            "fatal-variable" if fatal else "renamed-variable",
            ENDS if fatal else NOTHING,
            f"{v.name}={v.value}",
            "it sets an option that was removed; llama-server exits at startup"
            if fatal
            else f"renamed in b{known_builds.DRAFT_FLAGS_REMOVED}; llama-server ignores the old name",
            f"{name}={v.value}"
            if v.in_text
            else f"{name}={v.value} in {v.source}"
            if v.source
            else f"unset {v.name}",
            (SpanEdit(v.start, v.end, name),) if v.in_text else (),
        )
