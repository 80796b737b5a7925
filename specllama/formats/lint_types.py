"""--spec-type: names that are none, lists that are parted wrongly, types that exclude each other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from specllama.engine.command import unsupported
from specllama.formats import builds
from specllama.formats.finding import (
    ENDS,
    NOTHING,
    WORSE,
    Edits,
    Finding,
    remove,
    revalued,
    spec_type,
)
from specllama.formats.found import Rewrite, TextEdit
from specllama.formats.seen import SPEC_TYPE_VARIABLE, ParsedCommand, meant_type


def findings(seen: ParsedCommand) -> Iterator[Finding]:
    yield from _types(seen)
    yield from _repeated(seen)
    yield from _drafts_at_once(seen)


def retyped(seen: ParsedCommand, types: tuple[str, ...]) -> Edits:
    """The first --spec-type names these methods, or goes where there are none."""
    if not seen.all("--spec-type"):
        return revalued(seen.variable(SPEC_TYPE_VARIABLE), ",".join(types) or "none")
    first, *others = seen.all("--spec-type")
    words = spec_type(types, seen.caps)
    if not words:
        kept: TextEdit = remove(first)
    else:
        kept = TextEdit(first.at, first.count, (first.at, words[1]))
    return (kept, *(remove(u) for u in others))


def _types(seen: ParsedCommand) -> Iterator[Finding]:
    """Values of --spec-type that this build does not take or cannot run."""
    uses = seen.all("--spec-type")
    variable = seen.variable(SPEC_TYPE_VARIABLE)
    if not all(u.usable for u in uses) or not (uses or variable):
        return
    shown = " ".join(seen.show(u) for u in uses)
    if not uses and variable is not None:
        shown = f"{variable.name}={variable.value}"
    option = "--spec-type " if uses else f"{SPEC_TYPE_VARIABLE}="
    runs = tuple(t for t in seen.types if not unsupported(seen.caps, t))
    says = f"{option}{','.join(runs)}" if runs else "take it out"
    if "none" in seen.given_types and runs:
        yield Finding(
            "none-in-list",
            NOTHING,
            shown,
            "none, wherever it stands in the list, switches every method off",
            says,
            retyped(seen, runs),
        )
    if (strange := _unparted(seen)) is not None:
        yield Finding(
            "list-of-types",
            ENDS,
            shown,
            "llama-server parts the list at commas, and at nothing else: it looks for a method of the "
            f"name {strange!r} and ends at once",
            says,
            retyped(seen, runs),
        )
    for given in dict.fromkeys(seen.given_types):
        meant = meant_type(given, seen.caps)
        if given in seen.caps.spec_types:
            if reason := unsupported(seen.caps, given) if given != "none" else "":
                bad = "mtp_cannot_start" if given == "draft-mtp" else "unsupported-type"
                rule = "known-bad-build" if bad == "mtp_cannot_start" else bad
                yield Finding(rule, ENDS, given, reason, "use a newer build of llama.cpp")
            continue
        edits = retyped(seen, runs)
        if meant != given or meant in seen.caps.spec_types:
            yield Finding(
                "unknown-spec-type",
                ENDS,
                shown,
                _unknown_type(given, meant),
                says,
                edits,
            )
        elif given == "draft-simple":  # its name from b9180 on
            alone = "draft" not in seen.caps.spec_types
            left = tuple(t for t in runs if t != given) if alone else runs
            yield Finding(
                "unknown-spec-type",
                ENDS,
                shown,
                f"{seen.caps.label} knows no --spec-type {given}: it ends at once",
                "take it out: there -md alone drafts" if alone else "--spec-type draft",
                retyped(seen, left),
            )
        elif reason := unsupported(seen.caps, given):
            near = difflib.get_close_matches(given, seen.caps.spec_types, n=1)
            newer = "build ≥" in reason
            yield Finding(
                "unsupported-type" if newer else "unknown-spec-type",
                ENDS,
                shown,
                f"{reason}: it ends at once",
                f"did you mean {near[0]}?" if near and not newer else "use a newer build",
            )


def piped(text: str, seen: ParsedCommand) -> Iterator[Finding]:
    """Types without quotes around them, so that the shell takes | for a pipe."""
    use = seen.all("--spec-type")[-1:]
    words = seen.command.words
    if not use or seen.command.scalar is not None or use[0].values != (len(words) - 1,):
        return
    last = words[-1]
    behind = re.match(r"\|([\w-]+)(?:\|[\w-]+)*", text[last.end :])
    if last.home is not None or not behind or text[last.start : last.end] != last.text:
        return
    others = [meant_type(t, seen.caps) for t in behind[0][1:].split("|")]
    if any(t not in seen.caps.spec_types for t in others):
        return
    types = ",".join((last.text, *others))
    yield Finding(
        "list-of-types",
        ENDS,
        f"--spec-type {last.text}{behind[0]}",
        f"the shell takes | for a pipe and looks for a program named {behind[1]}; llama-server gets "
        f"{last.text} and nothing that stands behind it",
        f"--spec-type {types}",
        (Rewrite(last.start, last.end + behind.end(), types),),
    )


def _unparted(seen: ParsedCommand) -> str | None:
    """A part of a list between its commas that is no single name (common/arg.cpp: string_split)."""
    if (seen.caps.build or builds.NEWEST) < builds.SPEC_TYPES_ARE_A_LIST:
        return None
    parts = (p for text in seen.type_lists for p in text.split(","))
    return next((p for p in parts if re.search(r"[|;\s]", p) or not p), None)


def _unknown_type(given: str, meant: str) -> str:
    if meant == given.lower().replace("_", "-"):
        return (
            f"--spec-type {given}: the names are in lower case and with dashes, {meant}; llama-server "
            "ends at once"
        )
    if meant.startswith("ngram-") and "self" in given:
        return (
            f"--spec-type {given} does not exist: llama.cpp has no self-speculation; what guides call "
            "so are the n-gram types (PR 18471)"
        )
    return f"--spec-type {given} does not exist in this build: llama-server ends at once"


def _repeated(seen: ParsedCommand) -> Iterator[Finding]:
    uses = seen.all("--spec-type")
    if len(uses) < 2:
        if uses and (v := seen.variable(SPEC_TYPE_VARIABLE)) is not None:
            yield Finding(
                "repeated-spec-type",
                WORSE,
                f"{v.name}={v.value}",
                "the variable and the option add up; nothing on the command line takes it back",
                "unset the variable",
            )
        return
    build = seen.caps.build or builds.NEWEST
    happens = (
        "of two lines the preset keeps the last one"
        if seen.command.paired
        else "they add up, whatever is meant"
        if build >= 9246
        else "only the last one counts"
    )
    fix = ",".join(seen.types) or "none"
    yield Finding(
        "repeated-spec-type",
        WORSE,
        " ".join(seen.show(u) for u in uses),
        happens,
        f"one --spec-type {fix}",
        retyped(seen, seen.types),
    )


def _drafts_at_once(seen: ParsedCommand) -> Iterator[Finding]:
    """Two draft methods, several n-gram types in one value where only one is taken."""
    uses = seen.all("--spec-type")
    if len(seen.draft_types) > 1 and uses:
        kept = tuple(t for t in seen.types if t not in seen.draft_types[1:])
        yield Finding(
            "two-drafts",
            ENDS,
            " ".join(seen.show(u) for u in uses),
            f"{' and '.join(seen.draft_types)} share one draft context: llama-server ends, or they disturb "
            "each other",
            f"--spec-type {','.join(kept)}",
            retyped(seen, kept),
        )
    build = seen.caps.build or builds.NEWEST
    if len(seen.given_types) > 1 and build < builds.SPEC_TYPES_ARE_A_LIST and len(uses) == 1:
        kept = tuple(t for t in seen.types if t in seen.caps.spec_types)[:1]
        yield Finding(
            "list-of-types",
            ENDS,
            seen.show(uses[0]),
            f"{seen.caps.label} takes one type; a list came with b{builds.SPEC_TYPES_ARE_A_LIST}",
            f"--spec-type {','.join(kept) or 'none'}",
            retyped(seen, kept),
        )
