"""What would fit instead of a rejected draft, for the user."""

from __future__ import annotations

import shlex

from specllama.drafts.families import family_of
from specllama.engine.build_facts import HOOKED_ARCHITECTURES, MTP_ARCHITECTURES
from specllama.gguf import ModelInfo

_WHAT = {
    "draft-mtp": "an MTP head",
    "draft-eagle3": "an EAGLE-3 head",
    "draft-dflash": "a DFlash drafter",
    "draft-dspark": "a DSpark drafter",
}
_READS_LAYERS = ("draft-eagle3", "draft-dflash", "draft-dspark")
# Rules that mean the file is for another target, not that it is damaged or unsupported.
_OTHER_TARGET = frozenset(
    "vocabulary type|vocabulary size|token text|add_bos|add_eos|bos id|eos id|architecture|hidden size|"
    "target layers|d2t|no file".split("|")
)
_BROKEN = frozenset(
    "block size|mask token|tensors|MTP key|vocabulary missing|key|layers|rows|tables|head size|"
    "tensor table|tokenizer|parts|array length".split("|")
)
_SHOWN = 2  # known drafts of a family


def remedy(target: ModelInfo, method: str, rule: str) -> str:
    """Advice for a draft of `method` that failed `rule`; "" if the reason already contains it."""
    if rule in _BROKEN:
        made_for = "" if method == "draft-simple" else " --target-model-dir TARGET"
        return f"download it again or reconvert it (convert_hf_to_gguf.py{made_for})"
    if rule not in _OTHER_TARGET:
        return ""
    arch = target.architecture
    if method in _READS_LAYERS and arch not in HOOKED_ARCHITECTURES:
        return f"{_fits(target, '')}, or an n-gram method, which does not read {arch}'s layers"
    if method == "draft-mtp" and arch not in MTP_ARCHITECTURES:
        trained = "an EAGLE-3, DFlash or DSpark drafter trained for this model, or "
        hooked = trained if arch in HOOKED_ARCHITECTURES else ""
        return (
            f"llama.cpp does not support MTP for {arch}: use {hooked}a smaller model of its family"
        )
    search = shlex.join(["specllama", "pick-draft", str(target.path), "--hub"])
    return f"{_fits(target, method)}{_known(target, method)}; `{search}` searches for one"


def _fits(target: ModelInfo, method: str) -> str:
    if method not in _WHAT:
        return f"use a smaller model of its family with the same {_tokens(target)} tokens"
    return (
        f"use {_WHAT[method]} trained for this model (hidden size "
        f"{target.embedding_length}, {target.layers} layers, {_tokens(target)} tokens)"
    )


def _known(target: ModelInfo, method: str) -> str:
    family = family_of(target)
    names = [
        f"{s.name}{s.where}" for s in (family.suggestions if family else ()) if s.method == method
    ]
    return f", such as {' or '.join(names[:_SHOWN])}" if names else ""


def _tokens(target: ModelInfo) -> str:
    return f"{target.vocabulary.n_tokens:,}" if target.vocabulary else "tokenizer's"
