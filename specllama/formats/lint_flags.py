"""Options that this build of llama-server does not take, or not in that form."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from specllama.engine.capabilities import IK_LLAMA, MAINLINE
from specllama.formats import builds, flags, lint_dialect
from specllama.formats.finding import (
    ENDS,
    Edits,
    Finding,
    instead,
    remove,
    spec_type,
    spellings,
)
from specllama.formats.found import TextEdit
from specllama.formats.seen import OptionUse, ParsedCommand, find, is_option, meant_type

_RULES = {
    flags.REMOVED: "removed-flag",
    flags.INVENTED: "invented-flag",
    flags.FOREIGN: "other-engine-flag",
}
_FLASH = {"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"}
_TYPO = 0.93  # so alike that --fix takes it for one
# What only a draft method or an n-gram type can be given.
_ROLES = {"draft-length", "draft-minimum", "lookup", "ngram-length", "min-hits", "-ngld"}
# Newer spellings → what they are for, for builds that have an older one.
_MEANS = {"--spec-draft-n-max": "draft-length", "--spec-draft-n-min": "draft-minimum"}
_SIZE = re.compile(r"--spec-ngram-(?:simple|map-k|map-k4v)-(size-n|size-m|min-hits)")
_SIZE_MEANS = {"size-n": "lookup", "size-m": "ngram-length", "min-hits": "min-hits"}


def findings(seen: ParsedCommand) -> Iterator[Finding]:
    for use in seen.uses:
        if not use.usable:
            if seen.caps.flavour != IK_LLAMA or not lint_dialect.foreign(use):
                yield _unknown(seen, use)
        else:
            yield from _values(seen, use)
    for number in seen.stray:
        yield _stray(seen, number)


def _unknown(seen: ParsedCommand, use: OptionUse) -> Finding:
    shown = seen.show(use)
    span = builds.since(use.name) if seen.caps.flavour == MAINLINE else None
    build = seen.caps.build or builds.NEWEST
    early = span is not None and build < span[0]
    wrong = seen.wrong(use)
    if wrong is not None and seen.caps.flavour == MAINLINE and not early:
        idle = wrong.means in _ROLES and not (seen.speculates or seen.open)
        edits = (remove(use),) if idle else _translated(seen, use, wrong.means)
        fix = "take it out: nothing drafts here" if idle else _as_words(seen, edits)
        if weights := seen.weights(use):
            edits, fix = (
                (),
                f"-md FILE.gguf: {weights} as a GGUF, the only files llama-server loads",
            )
        return Finding(_RULES[wrong.kind], ENDS, shown, f"{use.name}: {wrong.why}", fix, edits)
    if re.match(r"-\S+\s+\S", use.name) and seen.word(use.at).quoted:
        return Finding(
            "quoted-options",
            ENDS,
            shown,
            "in quotes a variable is one argument, whatever blanks are in it: llama-server knows none of "
            "that name",
            'take the quotes off, or make it an array: NAME=(…), "${NAME[@]}"',
        )
    name, equals, value = use.name.partition("=")
    if equals and is_option(name, seen.caps):
        fixed = seen.word(use.at).fixed
        return Finding(
            "equals-sign",
            ENDS,
            shown,
            f"llama-server takes no {name}=…: it looks for an option of that whole name",
            f"two words: {name} {value}",
            (instead(use, name, value),) if fixed else (),
        )
    if span is not None and not span[0] <= build <= span[1]:
        return _of_other_builds(seen, use, span, late=not early)
    known = [n for o in seen.caps.options if not o.removed for n in o.names]
    near = next(iter(difflib.get_close_matches(use.name, known, n=1, cutoff=0.75)), "")
    typo = bool(near) and difflib.SequenceMatcher(None, use.name, near).ratio() >= _TYPO
    return Finding(
        "unknown-flag",
        ENDS,
        shown,
        f"this llama-server has no option {use.name} ({seen.caps.label}) and ends at once",
        f"did you mean {near}?" if near else "take it out, or ask your build (--llama-server)",
        (TextEdit(use.at, 1, (near,)),) if typo else (),
    )


def _of_other_builds(
    seen: ParsedCommand, use: OptionUse, span: tuple[int, int], late: bool
) -> Finding:
    first, last = span
    size = _SIZE.fullmatch(use.name)
    means = _MEANS.get(use.name) or (_SIZE_MEANS[size[1]] if size else "")
    others = find(use.name, builds.capabilities(min(last, builds.NEWEST)))
    names = spellings(means, seen) if means else ()
    if not names and others is not None:
        found = seen.caps.spelling(*others.names)
        names = (found,) if found else ()
    why = f"removed after b{last}" if late else f"first in b{first}"
    return Finding(
        "removed-flag" if late else "too-new-flag",
        ENDS,
        seen.show(use),
        f"{use.name}: {why}, this is {seen.caps.label}: llama-server ends at once",
        f"{names[0]} there" if names else ("take it out" if late else f"use build ≥ b{first}"),
        (instead(use, names[0], *use.values),) if names else (),
    )


def _translated(seen: ParsedCommand, use: OptionUse, means: str) -> Edits:
    """Changes that say the same as the build takes it; what is said already goes."""
    if means == "load-mode":
        return _load_mode(seen)
    if means == "config":
        return _vllm_config(seen, use)
    if means == "types" or means.startswith("types:"):
        return _types(seen, use, means)
    names = [n for n in spellings(means, seen) if not _given(seen, n)] if means else []
    if not names or not use.values:
        return (remove(use),)
    return (instead(use, *(w for n in names for w in (n, use.values[0]))),)


def _given(seen: ParsedCommand, name: str) -> bool:
    return any(u.usable for u in seen.all(name))


def _types(seen: ParsedCommand, use: OptionUse, means: str) -> Edits:
    """`--speculative-algorithm X`, `--draft-self`: a --spec-type, unless there is one."""
    if seen.all("--spec-type"):
        return (remove(use),)
    if means == "types":
        meant = meant_type(seen.word(use.values[0]).text, seen.caps) if use.values else ""
    else:
        meant = means.partition(":")[2]
    words = spec_type([meant], seen.caps)
    return (instead(use, *words),) if words else (remove(use),)


def _load_mode(seen: ParsedCommand) -> Edits:
    """--mlock and its like as one -lm."""
    old = [u for u in seen.uses if (w := seen.wrong(u)) and w.means == "load-mode"]
    names = {u.name for u in old}
    lock = "--mlock" in names
    if names & {"-dio", "--direct-io"}:
        mode = "dio"
    elif "--no-mmap" in names:
        mode = "mlock" if lock else "none"
    else:
        mode = "mmap+mlock" if lock else "mmap" if "--mmap" in names else "auto"
    keep = mode != "auto" and not _given(seen, "-lm")
    first = instead(old[0], "-lm", mode) if keep else remove(old[0])
    # back to front, so that the numbers of the words before stay right
    return (*(remove(u) for u in reversed(old[1:])), first)


def _vllm_config(seen: ParsedCommand, use: OptionUse) -> Edits:
    """vLLM's JSON as options of llama-server."""
    try:
        given = json.loads(seen.word(use.values[0]).text) if use.values else {}
    except ValueError:
        given = {}
    if not isinstance(given, dict):
        given = {}
    words: list[str] = []
    model = str(given.get("model") or "")
    by_model = "ngram" if model == "[ngram]" else "draft_model" if model else ""
    meant = meant_type(str(given.get("method", by_model)), seen.caps)
    if not seen.all("--spec-type"):
        words += spec_type([meant], seen.caps)
    if model and not seen.has_draft and not meant.startswith("ngram-"):
        words += ["-md", model]
    ngram = meant.startswith("ngram-")
    for key, name in (
        ("num_speculative_tokens", f"--spec-{meant}-size-m" if ngram else "--spec-draft-n-max"),
        ("prompt_lookup_max", f"--spec-{meant}-size-n"),
    ):
        value = given.get(key)
        if isinstance(value, int) and seen.caps.spelling(name) and not _given(seen, name):
            words += [name, str(value)]
    return (instead(use, *words),) if words else (remove(use),)


