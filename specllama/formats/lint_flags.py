"""Options that this build of llama-server does not have, or not in that form."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from specllama.engine.capabilities import IK_LLAMA, MAINLINE
from specllama.formats import flags, known_builds, lint_ik_llama
from specllama.formats.finding import (
    ENDS,
    Edits,
    Finding,
    remove_option,
    replace_option,
    spec_type,
    spellings,
)
from specllama.formats.found_command import WordEdit
from specllama.formats.parsed_command import (
    OptionUse,
    ParsedCommand,
    find_option,
    is_option,
    meant_type,
)

_RULES = {
    flags.REMOVED: "removed-flag",
    flags.INVENTED: "invented-flag",
    flags.FOREIGN: "other-engine-flag",
}
_FLASH = {"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"}
_TYPO = 0.93  # similarity from which --fix corrects a typo
# Purposes that only a draft method or an n-gram type has.
_ROLES = {"draft-length", "draft-minimum", "lookup", "ngram-length", "min-hits", "-ngld"}
# Newer spellings → their purpose, for builds with an older spelling.
_MEANS = {"--spec-draft-n-max": "draft-length", "--spec-draft-n-min": "draft-minimum"}
_SIZE = re.compile(r"--spec-ngram-(?:simple|map-k|map-k4v)-(size-n|size-m|min-hits)")
_SIZE_MEANS = {"size-n": "lookup", "size-m": "ngram-length", "min-hits": "min-hits"}


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    for use in parsed.uses:
        if not use.usable:
            if parsed.caps.flavour != IK_LLAMA or not lint_ik_llama.foreign(use):
                yield _unknown(parsed, use)
        else:
            yield from _values(parsed, use)
    for number in parsed.unexpected:
        yield _unexpected(parsed, number)


def _unknown(parsed: ParsedCommand, use: OptionUse) -> Finding:
    shown = parsed.show(use)
    span = known_builds.since(use.name) if parsed.caps.flavour == MAINLINE else None
    build = parsed.caps.build or known_builds.NEWEST
    early = span is not None and build < span[0]
    wrong = parsed.wrong_flag(use)
    if wrong is not None and parsed.caps.flavour == MAINLINE and not early:
        idle = wrong.means in _ROLES and not (parsed.speculates or parsed.incomplete)
        edits = (remove_option(use),) if idle else _translated(parsed, use, wrong.means)
        fix = "remove it: nothing drafts here" if idle else _as_words(parsed, edits)
        if weights := parsed.draft_repo_of(use):
            edits, fix = (
                (),
                f"-md FILE.gguf with {weights} converted to GGUF: llama-server loads no other files",
            )
        return Finding(_RULES[wrong.kind], ENDS, shown, f"{use.name}: {wrong.reason}", fix, edits)
    if re.match(r"-\S+\s+\S", use.name) and parsed.word(use.index).quoted:
        return Finding(
            "quoted-options",
            ENDS,
            shown,
            "a quoted variable is a single argument, spaces included, and llama-server has no option of "
            "that name",
            'remove the quotes, or use an array: NAME=(…), "${NAME[@]}"',
        )
    name, equals, value = use.name.partition("=")
    if equals and is_option(name, parsed.caps):
        fixed = parsed.word(use.index).fixed
        return Finding(
            "equals-sign",
            ENDS,
            shown,
            f"llama-server does not support {name}=…: it looks for an option with that whole name",
            f"{name} {value}",
            (replace_option(use, name, value),) if fixed else (),
        )
    if span is not None and not span[0] <= build <= span[1]:
        return _of_other_builds(parsed, use, span, removed=not early)
    label = parsed.caps.label
    engine = f"llama-server {label}" if parsed.caps.build else f"this llama-server ({label})"
    if parsed.caps.build == known_builds.NEWEST:
        engine += " (the newest build known to lint)"
    known = [n for o in parsed.caps.options if not o.removed for n in o.names]
    near = next(iter(difflib.get_close_matches(use.name, known, n=1, cutoff=0.75)), "")
    typo = bool(near) and difflib.SequenceMatcher(None, use.name, near).ratio() >= _TYPO
    return Finding(
        "unknown-flag",
        ENDS,
        shown,
        f"{engine} has no option {use.name} and exits at startup",
        f"did you mean {near}?" if near else "remove it, or check your build with --llama-server",
        (WordEdit(use.index, 1, (near,)),) if typo else (),
    )


def _of_other_builds(
    parsed: ParsedCommand, use: OptionUse, span: tuple[int, int], removed: bool
) -> Finding:
    first, last = span
    size = _SIZE.fullmatch(use.name)
    means = _MEANS.get(use.name) or (_SIZE_MEANS[size[1]] if size else "")
    others = find_option(use.name, known_builds.capabilities(min(last, known_builds.NEWEST)))
    names = spellings(means, parsed) if means else ()
    if not names and others is not None:
        found = parsed.caps.spelling(*others.names)
        names = (found,) if found else ()
    why = f"removed after b{last}" if removed else f"added in b{first}"
    return Finding(
        "removed-flag" if removed else "too-new-flag",
        ENDS,
        parsed.show(use),
        f"{use.name} was {why}, and this is {parsed.caps.label}; llama-server exits at startup",
        f"use {names[0]}" if names else ("remove it" if removed else f"use build ≥ b{first}"),
        (replace_option(use, names[0], *use.values),) if names else (),
    )


def _translated(parsed: ParsedCommand, use: OptionUse, means: str) -> Edits:
    """Edits to the build's equivalent; an option that is already set is not repeated."""
    if means == "load-mode":
        return _load_mode(parsed)
    if means == "config":
        return _vllm_config(parsed, use)
    if means == "types" or means.startswith("types:"):
        return _types(parsed, use, means)
    names = [n for n in spellings(means, parsed) if not _given(parsed, n)] if means else []
    if not names or not use.values:
        return (remove_option(use),)
    return (replace_option(use, *(w for n in names for w in (n, use.values[0]))),)


