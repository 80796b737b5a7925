"""SGLang's configuration file, for `sglang serve --config FILE`."""

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
    check_tensor_parallel,
    configuration,
    engine_request,
    open_note,
)

_ALGORITHMS = {
    SMALL: "STANDALONE",
    MTP: "NEXTN",
    EAGLE3: "EAGLE3",
    DFLASH: "DFLASH",
    DSPARK: "DSPARK",
    NGRAM: "NGRAM",
    SUFFIX: "NGRAM",
}
_ONE_STAGE = (DFLASH, DSPARK)  # refuse pp above 1 (0.5.23, arg_groups/speculative_hook.py:319, 713)


def write(decision: Decision) -> WrittenFiles:
    """The file, and the start command for each machine."""
    config, notes = configured(decision)
    notes = (*_start(decision, str(config["model-path"])), *notes)
    return configuration(decision, "SGLang", config, notes)


def configured(decision: Decision) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(configuration, notes). Raises FormatError."""
    a = engine_request(decision)
    settings = decision.plan.settings
    config: dict[str, Any] = {
        "model-path": a.target,
        "served-model-name": decision.name,
        "host": settings.host,
        "port": settings.port,
        "enable-metrics": True,
    }
    if a.context:
        config["context-length"] = a.context
    if a.requests > 1:
        config["max-running-requests"] = a.requests
    tp, pp = (a.tp * a.pp, 1) if a.kind in _ONE_STAGE else (a.tp, a.pp)
    check_tensor_parallel(decision, tp)
    config |= {"tp-size": tp} if tp > 1 else {}
    config |= {"pp-size": pp} if pp > 1 else {}
    config |= {"nnodes": a.nodes} if a.nodes > 1 else {}
    notes = a.notes
    if a.kind:
        options, more = _speculation(a)
        config |= options
        notes = (*more, *notes)
    return config, (*notes, *open_note(decision))


def _speculation(a: EngineRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    if a.copies:
        raise FormatError(
            "SGLang cannot combine a draft with n-grams",
            "Choose one of them: --method mtp, draft, … or ngram-simple.",
        )
    if a.parallel:
        raise FormatError(
            f"SGLang supports no parallel drafts except DFlash and DSpark: {a.draft}",
            "Use --format vllm.",
        )
    if a.kind == SMALL and not a.same_tokens:
        raise FormatError(
            "SGLang requires a draft model with the target's vocabulary, and this one differs",
            "Use a draft of the same family and vocabulary size, or --format vllm.",
        )
    out: dict[str, Any] = {"speculative-algorithm": _ALGORITHMS[a.kind]}
    if a.draft:
        out["speculative-draft-model-path"] = a.draft
    if a.kind in (NGRAM, SUFFIX):
        out["speculative-num-draft-tokens"] = a.k + 1
        if a.ngram is not None:
            out["speculative-ngram-max-trie-depth"] = max(18, a.ngram.n + 1)
        return out, ("NGRAM is SGLang's closest match for llama.cpp's n-gram types",)
    if a.kind == DSPARK:
        return out | {"speculative-dspark-block-size": a.k}, ()
    if a.kind == DFLASH:
        return out, ("SGLang takes the draft length from the DFlash checkpoint (its block size)",)
    # all three: with the steps alone SGLang fails its page size check
    out |= {
        "speculative-num-steps": a.k,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": a.k + 1,
    }
    if a.kind == MTP and not a.draft:
        return out, (f"{a.target} must include the MTP head; not every copy of a model does",)
    return out, ()


def _start(decision: Decision, model: str) -> tuple[str, ...]:
    """`sglang serve` needs the model on the command line: it checks it before it reads the file."""
    nodes, start = (
        decision.deployment.nodes,
        f"sglang serve --model-path {model} --config FILE.yaml",
    )
    if decision.plan.settings.api_key:
        start += ' --api-key "$SGLANG_API_KEY"'
    if nodes == 1:
        return (start,)
    return (
        f"on each machine: {start} --node-rank N --dist-init-addr FIRST:20000, "
        f"N = 0 to {nodes - 1}, FIRST = the address of machine 0",
        UNENCRYPTED,
    )
