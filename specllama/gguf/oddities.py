"""What is strange about a file, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.gguf.model import ModelInfo


def oddities(m: ModelInfo) -> Iterator[str]:
    """Things that surprise people later: said at once."""
    if m.mtp_heads and not m.mtp_tensors:
        yield "its key promises an MTP head, but the head's tensors are not in the file"
    if m.mtp_tensors and not m.mtp_heads:
        yield "it holds MTP tensors, but no key that says so: llama.cpp will not use them"
    if m.has_mtp_head and 0 < m.mtp_bits < 4:
        yield f"its MTP head is quantised to {m.mtp_bits:.1f} bits and may draft badly"
    if m.kind == "eagle3" and not m.tensors:
        yield "an EAGLE-3 file without tensors: a broken conversion"
    if m.kind in ("model", "mtp-head") and m.vocabulary is None:
        yield "no tokenizer in the file"
    if m.kind == "model" and not m.has_chat_template:
        yield "no chat template: a base model, or one was lost in conversion"
    if m.kind == "model" and m.context_length is None:
        yield "it does not say its context length"
    if m.kind == "model" and not m.names.name:
        yield "it does not say its name"
    if m.kind == "unknown":
        yield "no general.architecture: not a llama.cpp model, or a part of a split one"
    if m.architecture == "gemma4_assistant":
        yield "an old conversion of a Gemma 4 assistant: download it again or convert it anew"
