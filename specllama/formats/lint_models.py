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
    after,
    remove,
    spec_type,
)
from specllama.formats.found import TextEdit
from specllama.formats.lint_types import retyped
from specllama.formats.seen import OptionUse, ParsedCommand
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


def findings(seen: ParsedCommand, models: Models) -> Iterator[Finding]:
    try:
        target, draft = _model(seen, models, "-m"), _model(seen, models, "-md")
    except GgufError as e:
        yield Finding("refused-file", ENDS, e.message.split(":")[0], e.message, "get it again")
        return
    yield from _no_type(seen, draft)
    yield from _no_draft(seen, target)
    if target is not None:
        yield from _target(seen, target)
    if not _draft_counts(seen):
        return
    if _one_file(seen, target, draft):
        yield _same(seen, target)
        return
    if target is None or draft is None:
        return
    if not (found := verdict(target, draft, seen.caps)).ok:
        yield _misfit(seen, f"{found.detail} ({found.rule})", draft)
    elif draft.kind == "model" and draft.file_bytes > target.file_bytes:
        yield _swapped(seen, target, draft)
    else:
        yield from _wrong_type(seen, draft)


def _at(seen: ParsedCommand, name: str) -> int:
    use = seen.last(name)
    return use.values[0] if use is not None and use.values else -1


def _model(seen: ParsedCommand, models: Models, name: str) -> ModelInfo | None:
    text = seen.text(name)
    return models(text) if text else None


def _draft_counts(seen: ParsedCommand) -> bool:
    return seen.caps.flavour != MAINLINE or bool(seen.draft_types) or not seen.has_types


def method_of(seen: ParsedCommand, draft: ModelInfo | None) -> str:
    """The method that a draft is for: by its file, else by its name."""
    if draft is not None:
        return METHOD_OF_KIND.get(draft.kind, "draft-simple")
    said = seen.text("-md") or seen.text("-hfd") or ""
    name = re.split(r"[/\\]", said.lower())[-1]
    return next((m for pattern, m in _BY_NAME if re.search(pattern, name)), "draft-simple")


def _no_type(seen: ParsedCommand, draft: ModelInfo | None) -> Iterator[Finding]:
    """-md that does nothing: --spec-type defaults to none (llama.cpp PR 23988)."""
    if not seen.has_draft or seen.open or seen.caps.flavour != MAINLINE:
        return
    use = seen.draft_uses[-1] if seen.draft_uses else None
    shown = seen.show(use) if use is not None else seen.draft_variable
    if seen.has_types:
        if seen.given_types and not seen.types:
            yield Finding(
                "draft-unused",
                NOTHING,
                shown,
                "--spec-type none: the draft is named, and nothing drafts",
                "name a method, or take the draft out",
            )
        elif seen.types and not seen.draft_types and not seen.drafts_unasked:
            yield _beside_ngrams(seen, shown, draft)
        return
    if "draft-simple" not in seen.caps.spec_types and "draft" not in seen.caps.spec_types:
        return  # there -md alone is the way
    if seen.caps.at_least >= SNIFFS and draft is not None and draft.kind in _SNIFFED:
        return
    words = spec_type([method_of(seen, draft)], seen.caps)
    unasked = seen.drafts_unasked
    yield Finding(
        "no-spec-type",
        WORSE if unasked else NOTHING,
        shown,
        "this build drafts with a warning; from b9464 on the same line does nothing"
        if unasked
        else "a draft alone does nothing from b9464 on: --spec-type defaults to none, and "
        f"llama-server does not say so{_unless(seen)}",
        " ".join(words) or "use another build",
        _added(seen, use, words),
    )


def _beside_ngrams(seen: ParsedCommand, shown: str, draft: ModelInfo | None) -> Finding:
    types = (*seen.types, method_of(seen, draft))
    return Finding(
        "draft-unused",
        NOTHING,
        shown,
        "only n-gram methods are named: the draft is loaded, and does not draft",
        f"--spec-type {','.join(types)}",
        retyped(seen, types) if seen.all("--spec-type") else (),
    )


def _unless(seen: ParsedCommand) -> str:
    """A repository's sidecar is used by its name (arg.cpp, b10103)."""
    only_repo = bool(seen.text("-hfd")) and not seen.text("-md")
    return " (unless the repository holds a sidecar)" if only_repo else ""


