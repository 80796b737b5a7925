"""Whether target and draft of a command line fit: by the files where they exist, by names where
they do not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from specllama.drafts.compat import METHOD_OF_KIND, own_head_verdict, verdict
from specllama.engine.capabilities import MAINLINE
from specllama.engine.loading import refusal
from specllama.formats.finding import (
    ENDS,
    NOTHING,
    WORSE,
    Edits,
    Finding,
    insert_after,
    remove_option,
    spec_type,
)
from specllama.formats.found_command import WordEdit
from specllama.formats.lint_types import retyped
from specllama.formats.parsed_command import OptionUse, ParsedCommand
from specllama.gguf import GgufError, ModelInfo

# Reads a model file; None when there is none. Raises GgufError for one that is no GGUF.
Models = Callable[[str], ModelInfo | None]

SNIFFS = 10423  # first build that tells a sidecar's type by the file (arg.cpp)
_SNIFFED = ("dflash", "dspark", "mtp-head")
_BY_NAME = (
    (r"(^|[^a-z])mtp([^a-z]|$)", "draft-mtp"),
    (r"eagle-?3", "draft-eagle3"),
    (r"dflash", "draft-dflash"),
    (r"dspark", "draft-dspark"),
)
_NEED_A_FILE = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")


def findings(parsed: ParsedCommand, models: Models) -> Iterator[Finding]:
    try:
        target, draft = _model(parsed, models, "-m"), _model(parsed, models, "-md")
    except GgufError as e:
        yield Finding("refused-file", ENDS, e.message.split(":")[0], e.message, "get it again")
        return
    yield from _no_type(parsed, draft)
    yield from _no_draft(parsed, target)
    if target is not None:
        yield from _target(parsed, target)
    if not _draft_counts(parsed):
        return
    if _one_file(parsed, target, draft):
        yield _same(parsed, target)
        return
    if target is None or draft is None:
        return
    if not (found := verdict(target, draft, parsed.caps)).ok:
        yield _misfit(parsed, f"{found.detail} ({found.rule})", draft)
    elif draft.kind == "model" and draft.file_bytes > target.file_bytes:
        yield _swapped(parsed, target, draft)
    else:
        yield from _wrong_type(parsed, draft)


def _value_index(parsed: ParsedCommand, name: str) -> int:
    use = parsed.last(name)
    return use.values[0] if use is not None and use.values else -1


def _model(parsed: ParsedCommand, models: Models, name: str) -> ModelInfo | None:
    text = parsed.text(name)
    return models(text) if text else None


def _draft_counts(parsed: ParsedCommand) -> bool:
    return parsed.caps.flavour != MAINLINE or bool(parsed.draft_types) or not parsed.has_types


def method_of(parsed: ParsedCommand, draft: ModelInfo | None) -> str:
    """The method that a draft is for: by its file, else by its name."""
    if draft is not None:
        return METHOD_OF_KIND.get(draft.kind, "draft-simple")
    said = parsed.text("-md") or parsed.text("-hfd") or ""
    name = re.split(r"[/\\]", said.lower())[-1]
    return next((m for pattern, m in _BY_NAME if re.search(pattern, name)), "draft-simple")


def _no_type(parsed: ParsedCommand, draft: ModelInfo | None) -> Iterator[Finding]:
    """-md that does nothing: --spec-type defaults to none (llama.cpp PR 23988)."""
    if not parsed.has_draft or parsed.incomplete or parsed.caps.flavour != MAINLINE:
        return
    use = parsed.draft_uses[-1] if parsed.draft_uses else None
    shown = parsed.show(use) if use is not None else parsed.draft_variable
    if parsed.has_types:
        if parsed.given_types and not parsed.types:
            yield Finding(
                "draft-unused",
                NOTHING,
                shown,
                "--spec-type none: the draft is named, and nothing drafts",
                "name a method, or take the draft out",
            )
        elif parsed.types and not parsed.draft_types and not parsed.drafts_without_type:
            yield _beside_ngrams(parsed, shown, draft)
        return
    if "draft-simple" not in parsed.caps.spec_types and "draft" not in parsed.caps.spec_types:
        return  # there -md alone is the way
    if parsed.caps.at_least >= SNIFFS and draft is not None and draft.kind in _SNIFFED:
        return
    words = spec_type([method_of(parsed, draft)], parsed.caps)
    unasked = parsed.drafts_without_type
    yield Finding(
        "no-spec-type",
        WORSE if unasked else NOTHING,
        shown,
        "this build drafts with a warning; from b9464 on the same line does nothing"
        if unasked
        else "a draft alone does nothing from b9464 on: --spec-type defaults to none, and "
        f"llama-server does not say so{_unless(parsed)}",
        " ".join(words) or "use another build",
        _added(parsed, use, words),
    )


def _beside_ngrams(parsed: ParsedCommand, shown: str, draft: ModelInfo | None) -> Finding:
    types = (*parsed.types, method_of(parsed, draft))
    return Finding(
        "draft-unused",
        NOTHING,
        shown,
        "only n-gram methods are named: the draft is loaded, and does not draft",
        f"--spec-type {','.join(types)}",
        retyped(parsed, types) if parsed.all("--spec-type") else (),
    )


def _unless(parsed: ParsedCommand) -> str:
    """A repository's sidecar is used by its name (arg.cpp, b10103)."""
    only_repo = bool(parsed.text("-hfd")) and not parsed.text("-md")
    return " (unless the repository holds a sidecar)" if only_repo else ""


