"""A decision in the terms common to vLLM, SGLang and TensorRT-LLM. They load models from Hugging
Face repositories, so each file needs the repository of the same model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specllama.config import read_toml
from specllama.drafts.families import family_of
from specllama.engine.settings import NgramSizes, Speculation
from specllama.errors import UsageError
from specllama.formats.base import Decision, FormatError, WrittenFiles, commented, yaml_text
from specllama.gguf import ModelInfo

# Kinds of drafting, whatever an engine calls them.
SMALL, MTP, EAGLE3, DFLASH, DSPARK = "draft model", "MTP", "EAGLE-3", "DFlash", "DSpark"
NGRAM, SUFFIX = "n-gram", "suffix"

_DRAFTS = {
    "draft-simple": SMALL,
    "draft-mtp": MTP,
    "draft-eagle3": EAGLE3,
    "draft-dflash": DFLASH,
    "draft-dspark": DSPARK,
}
# llama.cpp drafts only as many tokens as it copies; these engines verify the same number in every
# step, so a long copy that is rarely found makes every step slower.
MAX_NGRAM_DRAFT = 16
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ON_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#]+)/?")
# Parallel drafts (all tokens in one pass) are known by their names (amazon/…-P-EAGLE,
# amd/PARD-…); vLLM needs an option for them.
_P_EAGLE = re.compile(r"(?:^|[-_/.])p[-_]?eagle", re.I)
_PARD = re.compile(r"(?:^|[-_/.])pard(?:$|[-_.])", re.I)
UNENCRYPTED = "traffic between the machines is not encrypted: use a private network only"
_NAMED = (("eagle3", EAGLE3), ("eagle-3", EAGLE3), ("dflash", DFLASH), ("dspark", DSPARK))


@dataclass(frozen=True)
class EngineRequest:
    """Settings for another engine. `kind` "" = no speculation; `draft` "" = nothing to load;
    `parallel`: the draft predicts all its tokens in one pass; `copies`: n-grams as well.
    `context`: tokens per request, 0 = the model's own; `requests`: concurrent. `tp`, `pp`: tensor
    and pipeline parallel size, over `nodes` machines. `same_size`, `same_tokens`: of both
    vocabularies; `heads`: MTP heads of the target. `notes`: for the user, one line each."""

    target: str
    kind: str
    draft: str
    k: int
    ngram: NgramSizes | None
    parallel: bool
    copies: bool
    same_size: bool
    same_tokens: bool
    heads: int
    context: int
    requests: int
    tp: int
    pp: int
    nodes: int
    notes: tuple[str, ...]


def engine_request(decision: Decision) -> EngineRequest:
    """The decision as settings of another engine. Raises FormatError if a repository is unknown or
    the arguments after -- set the method, and UsageError for an invalid repository name."""
    plan, given = decision.plan, decision.deployment
    for option, repo in (("--target-repo", given.target_repo), ("--draft-repo", given.draft_repo)):
        if repo is not None and not _REPO.fullmatch(repo):
            raise UsageError(f"{option} {repo}: must be OWNER/NAME, as on huggingface.co")
    if plan.user.value("--spec-type") or plan.user.on("--spec-default"):
        raise FormatError(
            "--spec-type after -- is for llama-server only",
            "Set the method with --method.",
        )
    spec, notes = plan.settings.speculation, []
    target, more = _target(decision)
    notes += more
    kind = _kind(spec)
    draft, parallel, chosen_here = "", False, True
    if given.draft_repo is not None:
        draft, parallel = given.draft_repo, bool(_P_EAGLE.search(given.draft_repo))
        parallel = parallel or bool(_PARD.search(given.draft_repo))
        # otherwise it is the repository of the draft that was chosen here
        chosen_here = _loads_a_draft(decision) and not parallel
        if not chosen_here:
            off = "" if spec is not None else "; speculation is off here"
            kind, spec = _kind_of(draft), _as_draft(spec, plan.workload.n_max)
            notes.append(f"{draft} (--draft-repo) was not measured here{off}")
    elif _loads_a_draft(decision):
        draft, more = _draft(decision, target)
        notes += more
    check_tensor_parallel(decision, given.gpus)
    k, ngram = _length(spec, notes)
    drafter = plan.choice.draft if chosen_here and kind == SMALL else None
    return EngineRequest(
        target=target,
        kind=kind,
        draft=draft,
        k=k,
        ngram=ngram,
        parallel=parallel,
        copies=spec is not None and spec.uses_draft and spec.uses_ngram,
        same_size=_equal(plan.target, drafter, "n_tokens"),
        same_tokens=_equal(plan.target, drafter, "fingerprint"),
        heads=plan.target.mtp_heads,
        context=_context(decision),
        requests=plan.settings.parallel,
        tp=given.gpus,
        pp=given.nodes,
        nodes=given.nodes,
        notes=(*notes, *_common_notes(decision, kind)),
    )


def check_tensor_parallel(decision: Decision, gpus: int) -> None:
    """Raises FormatError if the target's attention heads cannot be split over so many GPUs."""
    heads = max(decision.plan.target.heads, default=0)
    if heads % gpus:
        raise FormatError(
            f"the target's {heads} attention heads cannot be split evenly over {gpus} GPUs",
            f"Use --gpus and --nodes that divide {heads}.",
        )


