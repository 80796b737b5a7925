"""Speculative decoding in a llama-server command line: methods, lengths, slots."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.engine.capabilities import MAINLINE
from specllama.formats import flags, lint_types
from specllama.formats.finding import (
    NOTHING,
    WORSE,
    Finding,
    ngram_names,
    remove_option,
    replace_option,
    set_variable,
    spellings,
)
from specllama.formats.found_command import WordEdit
from specllama.formats.parsed_command import OptionUse, ParsedCommand

_LENGTH = "--spec-draft-n-max"
# Options that only a draft model or a sidecar uses.
_OF_DRAFTS = (
    "--spec-draft-n-min --spec-draft-p-min --draft-p-min -ngld -devd -ctkd -ctvd -td -tbd -otd -cmoed "
    "-ncmoed --spec-draft-backend-sampling --spec-draft-sampling"
).split()
_SLOTS, _CACHE = "LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE"
_DEAD = ("--spec-draft-p-split", "--draft-p-split")  # unused in the server
_NGRAM = re.compile(r"--spec-(ngram-simple|ngram-map-k4v|ngram-map-k|ngram-mod)-([a-z-]+)$")
_MAX_AS_LENGTH = 16  # -ngld up to this, without a draft length, is meant as one


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    if parsed.caps.flavour != MAINLINE:
        return  # ik_llama.cpp's --spec-type has its own grammar
    yield from lint_types.findings(parsed)
    yield from _lengths(parsed)
    yield from _idle(parsed)
    yield from _slots(parsed)
    yield from _draft_cache(parsed)
    yield from _synthetic(parsed)
    yield from _bad_builds(parsed)


def _lengths(parsed: ParsedCommand) -> Iterator[Finding]:
    length = parsed.last(_LENGTH)
    if length is not None and length.usable and parsed.only_ngrams and not parsed.incomplete:
        names = [n for n in spellings("draft-length", parsed) if not parsed.all(n)]
        new: list[str | int] = []
        for name in names:
            new += [name, *length.values[:1]]
        yield Finding(
            "ngram-length",
            NOTHING,
            parsed.show(length),
            f"{_LENGTH} applies to draft models and heads only; each n-gram type has its own length",
            " ".join(f"{n} …" for n in names) or "remove it",
            (replace_option(length, *new),) if new else (remove_option(length),),
        )
    layers = parsed.last("-ngld")
    given = parsed.text(_LENGTH) is not None or any(
        w.means == "draft-length" for u in parsed.uses if (w := parsed.wrong_flag(u))
    )
    # with an explicit -ngl, -ngld is meant as layers too
    given = given or length is not None or (parsed.text("-ngl") or "").isdecimal()
    if layers is None or given or not layers.values or not parsed.has_draft:
        return
    word = parsed.word(layers.values[0])
    if re.fullmatch(r"\d+", word.text) and 1 <= int(word.text) <= _MAX_AS_LENGTH:
        names = list(spellings("draft-length", parsed))
        yield Finding(
            "layers-as-length",
            WORSE,
            parsed.show(layers),
            "-ngld is the number of draft layers on the GPU, not the draft length; the other layers "
            "stay on the CPU",
            " ".join(f"{n} {word.text}" for n in names) + ", without -ngld",
            (replace_option(layers, *(w for n in names for w in (n, layers.values[0]))),),
        )


def _idle(parsed: ParsedCommand) -> Iterator[Finding]:
    """Options without effect for the methods that are on."""
    if parsed.incomplete:
        return
    for use in parsed.uses:
        if use.usable and (why := _why_idle(parsed, use)):
            yield Finding(
                "idle-flag", NOTHING, parsed.show(use), why, "remove it", (remove_option(use),)
            )


def _why_idle(parsed: ParsedCommand, use: OptionUse) -> str:
    names = set(use.names)
    if names & set(_DEAD):
        return "llama-server ignores it"
    if names & {*_OF_DRAFTS, _LENGTH} and not parsed.speculates:
        return "no effect without a draft or --spec-type"
    if names & set(_OF_DRAFTS) and parsed.only_ngrams:
        return "no effect on n-gram types, which have no draft model"
    m = next(filter(None, (_NGRAM.match(n) for n in use.names)), None)
    if m is None:
        return ""
    if m[1] not in parsed.types:
        return f"no effect: {m[1]} is not among the methods"
    if m[2] == "min-hits" and not ngram_names("min-hits", m[1]):
        return "min-hits has an effect for ngram-map-k4v only"
    return ""


def _slots(parsed: ParsedCommand) -> Iterator[Finding]:
    use, text = parsed.last("--parallel"), parsed.text("--parallel") or ""
    if not parsed.speculates:
        return
    if re.fullmatch(r"-?\d+", text) and int(text) != 1 and int(text) != 0:
        slots = text if int(text) > 0 else "several"
        yield Finding(
            "parallel",
            WORSE,
            parsed.show(use) if use is not None else f"{_SLOTS}={text}",
            f"{slots} slots: each adds memory for the draft and its checkpoints, the speed-up shrinks, "
            "and the slots share the context",
            "-np 1 for a single user",
            (WordEdit(use.index, 2, (use.index, "1")),)
            if use is not None
            else set_variable(parsed.variable(_SLOTS), "1"),
        )


def _draft_cache(parsed: ParsedCommand) -> Iterator[Finding]:
    for name, variable in (("-ctkd", f"{_CACHE}_K"), ("-ctvd", f"{_CACHE}_V")):
        use, kind = parsed.last(name), (parsed.text(name) or "").lower()
        if (use is None or use.usable) and kind.startswith(("q", "iq")) and not parsed.only_ngrams:
            yield Finding(
                "quantised-draft-cache",
                WORSE,
                parsed.show(use) if use is not None else f"{name} {kind} (set by a variable)",
                "a quantised KV cache of the draft halves the acceptance rate or worse (issues 25725, 15039)",
                "leave it at f16",
                (remove_option(use),)
                if use is not None
                else set_variable(parsed.variable(variable), "f16"),
            )


def _synthetic(parsed: ParsedCommand) -> Iterator[Finding]:
    names, why = flags.synthetic()
    for use in parsed.all(*names):
        if use.usable:
            yield Finding(
                "harmful-flag", WORSE, parsed.show(use), why, "remove it", (remove_option(use),)
            )


def _bad_builds(parsed: ParsedCommand) -> Iterator[Finding]:
    build = parsed.caps.build
    slots = any(f.rule == "parallel" for f in _slots(parsed))
    for bad in flags.bad_builds():
        inside = build is not None and bad.first <= build <= bad.last
        if (
            inside
            and any(t.startswith(bad.types) for t in parsed.types)
            and (slots or not bad.slots)
        ):
            yield Finding(
                "known-bad-build",
                WORSE,
                parsed.caps.label,
                bad.reason,
                "use a newer build" + (", or a single slot" if bad.slots else ""),
            )
