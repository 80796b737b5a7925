"""What a llama-server command line makes of speculation: methods, lengths, slots."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from specllama.engine.capabilities import MAINLINE
from specllama.engine.command import unsupported
from specllama.formats import builds, flags
from specllama.formats.finding import (
    ENDS,
    NOTHING,
    WORSE,
    Edits,
    Finding,
    instead,
    ngram_names,
    remove,
    spec_type,
    spellings,
)
from specllama.formats.found import Change
from specllama.formats.seen import SPEC_TYPE_VARIABLE, Seen, Use

_LENGTH = "--spec-draft-n-max"
# Options that only a draft model or a sidecar reads.
_OF_DRAFTS = (
    "--spec-draft-n-min --spec-draft-p-min --draft-p-min -ngld -devd -ctkd -ctvd -td -tbd -otd -cmoed "
    "-ncmoed --spec-draft-backend-sampling --spec-draft-sampling"
).split()
_DEAD = ("--spec-draft-p-split", "--draft-p-split")  # read by nothing in the server
_NGRAM = re.compile(r"--spec-(ngram-simple|ngram-map-k4v|ngram-map-k|ngram-mod)-([a-z-]+)$")
_MOST_AS_LENGTH = 16  # -ngld of such a number, without a draft length, is meant as one


def findings(seen: Seen) -> Iterator[Finding]:
    if seen.caps.flavour != MAINLINE:
        return  # ik_llama.cpp has a --spec-type of its own grammar
    yield from _types(seen)
    yield from _repeated(seen)
    yield from _drafts_at_once(seen)
    yield from _lengths(seen)
    yield from _idle(seen)
    yield from _slots(seen)
    yield from _draft_cache(seen)
    yield from _synthetic(seen)
    yield from _bad_builds(seen)


def retyped(seen: Seen, types: tuple[str, ...]) -> Edits:
    """The first --spec-type names these methods, or goes where there are none."""
    first, *others = seen.all("--spec-type")
    words = spec_type(types, seen.caps)
    if not words:
        kept: Change = remove(first)
    else:
        kept = Change(first.at, first.count, (first.at, words[1]))
    return (kept, *(remove(u) for u in others))


def _types(seen: Seen) -> Iterator[Finding]:
    """Values of --spec-type that this build does not take or cannot run."""
    uses = seen.all("--spec-type")
    if not uses or not uses[0].usable:
        return
    shown = " ".join(seen.show(u) for u in uses)
    runs = tuple(t for t in seen.types if not unsupported(seen.caps, t))
    if "none" in seen.given_types and runs:
        yield Finding(
            "none-in-list",
            NOTHING,
            shown,
            "none, wherever it stands in the list, switches every method off",
            f"--spec-type {','.join(runs)}",
            retyped(seen, runs),
        )
    for given in dict.fromkeys(seen.given_types):
        meant = flags.types().get(given.lower(), given)
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
                f"--spec-type {','.join(runs)}" if runs else "take it out",
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


def _unknown_type(given: str, meant: str) -> str:
    if meant.startswith("ngram-") and "self" in given:
        return (
            f"--spec-type {given} does not exist: llama.cpp has no self-speculation; what guides call "
            "so are the n-gram types (PR 18471)"
        )
    return f"--spec-type {given} does not exist in this build: llama-server ends at once"


def _repeated(seen: Seen) -> Iterator[Finding]:
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


def _drafts_at_once(seen: Seen) -> Iterator[Finding]:
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


def _lengths(seen: Seen) -> Iterator[Finding]:
    length = seen.last(_LENGTH)
    if length is not None and length.usable and seen.only_ngrams and not seen.open:
        names = [n for n in spellings("draft-length", seen) if not seen.all(n)]
        new: list[str | int] = []
        for name in names:
            new += [name, *length.values[:1]]
        yield Finding(
            "ngram-length",
            NOTHING,
            seen.show(length),
            f"{_LENGTH} moves draft models and heads only; each n-gram type has its own length",
            " ".join(f"{n} …" for n in names) or "take it out",
            (instead(length, *new),) if new else (remove(length),),
        )
    layers = seen.last("-ngld")
    given = seen.text(_LENGTH) is not None or any(
        w.means == "draft-length" for u in seen.uses if (w := seen.wrong(u))
    )
    # who places the target's layers one by one places the draft's too
    given = given or length is not None or (seen.text("-ngl") or "").isdecimal()
    if layers is None or given or not layers.values or not seen.has_draft:
        return
    word = seen.word(layers.values[0])
    if re.fullmatch(r"\d+", word.text) and 1 <= int(word.text) <= _MOST_AS_LENGTH:
        names = list(spellings("draft-length", seen))
        yield Finding(
            "layers-as-length",
            WORSE,
            seen.show(layers),
            "it is how many of the draft's layers lie on the GPU, not how many tokens are drafted; "
            "the rest of the draft stays on the CPU",
            " ".join(f"{n} {word.text}" for n in names) + ", and no -ngld",
            (instead(layers, *(w for n in names for w in (n, layers.values[0]))),),
        )


def _idle(seen: Seen) -> Iterator[Finding]:
    """Options that nothing reads, given the methods that are on."""
    if seen.open:
        return
    for use in seen.uses:
        if use.usable and (why := _why_idle(seen, use)):
            yield Finding("idle-flag", NOTHING, seen.show(use), why, "take it out", (remove(use),))


def _why_idle(seen: Seen, use: Use) -> str:
    names = set(use.names)
    if names & set(_DEAD):
        return "nothing in llama-server reads it"
    if names & {*_OF_DRAFTS, _LENGTH} and not seen.speculates:
        return "there is no draft and no --spec-type: nothing reads it"
    if names & set(_OF_DRAFTS) and seen.only_ngrams:
        return "the n-gram types have no draft model: nothing reads it"
    m = next(filter(None, (_NGRAM.match(n) for n in use.names)), None)
    if m is None:
        return ""
    if m[1] not in seen.types:
        return f"{m[1]} is not among the methods: nothing reads it"
    if m[2] == "min-hits" and not ngram_names("min-hits", m[1]):
        return "only ngram-map-k4v reads its min-hits"
    return ""


def _slots(seen: Seen) -> Iterator[Finding]:
    use, text = seen.last("--parallel"), seen.text("--parallel") or ""
    if not seen.speculates:
        return
    if re.fullmatch(r"-?\d+", text) and int(text) != 1 and int(text) != 0:
        slots = text if int(text) > 0 else "several"
        yield Finding(
            "parallel",
            WORSE,
            seen.show(use) if use is not None else f"LLAMA_ARG_N_PARALLEL={text}",
            f"{slots} slots: the draft's memory and kept states grow with them, the gain falls, and "
            "each has only its part of the context",
            "-np 1, for one user at a time",
            (Change(use.at, 2, (use.at, "1")),) if use is not None else (),
        )


def _draft_cache(seen: Seen) -> Iterator[Finding]:
    for name in ("-ctkd", "-ctvd"):
        use, kind = seen.last(name), (seen.text(name) or "").lower()
        if (use is None or use.usable) and kind.startswith(("q", "iq")) and not seen.only_ngrams:
            yield Finding(
                "quantised-draft-cache",
                WORSE,
                seen.show(use) if use is not None else f"{name} by its variable: {kind}",
                "a quantised KV cache of the draft halves acceptance or ends it (issues 25725, 15039)",
                "leave it at f16",
                (remove(use),) if use is not None else (),
            )


def _synthetic(seen: Seen) -> Iterator[Finding]:
    names, why = flags.synthetic()
    for use in seen.all(*names):
        if use.usable:
            yield Finding("harmful-flag", WORSE, seen.show(use), why, "take it out", (remove(use),))


def _bad_builds(seen: Seen) -> Iterator[Finding]:
    build = seen.caps.build
    slots = any(f.rule == "parallel" for f in _slots(seen))
    for bad in flags.bad_builds():
        inside = build is not None and bad.first <= build <= bad.last
        if inside and any(t.startswith(bad.types) for t in seen.types) and (slots or not bad.slots):
            yield Finding(
                "known-bad-build",
                WORSE,
                seen.caps.label,
                bad.why,
                "use a newer build" + (", or one slot" if bad.slots else ""),
            )
