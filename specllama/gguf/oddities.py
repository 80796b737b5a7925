"""Warnings about a model file, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.gguf.model import ModelInfo


def oddities(m: ModelInfo) -> Iterator[str]:
    """Properties that may cause surprises later."""
    if m.mtp_heads and not m.mtp_tensors:
        yield "its header declares an MTP head, but the head's tensors are missing"
    if m.mtp_tensors and not m.mtp_heads:
        yield "it has MTP tensors that its header does not declare: llama.cpp ignores them"
    if m.has_mtp_head and 0 < m.mtp_bits < 4:
        yield f"its MTP head is quantised to {m.mtp_bits:.1f} bits and may draft poorly"
    if m.kind == "eagle3" and not m.tensors:
        yield "an EAGLE-3 file without tensors: a broken conversion"
    if m.kind in ("model", "mtp-head") and m.vocabulary is None:
        yield "no tokenizer in the file"
    if m.kind == "model" and not m.has_chat_template:
        yield "no chat template: a base model, or the template was lost in conversion"
    if m.kind == "model" and m.context_length is None:
        yield "no context length in the file"
    if m.kind == "model" and not m.names.name:
        yield "no model name in the file"
    if m.kind == "unknown":
        yield "no general.architecture: not a llama.cpp model, or part of a split one"
    if m.architecture == "gemma4_assistant":
        yield "an old conversion of a Gemma 4 assistant: download it again or convert it again"