def _values(seen: ParsedCommand, use: OptionUse) -> Iterator[Finding]:
    option = use.option
    assert option is not None
    words = [seen.word(v) for v in use.values]
    if "--flash-attn" in option.names and option.hint:
        if not words or (words[0].fixed and words[0].text.lower() not in _FLASH):
            yield _bare_flash(seen, use)
        return
    if seen.command.paired and option.arity != 1:
        return
    if len(words) < option.arity:
        behind = use.at + use.count
        next_is = seen.word(behind).text if behind < len(seen.command.words) else "the end"
        yield Finding(
            "missing-value",
            ENDS,
            seen.show(use),
            f"{use.name} needs a value ({option.hint}), and {next_is} follows",
            "give it one",
        )
    elif option.hint == "N" and words[0].fixed and not _number(words[0].text, use):
        yield Finding(
            "bad-value",
            ENDS,
            seen.show(use),
            f"{use.name} takes a number, not {words[0].text!r}",
            "give a number",
        )


def _number(text: str, use: OptionUse) -> bool:
    if text in ("auto", "all") and any("gpu-layers" in n or n.endswith("ngl") for n in use.names):
        return True
    return re.match(r"\s*[-+]?(\d|\.\d|inf)", text) is not None  # as std::stoi begins


def _bare_flash(seen: ParsedCommand, use: OptionUse) -> Finding:
    behind = use.at + 1
    # what stands behind is another option, or a word of its own
    loose = use.values and is_option(seen.word(behind).text, seen.caps)
    edits: Edits = (TextEdit(use.at, 1 if loose or not use.values else 2, (use.at, "on")),)
    return Finding(
        "bare-flag",
        ENDS,
        use.written,
        f"{use.written} needs on, off or auto from August 2025 on: it takes the next word for that",
        f"{use.written} on",
        edits,
    )


def _stray(seen: ParsedCommand, number: int) -> Finding:
    word = seen.word(number)
    before = seen.word(number - 1).text if number else ""
    switch = find(before, seen.caps) if before.startswith("-") else None
    takes_none = switch is not None and not switch.removed and not switch.hint
    known = takes_none and word.text.lower() in _FLASH
    return Finding(
        "stray-word",
        ENDS,
        word.text,
        f"{before} takes no value: llama-server ends at {word.text!r}"
        if takes_none
        else f"{word.text!r} is no option: llama-server ends at it",
        "take it out",
        (TextEdit(number, 1),) if known else (),
    )


def _as_words(seen: ParsedCommand, edits: Edits) -> str:
    """The words that changes put in."""
    said = [
        " ".join(seen.word(n).text if isinstance(n, int) else n for n in e.new)
        for e in edits
        if isinstance(e, TextEdit) and e.new
    ]
    return " ".join(said) or "take it out"