def _kind(spec: Speculation | None) -> str:
    if spec is None:
        return ""
    for method in spec.methods:
        if method in _DRAFTS:
            return _DRAFTS[method]
    return NGRAM if spec.methods == ("ngram-simple",) else SUFFIX


def _kind_of(repo: str) -> str:
    """By its name, as vLLM does it; a draft model by default."""
    name = repo.lower()
    if _P_EAGLE.search(repo):
        return EAGLE3
    return next((kind for word, kind in _NAMED if word in name), SMALL)


def _as_draft(spec: Speculation | None, k: int) -> Speculation:
    return spec if spec is not None and spec.uses_draft else Speculation((), n_max=k)


def _length(spec: Speculation | None, notes: list[str]) -> tuple[int, NgramSizes | None]:
    """(tokens per draft, n-gram sizes)."""
    if spec is None:
        return 0, None
    if spec.uses_draft or spec.ngram is None:
        return spec.n_max, spec.ngram
    k = min(spec.ngram.m, MAX_NGRAM_DRAFT)
    if k < spec.ngram.m:
        notes.append(
            f"draft length {k} instead of {spec.ngram.m}: this engine verifies that many tokens in every step"
        )
    return k, spec.ngram


def _equal(target: ModelInfo, draft: ModelInfo | None, what: str) -> bool:
    """Whether both vocabularies agree in that; True if unknown."""
    if draft is None or draft.vocabulary is None or target.vocabulary is None:
        return True
    return bool(getattr(target.vocabulary, what) == getattr(draft.vocabulary, what))


def _loads_a_draft(decision: Decision) -> bool:
    """Whether a draft is loaded from another repository. The MTP heads of a head-only file are in the
    target's."""
    draft = decision.plan.choice.draft
    spec = decision.plan.settings.speculation
    return spec is not None and spec.uses_draft and draft is not None and draft.kind != "mtp-head"


def _target(decision: Decision) -> tuple[str, list[str]]:
    given, target = decision.deployment.target_repo, decision.plan.target
    if given is not None:
        return given, []
    guess = repo_of(target)
    if guess is None:
        raise FormatError(
            f"{target.path.name} does not name the Hugging Face repository it was made from",
            "Set the repository of the original weights: --target-repo OWNER/NAME.",
        )
    return guess, [_guessed(guess, target, "--target-repo")]


def _draft(decision: Decision, target: str) -> tuple[str, list[str]]:
    draft = decision.plan.choice.draft
    assert draft is not None
    guess = repo_of(draft)
    if guess is None or guess == target:
        raise FormatError(
            f"that engine loads no GGUF drafts, and {draft.title} does not name the Hugging Face "
            "repository it was made from",
            f"Set --draft-repo OWNER/NAME{_known(decision)}, or use --method ngram-simple.",
        )
    return guess, [_guessed(guess, draft, "--draft-repo")]


