"""TensorRT-LLM's configuration file, for `trtllm-serve MODEL --config FILE`. Only fields that all
versions from 1.2 on have: the server rejects unknown ones."""

from __future__ import annotations

import shlex
from typing import Any

from specllama.formats.base import Decision, FormatError, WrittenFiles
from specllama.formats.engine_config import (
    DFLASH,
    DSPARK,
    EAGLE3,
    MTP,
    NGRAM,
    SMALL,
    SUFFIX,
    EngineRequest,
    configuration,
    engine_request,
    open_note,
)

_TYPES = {
    SMALL: "Draft_Target",
    MTP: "MTP",
    EAGLE3: "Eagle3",
    DFLASH: "DFlash",
    DSPARK: "DSpark",
    NGRAM: "NGram",
    SUFFIX: "SA",
}
_SINCE = {"DFlash": "1.3", "DSpark": "1.3.0rc27", "SA": "1.3", "PARD": "1.3"}


def write(decision: Decision) -> WrittenFiles:
    """The file, and the start command."""
    a = engine_request(decision)
    if a.nodes > 1:
        raise FormatError(
            "on several machines TensorRT-LLM is started by MPI or Slurm, which this file cannot express",
            "Use --format vllm or sglang, or one machine.",
        )
    config: dict[str, Any] = {}
    notes = a.notes
    if a.kind:
        config["speculative_config"], more = _speculation(a)
        notes = (*more, *notes)
    notes = (_start(decision, a), *notes)
    notes = (*notes, *open_note(decision))
    if decision.plan.settings.api_key:
        notes = (
            *notes,
            "the API key is left out: TensorRT-LLM has no known option for one; use a proxy",
        )
    return configuration(decision, "TensorRT-LLM", config, notes)


def _speculation(a: EngineRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    kind = _TYPES[a.kind]
    if a.parallel:
        if a.kind != SMALL:
            raise FormatError(
                f"TensorRT-LLM does not support P-EAGLE: {a.draft}", "Use --format vllm."
            )
        kind = "PARD"
    if a.kind == MTP and a.draft:
        raise FormatError(
            "TensorRT-LLM loads MTP heads only from the target's own repository",
            "Use --format vllm or sglang, or --method ngram-simple.",
        )
    if a.kind == SMALL and not a.same_tokens:
        raise FormatError(
            "TensorRT-LLM requires a draft model with the target's vocabulary, and this one differs",
            "Use a draft of the same family, or --format vllm.",
        )
    notes: tuple[str, ...] = ()
    out: dict[str, Any] = {"decoding_type": kind, "max_draft_len": a.k}
    if a.draft:
        out["speculative_model"] = a.draft
    if a.kind in (NGRAM, SUFFIX) and a.ngram is not None:
        out["max_matching_ngram_size"] = a.ngram.n
    if a.copies:
        if a.kind not in (EAGLE3, MTP) and kind != "PARD":
            raise FormatError(
                f"TensorRT-LLM cannot combine {kind} with n-grams",
                "Choose one of them with --method.",
            )
        out["sa_config"] = {"threshold": a.ngram.n if a.ngram is not None else 4}
        notes = ("sa_config (n-grams together with a draft) needs TensorRT-LLM 1.3 or later",)
    if kind in _SINCE:
        notes = (*notes, f"{kind} needs TensorRT-LLM {_SINCE[kind]} or later")
    return out, notes


def _start(decision: Decision, a: EngineRequest) -> str:
    settings = decision.plan.settings
    words = ["trtllm-serve", a.target, "--config", "FILE.yaml"]
    words += ["--host", settings.host, "--port", str(settings.port)]
    words += ["--tp_size", str(a.tp)] if a.tp > 1 else []
    words += ["--max_seq_len", str(a.context)] if a.context else []
    words += ["--max_batch_size", str(a.requests)] if a.requests > 1 else []
    return shlex.join(words)
