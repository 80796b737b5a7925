"""Whether a command line's target and draft fit: by the files if they exist, otherwise by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from specllama.drafts.compat import METHOD_OF_KIND, check_compatibility, own_head_verdict
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
from specllama.gguf import GgufError, ModelInfo, file_of_kind

# Reads a model file; None if it does not exist. Raises GgufError for one that is not GGUF.
Models = Callable[[str], ModelInfo | None]

SNIFFS = 10423  # first build that detects a sidecar's type from the file (arg.cpp)
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
        yield Finding("refused-file", ENDS, e.message.split(":")[0], e.message, "download it again")
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
    if not (found := check_compatibility(target, draft, parsed.caps)).ok:
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
    """The method for a draft: by its file, otherwise by its name."""
    if draft is not None:
        return METHOD_OF_KIND.get(draft.kind, "draft-simple")
    path = parsed.text("-md") or parsed.text("-hfd") or ""
    name = re.split(r"[/\\]", path.lower())[-1]
    return next((m for pattern, m in _BY_NAME if re.search(pattern, name)), "draft-simple")


def _no_type(parsed: ParsedCommand, draft: ModelInfo | None) -> Iterator[Finding]:
    """-md without effect: --spec-type defaults to none (llama.cpp PR 23988)."""
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
                "--spec-type none: the draft is not used",
                "set a method, or remove the draft",
            )
        elif parsed.types and not parsed.draft_types and not parsed.drafts_without_type:
            yield _beside_ngrams(parsed, shown, draft)
        return
    if "draft-simple" not in parsed.caps.spec_types and "draft" not in parsed.caps.spec_types:
        return  # there -md alone is enough
    if parsed.caps.at_least >= SNIFFS and draft is not None and draft.kind in _SNIFFED:
        return
    words = spec_type([method_of(parsed, draft)], parsed.caps)
    drafts_anyway = parsed.drafts_without_type
    yield Finding(
        "no-spec-type",
        WORSE if drafts_anyway else NOTHING,
        shown,
        "this build drafts, with a warning; since b9464 -md alone has no effect"
        if drafts_anyway
        else "a draft alone has no effect since b9464: --spec-type defaults to none, and "
        f"llama-server prints no warning{_unless(parsed)}",
        " ".join(words) or "use another build",
        _added(parsed, use, words),
    )


def _beside_ngrams(parsed: ParsedCommand, shown: str, draft: ModelInfo | None) -> Finding:
    types = (*parsed.types, method_of(parsed, draft))
    return Finding(
        "draft-unused",
        NOTHING,
        shown,
        "only n-gram methods are set: the draft is loaded but not used",
        f"--spec-type {','.join(types)}",
        retyped(parsed, types) if parsed.all("--spec-type") else (),
    )


def _unless(parsed: ParsedCommand) -> str:
    """A repository's sidecar is found by its name (arg.cpp, b10103)."""
    only_repo = bool(parsed.text("-hfd")) and not parsed.text("-md")
    return " (unless the repository has a sidecar)" if only_repo else ""


def _added(parsed: ParsedCommand, use: OptionUse | None, words: tuple[str, ...]) -> Edits:
    """--spec-type after the draft, or at the end of the arguments if there are any."""
    if words and use is not None:
        return (insert_after(use, *words),)
    number = len(parsed.command.words)
    return (WordEdit(number, 0, words),) if words and number else ()


def _no_draft(parsed: ParsedCommand, target: ModelInfo | None) -> Iterator[Finding]:
    """Methods without a draft, or whose head is not in the target."""
    if (
        parsed.has_draft
        or parsed.incomplete
        or parsed.caps.flavour != MAINLINE
        or not parsed.all("--spec-type")
    ):
        return
    from_hub = bool(parsed.all("-hf"))  # a sidecar of the repository is found by its name
    for method in parsed.draft_types:
        others = tuple(t for t in parsed.types if t != method)
        if method == "draft-mtp":
            if target is None or (found := own_head_verdict(target, parsed.caps)).ok:
                continue
            if found.rule == "engine":
                continue
            happens, effect = f"{found.detail} ({found.rule}); llama-server exits", ENDS
        elif method in _NEED_A_FILE and not (from_hub and method != "draft-simple"):
            happens = "there is no draft (-md): llama-server serves without drafting"
            effect = NOTHING
        else:
            continue
        yield Finding(
            "no-draft",
            effect,
            f"--spec-type {method}",
            happens,
            "find a draft with `specllama pick-draft`, or remove the method",
            retyped(parsed, others),
        )


def _target(parsed: ParsedCommand, target: ModelInfo) -> Iterator[Finding]:
    shown = f"-m {Path(target.path).name}"
    fault = refusal(target, parsed.caps)
    if fault is not None and not parsed.all("--override-kv"):  # which may fix it
        yield Finding(
            "refused-file", ENDS, shown, f"{fault.detail} ({fault.rule})", "get another conversion"
        )
    elif target.kind == "embedding" and parsed.speculates:
        yield Finding(
            "nothing-to-draft",
            NOTHING,
            shown,
            "an embedding model generates nothing to draft",
            "remove the speculative options",
        )
    elif target.kind not in ("model", "embedding"):
        yield Finding(
            "not-a-target",
            ENDS,
            shown,
            f"{file_of_kind(target.kind)} is part of another model and cannot be served",
            "set the model with -m, and this file with -md if it is a draft",
        )


def _one_file(parsed: ParsedCommand, target: ModelInfo | None, draft: ModelInfo | None) -> bool:
    """Whether target and draft are the same file, also by different paths."""
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
        happens = (
            "the target already has the MTP head: draft-mtp needs no -md, which loads it twice"
        )
        edits = tuple(remove_option(u) for u in parsed.all("-md"))
        found = replace(found, fix="remove -md", edits=edits)
    return replace(found, rule="draft-is-target", effect=WORSE, happens=happens)


def _misfit(parsed: ParsedCommand, why: str, draft: ModelInfo | None) -> Finding:
    """The draft is removed, with the methods that need it."""
    may_exit = draft is not None and draft.kind != "model"
    others = tuple(t for t in parsed.types if not t.startswith("draft-"))
    edits = [remove_option(u) for u in parsed.all("-md")]
    in_arguments = bool(edits)
    if parsed.all("--spec-type"):
        edits += [e for e in retyped(parsed, others) if isinstance(e, WordEdit)]
    return Finding(
        "misfit",
        ENDS if may_exit else NOTHING,
        f"-md {parsed.text('-md')}",
        f"{why}: " + ("llama-server may exit" if may_exit else "it serves without drafting"),
        "remove it; find a compatible one with `specllama pick-draft`",
        tuple(edits) if in_arguments else (),
    )


def _swapped(parsed: ParsedCommand, target: ModelInfo, draft: ModelInfo) -> Finding:
    big, small = _value_index(parsed, "-md"), _value_index(parsed, "-m")
    return Finding(
        "swapped",
        WORSE,
        f"-m {target.path.name} -md {draft.path.name}",
        "the draft is larger than the target: every token takes longer than without it",
        "swap -m and -md",
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
        f"{draft.path.name} is {file_of_kind(draft.kind)} and drafts only with {method}",
        f"--spec-type {','.join(types)}",
        retyped(parsed, types),
    )