def _known(decision: Decision) -> str:
    """Repositories with drafts for the target's family and method, in parentheses."""
    spec, family = decision.plan.settings.speculation, family_of(decision.plan.target)
    methods = spec.methods if spec is not None else ()
    found = family.suggestions if family is not None else ()
    names = [f"{s.repo}, {s.name}" for s in found if s.method in methods and s.repo]
    names = [n for n in names if "gguf" not in n.lower()]
    return f" ({'; '.join(names)})" if names else ""


def repo_of(model: ModelInfo) -> str | None:
    """The Hugging Face repository that a file names as its base model, if any."""
    found = (_ON_HUB.fullmatch(b) for b in model.names.base_models)
    return next((m[1] for m in found if m and _REPO.fullmatch(m[1])), None)


def _guessed(repo: str, model: ModelInfo, option: str) -> str:
    """A file's base may be what it was quantised from, or what that was trained from."""
    finetune = model.names.finetune
    more = ""
    if finetune and finetune.lower() not in repo.lower():
        more = f", with the fine-tune {finetune!r}"
    return f"check: {repo} is a guess: the base model in {model.path.name}{more} (set {option} if wrong)"


def _context(decision: Decision) -> int:
    """Tokens per request if the user set them, otherwise 0: what fits in this machine's memory says
    nothing about another machine."""
    plan = decision.plan
    budget = plan.budget
    context = budget.requested_context if budget is not None else plan.settings.context
    return 0 if context == plan.target.context_length else context // plan.settings.parallel


def _common_notes(decision: Decision, kind: str) -> Iterator[str]:
    measured = decision.measured
    if measured is not None and measured.speedup is not None:
        alpha = f", α={measured.tried.alpha:.2f}" if measured.tried is not None else ""
        yield f"measured with llama.cpp, not with this engine: {measured.reason}{alpha}"
    elif kind:
        yield "not measured; measure the running server with `specllama probe --url`"
    if kind:
        yield f"speed-up with concurrent requests: {concurrency()}"
    spec = decision.plan.settings.speculation
    if spec is not None and spec.uses_draft and spec.p_min:
        yield f"no equivalent of p_min {spec.p_min:g}: drafts are not shortened at low confidence"
    own = [f.words[0] for f in decision.plan.user.flags]
    if own:
        yield f"options of llama-server, left out: {' '.join(own)}"


def concurrency() -> str:
    """The speed-up with concurrent requests, with its source."""
    row = record("concurrency")
    figures = ", ".join(f"{gain:g}x with {n}" for n, gain in row["speedup"])
    limit = f"rarely pays off above {row['hardly_pays_above']}"
    return f"reported elsewhere, not measured here: {figures} at a time ({limit}; source: {row['source']})"


def configuration(
    decision: Decision, engine: str, config: Mapping[str, Any], notes: tuple[str, ...]
) -> WrittenFiles:
    """An engine's configuration file, with its version and the decision as comments."""
    version = f"written for {engine} {record(engine.lower())['version']}"
    return WrittenFiles(commented((*decision.comments, version, *notes)) + yaml_text(config), notes)


def key_note(decision: Decision, variable: str) -> Sequence[str]:
    """How the API key is set."""
    if not decision.plan.settings.api_key:
        return open_note(decision)
    return (f"set {variable} before you start it: the API key is read from there",)


def open_note(decision: Decision) -> tuple[str, ...]:
    """A warning if anyone on the network can use the server."""
    settings = decision.plan.settings
    if settings.api_key or settings.host.startswith(("127.", "localhost", "::1")):
        return ()
    return (f"no API key: anyone who can reach {settings.host} can use it",)


@cache
def _records() -> Mapping[str, Any]:
    return read_toml(Path(__file__).with_name("engines.toml"))


def record(engine: str) -> Mapping[str, Any]:
    """An engine's record: version, image, names of its fields."""
    found: Mapping[str, Any] = _records()[engine]
    return found