def _added(parsed: ParsedCommand, use: OptionUse | None, words: tuple[str, ...]) -> Edits:
    """--spec-type behind the draft, or at the end of the arguments, where there are any."""
    if words and use is not None:
        return (insert_after(use, *words),)
    number = len(parsed.command.words)
    return (WordEdit(number, 0, words),) if words and number else ()


def _no_draft(parsed: ParsedCommand, target: ModelInfo | None) -> Iterator[Finding]:
    """Methods whose draft is not named, or whose head is not in the target."""
    if (
        parsed.has_draft
        or parsed.incomplete
        or parsed.caps.flavour != MAINLINE
        or not parsed.all("--spec-type")
    ):
        return
    from_hub = bool(parsed.all("-hf"))  # a sidecar of the repository is found by its name
    for method in parsed.draft_types:
        kept = tuple(t for t in parsed.types if t != method)
        if method == "draft-mtp":
            if target is None or (found := own_head_verdict(target, parsed.caps)).ok:
                continue
            if found.rule == "engine":
                continue
            happens, effect = f"{found.detail} ({found.rule}): llama-server ends", ENDS
        elif method in _NEED_A_FILE and not (from_hub and method != "draft-simple"):
            happens = "no draft is named (-md): it serves, and drafts nothing"
            effect = NOTHING
        else:
            continue
        yield Finding(
            "no-draft",
            effect,
            f"--spec-type {method}",
            happens,
            "`specllama pick-draft` finds a draft; without one take the method out",
            retyped(parsed, kept),
        )


def _target(parsed: ParsedCommand, target: ModelInfo) -> Iterator[Finding]:
    shown = f"-m {Path(target.path).name}"
    fault = refusal(target, parsed.caps)
    if fault is not None and not parsed.all("--override-kv"):  # which may mend it
        yield Finding(
            "refused-file", ENDS, shown, f"{fault.detail} ({fault.rule})", "get another conversion"
        )
    elif target.kind == "embedding" and parsed.speculates:
        yield Finding(
            "nothing-to-draft",
            NOTHING,
            shown,
            "the model only embeds: there is nothing to draft",
            "take the speculation out",
        )
    elif target.kind not in ("model", "embedding"):
        yield Finding(
            "not-a-target",
            ENDS,
            shown,
            f"a file of the kind {target.kind} belongs to a model and cannot be served",
            "name the model with -m, and this file with -md where it drafts",
        )


def _one_file(parsed: ParsedCommand, target: ModelInfo | None, draft: ModelInfo | None) -> bool:
    """Whether target and draft are one file, by whatever names."""
    if target is not None and draft is not None:
        return os.path.samefile(target.path, draft.path)
    names = parsed.text("-m"), parsed.text("-md")
    return all(names) and len({os.path.normpath(str(n)) for n in names}) == 1


def _same(parsed: ParsedCommand, target: ModelInfo | None) -> Finding:
    found = _misfit(parsed, "", None)
    happens = "the draft is the target: drafting costs more than it saves"
    if (
        "draft-mtp" in parsed.types
        and target is not None
        and own_head_verdict(target, parsed.caps).ok
    ):
        happens = "the head is in the target, which is loaded twice: draft-mtp needs no -md then"
        edits = tuple(remove_option(u) for u in parsed.all("-md"))
        found = replace(found, fix="take -md out", edits=edits)
    return replace(found, rule="draft-is-target", effect=WORSE, happens=happens)


def _misfit(parsed: ParsedCommand, why: str, draft: ModelInfo | None) -> Finding:
    """The draft goes, and with it the methods that need it."""
    dies = draft is not None and draft.kind != "model"
    kept = tuple(t for t in parsed.types if not t.startswith("draft-"))
    edits = [remove_option(u) for u in parsed.all("-md")]
    in_arguments = bool(edits)
    if parsed.all("--spec-type"):
        edits += [e for e in retyped(parsed, kept) if isinstance(e, WordEdit)]
    return Finding(
        "misfit",
        ENDS if dies else NOTHING,
        f"-md {parsed.text('-md')}",
        f"{why}: " + ("llama-server may end" if dies else "it serves without drafting"),
        "`specllama pick-draft` finds one that fits; this one goes",
        tuple(edits) if in_arguments else (),
    )


def _swapped(parsed: ParsedCommand, target: ModelInfo, draft: ModelInfo) -> Finding:
    big, small = _value_index(parsed, "-md"), _value_index(parsed, "-m")
    return Finding(
        "swapped",
        WORSE,
        f"-m {target.path.name} -md {draft.path.name}",
        "the draft is larger than the target: every token takes longer than without it",
        "exchange them",
        (WordEdit(small, 1, (big,)), WordEdit(big, 1, (small,))) if big >= 0 and small >= 0 else (),
    )


def _wrong_type(parsed: ParsedCommand, draft: ModelInfo) -> Iterator[Finding]:
    method = METHOD_OF_KIND[draft.kind]
    if not parsed.draft_types or method in parsed.draft_types or not parsed.all("--spec-type"):
        return
    types = tuple(method if t == parsed.draft_types[0] else t for t in parsed.types)
    yield Finding(
        "wrong-spec-type",
        ENDS,
        f"--spec-type {parsed.draft_types[0]}",
        f"{draft.path.name} is of the kind {draft.kind}: it drafts with {method} only",
        f"--spec-type {','.join(types)}",
        retyped(parsed, types),
    )
