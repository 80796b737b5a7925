"""Everything that could draft for a target: what fits, ranked, and the rule that dropped
each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.drafts import compat
from specllama.drafts.checkpoints import P_EAGLE
from specllama.drafts.compat import METHOD_OF_KIND
from specllama.drafts.costs import DraftCosts
from specllama.drafts.discover import Found, Rejected, discover
from specllama.drafts.rank import PriorPrediction, predict
from specllama.drafts.twins import twin
from specllama.drafts.warnings import warnings
from specllama.engine.capabilities import Capabilities
from specllama.engine.loading import doubts
from specllama.gguf import GgufError, ModelInfo
from specllama.workloads import Workload

_MOST_K = 8
_HALF = 0.5  # a whole model over half the target cannot pay


@dataclass(frozen=True)
class MeasuredAgreement:
    """Agreement with the target, by replay over its answers (temperature 0). `tau` at `k`
    with its 95 % interval; `tau_hot`: temperature → τ at that k. `speedup` at `k`, with the
    interval that τ's gives, from `costs`; None = guessed from bytes, `uncosted` says why."""

    k: int
    alpha: float
    tau: float
    tau_low: float
    tau_high: float
    by_position: tuple[float, ...]
    tau_hot: Mapping[float, float]
    speedup: float
    speedup_low: float
    speedup_high: float
    costs: DraftCosts | None
    uncosted: str
    source: str


@dataclass(frozen=True)
class Candidate:
    """A method with the file it uses; `draft` None = the target's own MTP head."""

    method: str
    draft: ModelInfo | None
    prediction: PriorPrediction
    warnings: tuple[str, ...]
    measured: MeasuredAgreement | None = None

    @property
    def may_pay(self) -> bool:
        """Whether any of the predicted range is a speed-up."""
        return self.prediction.high >= 1


@dataclass(frozen=True)
class PickResult:
    """Candidates, best first, and the rejected with their rules."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]


def pick(
    target: ModelInfo,
    workload: Workload,
    caps: Capabilities | None = None,
    folders: Iterable[Path] = (),
    everywhere: bool = True,
    more: Found | None = None,
) -> PickResult:
    """Looks for drafts and judges them, those found elsewhere too; with `caps`, for that build of
    llama.cpp."""
    found = discover(target, folders, everywhere)
    return ranked(target, workload, caps, found.and_also(more) if more else found)


def ranked(
    target: ModelInfo, workload: Workload, caps: Capabilities | None, found: Found
) -> PickResult:
    """The verdict on each model of `found` and on the target's own head. Candidates by predicted
    speed-up, compared to one decimal: more than that is not known before measuring. Ties are
    broken by the workload's order of methods, then those near the target come first. Last come
    those that cannot pay, and methods that the workload does not use."""
    candidates: list[Candidate] = []
    rejected = list(found.rejected)
    own = compat.own_head_verdict(target, caps)
    if own.ok:
        candidates.append(_candidate(target, "draft-mtp", None, workload.name))
    elif own.rule != "no head":
        rejected.append(Rejected(target.title, own.rule, own.detail))
    for model in sorted(found.models, key=lambda m: m.path not in found.near):
        method = METHOD_OF_KIND.get(model.kind, "")
        if not method and model.kind != P_EAGLE:
            rejected.append(Rejected(model.title, "kind", f"{model.kind}: never drafts"))
            continue
        if own.ok and method == "draft-mtp":
            # A sidecar would replace the head in the target (llama.cpp, server-context.cpp)
            detail = "the target carries its own MTP head, which is used"
            rejected.append(Rejected(model.title, "own head", detail))
            continue
        try:
            verdict = _verdict(target, model, caps)
        except GgufError as e:
            if not e.message.startswith(str(model.path)):
                raise  # of the target
            rejected.append(Rejected(model.title, "unreadable", e.message))
            continue
        if verdict.ok:
            same = twin(model, (c.draft for c in candidates if c.draft is not None))
            if same is not None:
                rejected.append(_twin(model, same))
                continue
            c = _candidate(target, method, model, workload.name)
            if model.path in found.outside:
                said = f"a link that leads out of the folder searched, to {model.path.resolve()}"
                c = replace(c, warnings=(*c.warnings, said))
            candidates.append(c)
        else:
            rejected.append(Rejected(model.title, verdict.rule, verdict.detail))

    def rank(c: Candidate) -> tuple[bool, float, int, bool, float]:
        order = workload.methods
        position = order.index(c.method) if c.method in order else len(order)
        unlikely = not c.may_pay or c.method not in order
        elsewhere = c.draft is not None and c.draft.path not in found.near
        speedup = c.prediction.speedup
        return unlikely, -round(speedup, 1), position, elsewhere, -speedup

    candidates.sort(key=rank)
    return PickResult(tuple(candidates), tuple(rejected))


def _verdict(
    target: ModelInfo, model: ModelInfo, caps: Capabilities | None
) -> compat.Compatibility:
    share = model.active_bytes / max(1, target.active_bytes)
    if model.kind == "model" and share > _HALF:
        detail = f"it reads {share:.0%} of the target's bytes per token; it cannot pay"
        return compat.Compatibility(False, "size", detail)
    found = compat.verdict(target, model, caps)
    doubt = next(
        (f for f in doubts(model, caps) if f.rule not in {t.rule for t in target.faults}), None
    )
    if found.ok and doubt is not None:
        return compat.Compatibility(False, doubt.rule, f"{doubt.detail}; with --draft it is tried")
    return found


def _twin(model: ModelInfo, same: ModelInfo) -> Rejected:
    """The second file of one model. With the same name in two folders, their paths tell them
    apart."""
    if model.title != same.title:
        return Rejected(model.title, "twin", f"same tensors as {same.title}")
    return Rejected(str(model.path), "twin", f"same tensors as {same.path}")


def _candidate(target: ModelInfo, method: str, draft: ModelInfo | None, workload: str) -> Candidate:
    drafter = draft if draft is not None else target
    most_k = min(_MOST_K, compat.longest_draft(method, drafter) or _MOST_K)
    prediction = predict(target, method, draft, workload, most_k)
    said = list(warnings(target, method, draft))
    if prediction.high < 1:
        said.append("predicted slower than plain decoding even at the highest acceptance reported")
    return Candidate(method, draft, prediction, tuple(said))