def _added(seen: ParsedCommand, use: OptionUse | None, words: tuple[str, ...]) -> Edits:
    """--spec-type behind the draft, or at the end of the arguments, where there are any."""
    if words and use is not None:
        return (after(use, *words),)
    number = len(seen.command.words)
    return (TextEdit(number, 0, words),) if words and number else ()


def _no_draft(seen: ParsedCommand, target: ModelInfo | None) -> Iterator[Finding]:
    """Methods whose draft is not named, or whose head is not in the target."""
    if seen.has_draft or seen.open or seen.caps.flavour != MAINLINE or not seen.all("--spec-type"):
        return
    from_hub = bool(seen.all("-hf"))  # a sidecar of the repository is found by its name
    for method in seen.draft_types:
        kept = tuple(t for t in seen.types if t != method)
        if method == "draft-mtp":
            if target is None or (found := own_head_verdict(target, seen.caps)).ok:
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
            retyped(seen, kept),
        )


def _target(seen: ParsedCommand, target: ModelInfo) -> Iterator[Finding]:
    shown = f"-m {Path(target.path).name}"
    fault = refusal(target, seen.caps)
    if fault is not None and not seen.all("--override-kv"):  # which may mend it
        yield Finding(
            "refused-file", ENDS, shown, f"{fault.detail} ({fault.rule})", "get another conversion"
        )
    elif target.kind == "embedding" and seen.speculates:
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


def _one_file(seen: ParsedCommand, target: ModelInfo | None, draft: ModelInfo | None) -> bool:
    """Whether target and draft are one file, by whatever names."""
    if target is not None and draft is not None:
        return os.path.samefile(target.path, draft.path)
    names = seen.text("-m"), seen.text("-md")
    return all(names) and len({os.path.normpath(str(n)) for n in names}) == 1


def _same(seen: ParsedCommand, target: ModelInfo | None) -> Finding:
    found = _misfit(seen, "", None)
    happens = "the draft is the target: drafting costs more than it saves"
    if "draft-mtp" in seen.types and target is not None and own_head_verdict(target, seen.caps).ok:
        happens = "the head is in the target, which is loaded twice: draft-mtp needs no -md then"
        edits = tuple(remove(u) for u in seen.all("-md"))
        found = replace(found, fix="take -md out", edits=edits)
    return replace(found, rule="draft-is-target", effect=WORSE, happens=happens)


def _misfit(seen: ParsedCommand, why: str, draft: ModelInfo | None) -> Finding:
    """The draft goes, and with it the methods that need it."""
    dies = draft is not None and draft.kind != "model"
    kept = tuple(t for t in seen.types if not t.startswith("draft-"))
    edits = [remove(u) for u in seen.all("-md")]
    in_arguments = bool(edits)
    if seen.all("--spec-type"):
        edits += [e for e in retyped(seen, kept) if isinstance(e, TextEdit)]
    return Finding(
        "misfit",
        ENDS if dies else NOTHING,
        f"-md {seen.text('-md')}",
        f"{why}: " + ("llama-server may end" if dies else "it serves without drafting"),
        "`specllama pick-draft` finds one that fits; this one goes",
        tuple(edits) if in_arguments else (),
    )


def _swapped(seen: ParsedCommand, target: ModelInfo, draft: ModelInfo) -> Finding:
    big, small = _at(seen, "-md"), _at(seen, "-m")
    return Finding(
        "swapped",
        WORSE,
        f"-m {target.path.name} -md {draft.path.name}",
        "the draft is larger than the target: every token takes longer than without it",
        "exchange them",
        (TextEdit(small, 1, (big,)), TextEdit(big, 1, (small,))) if big >= 0 and small >= 0 else (),
    )


def _wrong_type(seen: ParsedCommand, draft: ModelInfo) -> Iterator[Finding]:
    method = METHOD_OF_KIND[draft.kind]
    if not seen.draft_types or method in seen.draft_types or not seen.all("--spec-type"):
        return
    types = tuple(method if t == seen.draft_types[0] else t for t in seen.types)
    yield Finding(
        "wrong-spec-type",
        ENDS,
        f"--spec-type {seen.draft_types[0]}",
        f"{draft.path.name} is of the kind {draft.kind}: it drafts with {method} only",
        f"--spec-type {','.join(types)}",
        retyped(seen, types),
    )
