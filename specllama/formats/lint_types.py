"""--spec-type: unknown names, wrongly separated lists, types that exclude each other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from specllama.engine.command import unsupported_reason
from specllama.formats import known_builds
from specllama.formats.finding import (
    ENDS,
    NOTHING,
    WORSE,
    Edits,
    Finding,
    remove_option,
    set_variable,
    spec_type,
)
from specllama.formats.found_command import SpanEdit, WordEdit
from specllama.formats.parsed_command import SPEC_TYPE_VARIABLE, ParsedCommand, meant_type

_PIPED = re.compile(r"\|([\w-]+)(?:\|[\w-]+)*")


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    yield from _types(parsed)
    yield from _repeated(parsed)
    yield from _drafts_at_once(parsed)


def retyped(parsed: ParsedCommand, types: tuple[str, ...]) -> Edits:
    """Sets the first --spec-type to these methods, or removes it if there are none."""
    if not parsed.all("--spec-type"):
        return set_variable(parsed.variable(SPEC_TYPE_VARIABLE), ",".join(types) or "none")
    first, *others = parsed.all("--spec-type")
    words = spec_type(types, parsed.caps)
    if not words:
        edit: WordEdit = remove_option(first)
    else:
        edit = WordEdit(first.index, first.count, (first.index, words[1]))
    return (edit, *(remove_option(u) for u in others))


def _types(parsed: ParsedCommand) -> Iterator[Finding]:
    """Values of --spec-type that this build does not know or cannot run."""
    uses = parsed.all("--spec-type")
    variable = parsed.variable(SPEC_TYPE_VARIABLE)
    if not all(u.usable for u in uses) or not (uses or variable):
        return
    shown = " ".join(parsed.show(u) for u in uses)
    if not uses and variable is not None:
        shown = f"{variable.name}={variable.value}"
    option = "--spec-type " if uses else f"{SPEC_TYPE_VARIABLE}="
    runs = tuple(t for t in parsed.types if not unsupported_reason(parsed.caps, t))
    fix = f"{option}{','.join(runs)}" if runs else "remove it"
    if "none" in parsed.given_types and runs:
        yield Finding(
            "none-in-list",
            NOTHING,
            shown,
            "none anywhere in the list switches every method off",
            fix,
            retyped(parsed, runs),
        )
    if (name := _unsplit(parsed)) is not None:
        yield Finding(
            "list-of-types",
            ENDS,
            shown,
            "llama-server splits the list at commas only: it looks for a method named "
            f"{name!r} and exits at startup",
            fix,
            retyped(parsed, runs),
        )
    for given in dict.fromkeys(parsed.given_types):
        meant = meant_type(given, parsed.caps)
        if given in parsed.caps.spec_types:
            if reason := unsupported_reason(parsed.caps, given) if given != "none" else "":
                bad = "mtp_cannot_start" if given == "draft-mtp" else "unsupported-type"
                rule = "known-bad-build" if bad == "mtp_cannot_start" else bad
                yield Finding(rule, ENDS, given, reason, "use a newer build of llama.cpp")
            continue
        edits = retyped(parsed, runs)
        if meant != given or meant in parsed.caps.spec_types:
            yield Finding(
                "unknown-spec-type",
                ENDS,
                shown,
                _unknown_type(given, meant),
                fix,
                edits,
            )
        elif given == "draft-simple":  # its name from b9180 on
            alone = "draft" not in parsed.caps.spec_types
            left = tuple(t for t in runs if t != given) if alone else runs
            yield Finding(
                "unknown-spec-type",
                ENDS,
                shown,
                f"{parsed.caps.label} does not know --spec-type {given} and exits at startup",
                "remove it: in this build -md alone is enough" if alone else "--spec-type draft",
                retyped(parsed, left),
            )
        elif reason := unsupported_reason(parsed.caps, given):
            near = difflib.get_close_matches(given, parsed.caps.spec_types, n=1)
            newer = "build ≥" in reason
            yield Finding(
                "unsupported-type" if newer else "unknown-spec-type",
                ENDS,
                shown,
                f"{reason}; llama-server exits at startup",
                f"did you mean {near[0]}?" if near and not newer else "use a newer build",
            )


def piped(text: str, parsed: ParsedCommand) -> Iterator[Finding]:
    """Unquoted types, so that the shell reads | as a pipe."""
    use = parsed.all("--spec-type")[-1:]
    words = parsed.command.words
    if not use or parsed.command.scalar is not None or use[0].values != (len(words) - 1,):
        return
    last = words[-1]
    behind = _PIPED.match(text, last.end)
    if last.origin is not None or not behind or text[last.start : last.end] != last.text:
        return
    others = [meant_type(t, parsed.caps) for t in behind[0][1:].split("|")]
    if any(t not in parsed.caps.spec_types for t in others):
        return
    types = ",".join((last.text, *others))
    yield Finding(
        "list-of-types",
        ENDS,
        f"--spec-type {last.text}{behind[0]}",
        f"the shell reads | as a pipe to a program named {behind[1]}; llama-server gets only "
        f"{last.text}",
        f"--spec-type {types}",
        (SpanEdit(last.start, behind.end(), types),),
    )


def _unsplit(parsed: ParsedCommand) -> str | None:
    """An item of a list that is not a single name (common/arg.cpp: string_split)."""
    if (parsed.caps.build or known_builds.NEWEST) < known_builds.SPEC_TYPES_ARE_A_LIST:
        return None
    parts = (p for text in parsed.type_lists for p in text.split(","))
    return next((p for p in parts if re.search(r"[|;\s]", p) or not p), None)


def _unknown_type(given: str, meant: str) -> str:
    if meant == given.lower().replace("_", "-"):
        return (
            f"--spec-type {given}: names are lower case with hyphens ({meant}); llama-server exits "
            "at startup"
        )
    if meant.startswith("ngram-") and "self" in given:
        return (
            f"--spec-type {given} does not exist: llama.cpp has no self-speculation; guides mean the "
            "n-gram types (PR 18471)"
        )
    return f"--spec-type {given} does not exist in this build; llama-server exits at startup"


def _repeated(parsed: ParsedCommand) -> Iterator[Finding]:
    uses = parsed.all("--spec-type")
    if len(uses) < 2:
        if uses and (v := parsed.variable(SPEC_TYPE_VARIABLE)) is not None:
            yield Finding(
                "repeated-spec-type",
                WORSE,
                f"{v.name}={v.value}",
                "the variable and the option add up; no option can undo the variable",
                "unset the variable",
            )
        return
    build = parsed.caps.build or known_builds.NEWEST
    happens = (
        "only the last of the preset's lines counts"
        if parsed.command.paired
        else "they add up"
        if build >= 9246
        else "only the last one counts"
    )
    fix = ",".join(parsed.types) or "none"
    yield Finding(
        "repeated-spec-type",
        WORSE,
        " ".join(parsed.show(u) for u in uses),
        happens,
        f"one --spec-type {fix}",
        retyped(parsed, parsed.types),
    )


def _drafts_at_once(parsed: ParsedCommand) -> Iterator[Finding]:
    """Two draft methods; lists in a build that allows a single type."""
    uses = parsed.all("--spec-type")
    if len(parsed.draft_types) > 1 and uses:
        types = tuple(t for t in parsed.types if t not in parsed.draft_types[1:])
        yield Finding(
            "two-drafts",
            ENDS,
            " ".join(parsed.show(u) for u in uses),
            f"{' and '.join(parsed.draft_types)} share one draft context: llama-server exits, or they "
            "interfere with each other",
            f"--spec-type {','.join(types)}",
            retyped(parsed, types),
        )
    build = parsed.caps.build or known_builds.NEWEST
    if (
        len(parsed.given_types) > 1
        and build < known_builds.SPEC_TYPES_ARE_A_LIST
        and len(uses) == 1
    ):
        types = tuple(t for t in parsed.types if t in parsed.caps.spec_types)[:1]
        yield Finding(
            "list-of-types",
            ENDS,
            parsed.show(uses[0]),
            f"{parsed.caps.label} allows one type; lists came with b{known_builds.SPEC_TYPES_ARE_A_LIST}",
            f"--spec-type {','.join(types) or 'none'}",
            retyped(parsed, types),
        )
