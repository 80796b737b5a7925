"""Whether a file can draft for a target: llama.cpp's rules, checked before loading.

For draft-simple: `common_speculative_are_compatible` (llama.cpp, common/speculative.cpp,
b9113…b11434); the server itself only logs one line and serves on without speculation.
For sidecars, llama.cpp checks little or fails with an assertion, so these rules are stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specllama.drafts.checkpoints import NO_P_EAGLE, P_EAGLE, P_EAGLE_IN_VLLM
from specllama.engine.build_facts import (
    HOOKED_ARCHITECTURES,
    LAST_OUTPUT_FOR_DFLASH,
    LAST_OUTPUT_FOR_EAGLE3,
    MTP_ARCHITECTURES,
)
from specllama.engine.capabilities import Capabilities, Tristate
from specllama.engine.command import unsupported_reason
from specllama.engine.loading import refusal
from specllama.gguf import ModelInfo, Vocabulary, file_of_kind

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID

DFLASH_BLOCK = 16  # tokens, where the file does not say (speculative.cpp, b11434)
BLOCK_METHODS = ("draft-dflash", "draft-dspark")  # draft a whole block in one pass

# The method for each kind of draft file.
METHOD_OF_KIND: Mapping[str, str] = {
    "model": "draft-simple",
    "mtp-head": "draft-mtp",
    "gemma4-assistant": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}


@dataclass(frozen=True)
class Compatibility:
    """`ok`, or the failed `rule` with its `detail` for the user."""

    ok: bool
    rule: str = ""
    detail: str = ""
    token_id: int | None = None


OK = Compatibility(True)


def _no(rule: str, detail: str) -> Compatibility:
    return Compatibility(False, rule, detail)


def check_compatibility(
    target: ModelInfo, draft: ModelInfo, caps: Capabilities | None = None
) -> Compatibility:
    """Whether `draft`, with the method of its kind, can draft for `target`; with `caps`, on that build."""
    method = METHOD_OF_KIND.get(draft.kind)
    if draft.kind == P_EAGLE:
        return _no("P-EAGLE", f"{NO_P_EAGLE}. {P_EAGLE_IN_VLLM}")
    if method is None:
        return _no("kind", f"{file_of_kind(draft.kind)} cannot draft")
    if caps is not None and (reason := unsupported_reason(caps, method)):
        return _no("engine", reason)
    if not draft.tensors:
        return _no("tensors", "the file contains no tensors")
    if (fault := refusal(draft, caps)) is not None:
        return _no(fault.rule, fault.detail)
    rules: Mapping[str, Callable[[ModelInfo, ModelInfo], Compatibility]] = {
        "model": vocabulary_verdict,
        "mtp-head": _mtp_head,
        "gemma4-assistant": _gemma4_assistant,
        "eagle3": _eagle3,
        "dflash": _dflash,
        "dspark": _dflash,
    }
    found = rules[draft.kind](target, draft)
    if found.ok and method == "draft-mtp":
        return graph_verdict(target, caps)
    return found


def longest_draft(method: str, drafter: ModelInfo) -> int | None:
    """The longest K that the drafter (the target, for its own head) was trained for; llama.cpp
    clamps to it (speculative.cpp, b11434). None = no limit."""
    if method == "draft-mtp" and drafter.mtp_heads > 1:
        return drafter.mtp_heads
    if method in BLOCK_METHODS:
        block = drafter.sidecar.block_size or DFLASH_BLOCK
        anchored = drafter.kind == "dspark" and drafter.sidecar.sample_from_anchor
        return block if anchored else block - 1
    return None


def own_head_verdict(target: ModelInfo, caps: Capabilities | None = None) -> Compatibility:
    """Whether the target's own MTP head can draft: key and tensors, graph, build."""
    if not target.mtp_heads and not target.mtp_tensors:
        return _no("no head", "no MTP head in the target")
    if not target.mtp_tensors:
        return _no(
            "MTP tensors",
            "the metadata declares an MTP head, but the file has no MTP tensors",
        )
    if not target.mtp_heads:
        return _no(
            "MTP key",
            "the file has MTP tensors, but the metadata key that declares them is missing",
        )
    if caps is not None and (reason := unsupported_reason(caps, "draft-mtp")):
        return _no("engine", reason)
    return graph_verdict(target, caps)


def graph_verdict(target: ModelInfo, caps: Capabilities | None) -> Compatibility:
    """Whether llama.cpp (this build of it) runs an MTP head for the target's architecture."""
    arch = target.architecture
    first = MTP_ARCHITECTURES.get(arch)
    if caps is not None and caps.mtp_graph(arch) is not Tristate.NO:
        return OK
    if first is None:
        return _no("MTP graph", f"llama.cpp has no MTP graph for {arch}")
    if caps is None:
        return OK
    return _no(
        "MTP graph", f"{caps.label} does not support {arch}'s MTP head; it needs build ≥ b{first}"
    )


def _mtp_head(target: ModelInfo, head: ModelInfo) -> Compatibility:
    """The architecture decides the graph; the width is a hard assertion (n_embd_out)."""
    if head.architecture != target.architecture:
        return _no(
            "architecture",
            f"the head is for {head.architecture}; the target is {target.architecture}",
        )
    if head.embedding_length != target.embedding_length:
        return _width(head.embedding_length, target)
    return _same_vocabulary(target, head)


