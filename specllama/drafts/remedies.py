"""What would fit in place of a draft that was refused, in a user's words."""

from __future__ import annotations

from specllama.drafts.families import family_of
from specllama.engine.capabilities import HOOKED_ARCHITECTURES, MTP_ARCHITECTURES
from specllama.gguf import ModelInfo

_WHAT = {
    "draft-mtp": "an MTP head",
    "draft-eagle3": "an EAGLE-3 head",
    "draft-dflash": "a DFlash drafter",
    "draft-dspark": "a DSpark drafter",
}
_READS_LAYERS = ("draft-eagle3", "draft-dflash", "draft-dspark")
# Rules of what the file is for, in contrast to what it lacks or what the build cannot do.
_OTHER_TARGET = frozenset(
    "vocabulary type|vocabulary size|token text|add_bos|add_eos|bos id|eos id|architecture|width|"
    "target layers|d2t|no file".split("|")
)
_BROKEN = frozenset(
    "block size|mask token|tensors|MTP key|vocabulary missing|key|layers|rows|tables|head size|"
    "tensor table|tokenizer|parts|array length".split("|")
)
_SHOWN = 2  # of the drafts that are known for a family


def remedy(target: ModelInfo, method: str, rule: str) -> str:
    """One sentence for a draft of `method` that failed by `rule`; "" where the reason says it."""
    if rule in _BROKEN:
        made_for = "" if method == "draft-simple" else " --target-model-dir of this target"
        return f"download it again, or convert it anew (convert_hf_to_gguf.py{made_for})"
    if rule not in _OTHER_TARGET:
        return ""
    arch = target.architecture
    if method in _READS_LAYERS and arch not in HOOKED_ARCHITECTURES:
        return f"{_fits(target, '')}, or the n-gram methods: they need nothing of {arch}'s layers"
    if method == "draft-mtp" and arch not in (*MTP_ARCHITECTURES, "gemma4"):
        trained = "an EAGLE-3, DFlash or DSpark drafter trained for this model, or "
        hooked = trained if arch in HOOKED_ARCHITECTURES else ""
        return f"llama.cpp runs no MTP head with {arch}: take {hooked}a smaller model of its family"
    return f"{_fits(target, method)}{_known(target, method)}; `specllama pick-draft {target.path.name} --hub` looks for one"


def _fits(target: ModelInfo, method: str) -> str:
    if method not in _WHAT:
        return f"take a smaller model of its family, with the same {_tokens(target)} tokens"
    return (
        f"take {_WHAT[method]} that was trained for this model (hidden size "
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
