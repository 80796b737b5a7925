"""vLLM's configuration file, for `vllm serve --config FILE`."""

from __future__ import annotations

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
    UNENCRYPTED,
    EngineRequest,
    configuration,
    engine_request,
    key_note,
    record,
)

_METHODS = {
    SMALL: "draft_model",
    MTP: "mtp",
    EAGLE3: "eagle3",
    DFLASH: "dflash",
    DSPARK: "dspark",
    NGRAM: "ngram",
    SUFFIX: "suffix",
}
# In the name of a draft model or MTP head these change its type, whatever the method is
# (vllm 0.33.0, config/speculative.py:1445-1456).
_TAKEN_FOR = ("eagle-", "eagle3", "dflash", "dspark")

# Kinds that vLLM can switch off by the number of requests (docs/features/speculative_decoding/
# dynamic_speculative_decoding.md of 0.33.0: tested with these; others "may or may not work").
_STOPPED = (EAGLE3, DFLASH)


def write(decision: Decision) -> WrittenFiles:
    """The file, and the start command for each machine."""
    config, notes = configured(decision)
    notes = (*_start(decision), *notes)
    return configuration(decision, "vLLM", config, notes)


def configured(decision: Decision) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(configuration, notes). Raises FormatError."""
    a = engine_request(decision)
    settings = decision.plan.settings
    config: dict[str, Any] = {
        "model": a.target,
        "served-model-name": decision.name,
        "host": settings.host,
        "port": settings.port,
    }
    if a.context:
        config["max-model-len"] = a.context
    if a.requests > 1:  # one slot is llama.cpp's setting for a single user
        config["max-num-seqs"] = a.requests
    if a.tp > 1:
        config["tensor-parallel-size"] = a.tp
    if a.nodes > 1:
        config |= {"pipeline-parallel-size": a.pp, "nnodes": a.nodes}
    notes = a.notes
    if a.kind:
        config["speculative-config"], more = _speculation(a)
        notes = (*more, *notes)
    return config, (*notes, *key_note(decision, "VLLM_API_KEY"))


def _speculation(a: EngineRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    if a.copies:
        raise FormatError(
            "vLLM cannot combine a draft with n-grams",
            "Choose one of them: --method mtp, draft, … or ngram-simple.",
        )
    method = _METHODS[a.kind]
    wrong = next((w for w in _TAKEN_FOR if w in a.draft.lower()), None)
    if method in ("draft_model", "mtp") and wrong:
        raise FormatError(
            f"vLLM misdetects the type of {a.draft}, because its name contains {wrong!r}",
            "Copy it to a folder with another name, or use a draft of that type.",
        )
    out: dict[str, Any] = {"method": method}
    if a.draft:
        out["model"] = a.draft
    whole = a.k % a.heads if a.kind == MTP and a.k > a.heads > 0 else 0
    out["num_speculative_tokens"] = a.k - whole  # a multiple of the heads
    notes: tuple[str, ...] = ()
    if a.kind == NGRAM and a.ngram is not None:
        out |= {"prompt_lookup_max": a.ngram.n, "prompt_lookup_min": a.ngram.n}
    if a.kind == SUFFIX:
        notes = (
            "suffix is vLLM's closest match for this n-gram type; it needs `pip install arctic-inference==0.1.1`",
        )
    if a.kind == SMALL and not a.same_size:
        out["use_heterogeneous_vocab"] = True
        notes = ("the vocabularies differ in size: vLLM drafts only tokens that are in both",)
    if a.parallel and a.kind in (SMALL, EAGLE3):
        out["parallel_drafting"] = True
    limit = record("concurrency")["hardly_pays_above"]
    if a.kind in _STOPPED and a.requests > limit:
        schedule = [[1, limit, a.k], [limit + 1, a.requests, 0]]
        out["num_speculative_tokens_per_batch_size"] = schedule
        notes = (
            f"drafting stops above {limit} concurrent requests: a rule of thumb; measure your own limit",
        )
    if a.kind == MTP and not a.draft:
        notes = (f"{a.target} must include the MTP head; not every copy of a model does",)
    return out, notes


def _start(decision: Decision) -> tuple[str, ...]:
    nodes = decision.deployment.nodes
    if nodes == 1:
        return ("vllm serve --config FILE.yaml",)
    each = "vllm serve --config FILE.yaml --node-rank"
    more = f"N --master-addr FIRST --headless, N = 1 to {nodes - 1}" if nodes > 2 else ""
    return (
        f"on the first machine: {each} 0 --master-addr FIRST",
        f"on the others: {each} {more or '1 --master-addr FIRST --headless'}",
        UNENCRYPTED,
    )
