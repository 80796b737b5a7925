"""What a fitting draft may still suffer from: said, never a reason to refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.gguf import ModelInfo
from specllama.gguf.architectures import ROLLBACK

_LARGE_SHARE = 0.1  # of the target's bytes; larger drafts seldom pay
_FEW_BITS = 4.0  # heads below it were seen to draft nothing (GSQ issue 11: 0 of 3595)
_INSTRUCT = re.compile(r"(?:^|[-_. ])(instruct|it|chat|thinking|rl|sft|dpo)(?:$|[-_. ])", re.I)
_BASE = re.compile(r"(?:^|[-_. ])(base|pt|pretrained)(?:$|[-_. ])", re.I)


def warnings(target: ModelInfo, method: str, draft: ModelInfo | None) -> Iterator[str]:
    """One line each. `draft` None = the target's own head, or an n-gram method."""
    if method == "draft-simple" and draft is not None:
        share = draft.active_bytes / max(1, target.active_bytes)
        if share > _LARGE_SHARE:
            yield f"the draft reads {share:.0%} of the target's bytes per token; over 10% seldom pays"
        if _tuned_otherwise(target, draft):
            yield "one is instruct-tuned and the other is not: expect a lower α"
        elif target.template_hash and draft.template_hash != target.template_hash:
            yield "their chat templates differ: expect a lower α"
    head = draft if draft is not None else target
    if method == "draft-mtp" and 0 < head.mtp_bits < _FEW_BITS:
        yield f"the head is quantised to {head.mtp_bits:.1f} bits: it may draft badly or not at all"
    if draft is not None and not draft.stops_when_unsure:
        yield "it has no confidence head: llama.cpp drafts with it at p_min 0 only, which is used"
    if target.memory != "attention":
        if target.architecture not in ROLLBACK or method in ("draft-simple",) or _is_ngram(method):
            yield (
                f"{target.architecture} keeps {target.memory} state, which is copied and replayed "
                "at each rejection: often a loss"
            )
        else:
            yield f"{target.architecture} keeps recurrent state: memory grows with K"


def _is_ngram(method: str) -> bool:
    return method.startswith("ngram-")


def _tuned_otherwise(a: ModelInfo, b: ModelInfo) -> bool:
    """Whether one is instruct-tuned and the other is not, by what the files say of themselves.
    Two chat templates speak for two tuned models; a file's name, which anybody may give it, is
    asked only where its own words say nothing."""
    own = _by_metadata(a), _by_metadata(b)
    if None not in own:
        return own[0] != own[1]
    if a.has_chat_template and b.has_chat_template:
        return False
    return _by_any_name(a) != _by_any_name(b)


def _by_metadata(m: ModelInfo) -> bool | None:
    said = (_by_words(text) for text in (m.names.finetune, m.names.name, m.names.basename))
    return next((s for s in said if s is not None), None)


def _by_any_name(m: ModelInfo) -> bool:
    """A base model's name seldom says that it is one."""
    own = _by_metadata(m)
    return bool(_by_words(m.path.stem) if own is None else own)


def _by_words(text: str) -> bool | None:
    """True = instruct-tuned, False = a base model, None = it does not say."""
    if _INSTRUCT.search(text):
        return True
    return False if _BASE.search(text) else None