def _given(parsed: ParsedCommand, name: str) -> bool:
    return any(u.usable for u in parsed.all(name))


def _types(parsed: ParsedCommand, use: OptionUse, means: str) -> Edits:
    """`--speculative-algorithm X`, `--draft-self`: becomes --spec-type unless that is set."""
    if parsed.all("--spec-type"):
        return (remove_option(use),)
    if means == "types":
        meant = meant_type(parsed.word(use.values[0]).text, parsed.caps) if use.values else ""
    else:
        meant = means.partition(":")[2]
    words = spec_type([meant], parsed.caps)
    return (replace_option(use, *words),) if words else (remove_option(use),)


def _load_mode(parsed: ParsedCommand) -> Edits:
    """--mlock and similar options as one -lm."""
    old = [u for u in parsed.uses if (w := parsed.wrong_flag(u)) and w.means == "load-mode"]
    names = {u.name for u in old}
    lock = "--mlock" in names
    if names & {"-dio", "--direct-io"}:
        mode = "dio"
    elif "--no-mmap" in names:
        mode = "mlock" if lock else "none"
    else:
        mode = "mmap+mlock" if lock else "mmap" if "--mmap" in names else "auto"
    keep = mode != "auto" and not _given(parsed, "-lm")
    first = replace_option(old[0], "-lm", mode) if keep else remove_option(old[0])
    return (*(remove_option(u) for u in reversed(old[1:])), first)


def _vllm_config(parsed: ParsedCommand, use: OptionUse) -> Edits:
    """vLLM's JSON as llama-server options."""
    try:
        given = json.loads(parsed.word(use.values[0]).text) if use.values else {}
    except ValueError:
        given = {}
    if not isinstance(given, dict):
        given = {}
    words: list[str] = []
    model = str(given.get("model") or "")
    by_model = "ngram" if model == "[ngram]" else "draft_model" if model else ""
    meant = meant_type(str(given.get("method", by_model)), parsed.caps)
    if not parsed.all("--spec-type"):
        words += spec_type([meant], parsed.caps)
    if model and not parsed.has_draft and not meant.startswith("ngram-"):
        words += ["-md", model]
    ngram = meant.startswith("ngram-")
    for key, name in (
        ("num_speculative_tokens", f"--spec-{meant}-size-m" if ngram else "--spec-draft-n-max"),
        ("prompt_lookup_max", f"--spec-{meant}-size-n"),
    ):
        value = given.get(key)
        if isinstance(value, int) and parsed.caps.spelling(name) and not _given(parsed, name):
            words += [name, str(value)]
    return (replace_option(use, *words),) if words else (remove_option(use),)


def _values(parsed: ParsedCommand, use: OptionUse) -> Iterator[Finding]:
    option = use.option
    assert option is not None
    words = [parsed.word(v) for v in use.values]
    if "--flash-attn" in option.names and option.hint:
        if not words or (words[0].fixed and words[0].text.lower() not in _FLASH):
            yield _bare_flash(parsed, use)
        return
    if parsed.command.paired and option.arity != 1:
        return
    if len(words) < option.arity:
        behind = use.index + use.count
        next_is = parsed.word(behind).text if behind < len(parsed.command.words) else "nothing"
        yield Finding(
            "missing-value",
            ENDS,
            parsed.show(use),
            f"{use.name} needs a value ({option.hint}), but {next_is} follows",
            "add the value",
        )
    elif option.hint == "N" and words[0].fixed and not _number(words[0].text, use):
        yield Finding(
            "bad-value",
            ENDS,
            parsed.show(use),
            f"{use.name} needs a number, not {words[0].text!r}",
            "use a number",
        )


def _number(text: str, use: OptionUse) -> bool:
    if text in ("auto", "all") and any("gpu-layers" in n or n.endswith("ngl") for n in use.names):
        return True
    return re.match(r"\s*[-+]?(\d|\.\d|inf)", text) is not None  # as std::stoi parses


def _bare_flash(parsed: ParsedCommand, use: OptionUse) -> Finding:
    behind = use.index + 1
    # the next word is another option, or unrelated
    loose = use.values and is_option(parsed.word(behind).text, parsed.caps)
    edits: Edits = (WordEdit(use.index, 1 if loose or not use.values else 2, (use.index, "on")),)
    return Finding(
        "bare-flag",
        ENDS,
        use.written,
        f"{use.written} takes a value (on, off or auto) since August 2025, and reads the next word as it",
        f"{use.written} on",
        edits,
    )


def _unexpected(parsed: ParsedCommand, number: int) -> Finding:
    word = parsed.word(number)
    before = parsed.word(number - 1).text if number else ""
    switch = find_option(before, parsed.caps) if before.startswith("-") else None
    takes_none = switch is not None and not switch.removed and not switch.hint
    known = takes_none and word.text.lower() in _FLASH
    return Finding(
        "stray-word",
        ENDS,
        word.text,
        f"{before} takes no value; llama-server exits at {word.text!r}"
        if takes_none
        else f"{word.text!r} is not an option; llama-server exits at startup",
        "remove it",
        (WordEdit(number, 1),) if known else (),
    )


def _as_words(parsed: ParsedCommand, edits: Edits) -> str:
    """The new words of the edits."""
    texts = [
        " ".join(parsed.word(n).text if isinstance(n, int) else n for n in e.new)
        for e in edits
        if isinstance(e, WordEdit) and e.new
    ]
    return " ".join(texts) or "remove it"