def _gemma4_assistant(target: ModelInfo, head: ModelInfo) -> Compatibility:
    if target.architecture != "gemma4":
        return _no(
            "architecture",
            f"a gemma4-assistant only drafts for gemma4 targets; this one is {target.architecture}",
        )
    if head.embedding_length_out != target.embedding_length:
        return _width(head.embedding_length_out, target)
    return _same_vocabulary(target, head)


def _eagle3(target: ModelInfo, draft: ModelInfo) -> Compatibility:
    if len(draft.sidecar.target_layers) != 3:
        return _no(
            "target layers",
            f"EAGLE-3 needs exactly 3 target layers; the file lists {len(draft.sidecar.target_layers)}",
        )
    if draft.sidecar.target_hidden_size != target.embedding_length:
        return _width(draft.sidecar.target_hidden_size, target)
    return _reads_layers(target, draft)


def _dflash(target: ModelInfo, draft: ModelInfo) -> Compatibility:
    if not draft.sidecar.target_layers:
        return _no("target layers", "the file lists no target layers")
    if draft.embedding_length != target.embedding_length:
        return _width(draft.embedding_length, target)
    if draft.kind == "dspark" and not draft.sidecar.block_size:
        return _no(
            "block size", "the DSpark file does not specify its block size"
        )  # an assertion in llama.cpp
    if draft.vocabulary is None:
        return _without_tokenizer(draft)
    # otherwise, the first draft would crash the server
    if not 0 <= draft.sidecar.mask_token < draft.vocabulary.n_tokens:
        return _no("mask token", "the file has no valid mask token (tokenizer.ggml.mask_token_id)")
    return _reads_layers(target, draft)


def _reads_layers(target: ModelInfo, draft: ModelInfo) -> Compatibility:
    """The rules for all drafters that read the target's layers."""
    arch, layers = target.architecture, draft.sidecar.target_layers
    outside = [i for i in layers if not 0 <= i <= target.layers]
    if outside:
        return _no(
            "target layers",
            f"it reads target layer {outside[0]}, but the target has {target.layers} layers: "
            "it was trained for a deeper model",
        )
    if arch not in HOOKED_ARCHITECTURES:
        return _no("architecture", f"llama.cpp does not expose {arch}'s layers to drafters")
    exposed = LAST_OUTPUT_FOR_EAGLE3 if draft.kind == "eagle3" else LAST_OUTPUT_FOR_DFLASH
    if target.layers in layers and arch not in exposed:
        return _no(
            "target layers",
            f"it reads the output of the target's last layer (id {target.layers}), which llama.cpp "
            f"does not expose for {arch}; use a drafter trained on earlier layers",
        )
    return _same_vocabulary(target, draft)


def _width(got: int, target: ModelInfo) -> Compatibility:
    return _no(
        "hidden size", f"it expects hidden size {got}; the target's is {target.embedding_length}"
    )


def _same_vocabulary(target: ModelInfo, draft: ModelInfo) -> Compatibility:
    """For drafters trained for one target: the same number of tokens with the same texts."""
    a, b = target.vocabulary, draft.vocabulary
    if a is not None and b is not None and a.n_tokens != b.n_tokens:
        return _no("vocabulary size", f"target {a.n_tokens} tokens, draft {b.n_tokens}")
    return vocabulary_verdict(target, draft)


def vocabulary_verdict(target: ModelInfo, draft: ModelInfo) -> Compatibility:
    """llama.cpp's vocabulary rule, with the failing part named."""
    a, b = target.vocabulary, draft.vocabulary
    if a is None or b is None:
        return _without_tokenizer(target if a is None else draft)
    if a.type != b.type:
        return _no("vocabulary type", f"target {a.type}, draft {b.type}")
    for which, adds, ids in (
        ("bos", (a.add_bos, b.add_bos), (a.bos_id, b.bos_id)),
        ("eos", (a.add_eos, b.add_eos), (a.eos_id, b.eos_id)),
    ):
        if adds[0] != adds[1]:
            return _no(f"add_{which}", f"target {_yes(adds[0])}, draft {_yes(adds[1])}")
        if adds[0] and ids[0] != ids[1]:
            return _no(f"{which} id", f"target {ids[0]}, draft {ids[1]}")
    if abs(a.n_tokens - b.n_tokens) > MAX_SIZE_DIFFERENCE:
        return _no(
            "vocabulary size",
            f"target {a.n_tokens} tokens, draft {b.n_tokens}; "
            f"they may differ by at most {MAX_SIZE_DIFFERENCE}",
        )
    return OK if a.fingerprint == b.fingerprint else _tokens_verdict(a, b)


def _without_tokenizer(model: ModelInfo) -> Compatibility:
    return _no("vocabulary missing", f"{model.title} has no tokenizer")


def _tokens_verdict(a: Vocabulary, b: Vocabulary) -> Compatibility:
    shared = min(a.n_tokens, b.n_tokens)
    ours, theirs = a.tokens, b.tokens
    for i in range(FIRST_CHECKED_ID, shared):
        if ours[i] != theirs[i] and _c_string(ours[i]) != _c_string(theirs[i]):
            return Compatibility(
                False,
                "token text",
                f"token {i} is {_show(ours[i])} in the target and {_show(theirs[i])} in the draft",
                token_id=i,
            )
    return OK


def _c_string(token: bytes) -> bytes:
    """llama.cpp compares with strcmp, which ends at a NUL byte."""
    return token.split(b"\0", 1)[0]


def _show(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))


def _yes(value: bool) -> str:
    return "adds it" if value else "does not"
