"""Known weaknesses of a compatible draft: warnings, never a reason to reject it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.gguf import ModelInfo
from specllama.gguf.architectures import ROLLBACK

_LARGE_SHARE = 0.1  # of the target's bytes; larger drafts rarely pay off
_FEW_BITS = 4.0  # below that, heads were observed to draft nothing (GSQ issue 11: 0 of 3595)
_INSTRUCT = re.compile(r"(?:^|[-_. ])(instruct|it|chat|thinking|rl|sft|dpo)(?:$|[-_. ])", re.I)
_BASE = re.compile(r"(?:^|[-_. ])(base|pt|pretrained)(?:$|[-_. ])", re.I)


def warnings(target: ModelInfo, method: str, draft: ModelInfo | None) -> Iterator[str]:
    """One line each. `draft` None = the target's own head, or an n-gram method."""
    if method == "draft-simple" and draft is not None:
        share = draft.active_bytes / max(1, target.active_bytes)
        if share >= 1:
            yield (
                f"the draft reads {share:.0%} of the target's bytes per token, so it cannot pay off; "
                "are target and draft swapped?"
            )
        elif share > _LARGE_SHARE:
            yield f"the draft reads {share:.0%} of the target's bytes per token; over 10% rarely pays off"
        if _tuned_otherwise(target, draft):
            yield "target and draft are not both instruct-tuned: expect a lower α"
        elif target.template_hash and draft.template_hash != target.template_hash:
            yield "target and draft have different chat templates: expect a lower α"
    head = draft if draft is not None else target
    if method == "draft-mtp" and 0 < head.mtp_bits < _FEW_BITS:
        yield f"the head is quantised to {head.mtp_bits:.1f} bits: it may draft badly or not at all"
    if draft is not None and not draft.stops_when_unsure:
        yield "it has no confidence head: p_min is set to 0, the only value that llama.cpp supports with it"
    if target.memory != "attention":
        if target.architecture not in ROLLBACK or method in ("draft-simple",) or _is_ngram(method):
            yield (
                f"{target.architecture} has {target.memory} state, which is restored and replayed "
                "after each rejection: often slower than plain decoding"
            )
        else:
            yield f"{target.architecture} has recurrent state: memory use grows with K"


def _is_ngram(method: str) -> bool:
    return method.startswith("ngram-")


def _tuned_otherwise(a: ModelInfo, b: ModelInfo) -> bool:
    """Whether only one of them is instruct-tuned, by metadata. If both have a chat template, both are
    tuned. File names only count if the metadata says nothing."""
    tuned = _by_metadata(a), _by_metadata(b)
    if None not in tuned:
        return tuned[0] != tuned[1]
    if a.has_chat_template and b.has_chat_template:
        return False
    return _by_any_name(a) != _by_any_name(b)


def _by_metadata(m: ModelInfo) -> bool | None:
    verdicts = (_by_words(text) for text in (m.names.finetune, m.names.name, m.names.basename))
    return next((v for v in verdicts if v is not None), None)


def _by_any_name(m: ModelInfo) -> bool:
    """By metadata, else by file name; a base model rarely says so in its name."""
    tuned = _by_metadata(m)
    return bool(_by_words(m.path.stem) if tuned is None else tuned)


def _by_words(text: str) -> bool | None:
    """True = instruct-tuned, False = a base model, None = unknown."""
    if _INSTRUCT.search(text):
        return True
    return False if _BASE.search(text) else None
