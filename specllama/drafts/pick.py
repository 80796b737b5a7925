"""All drafts for a target: compatible ones ranked, others with the rule that rejects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.drafts import compat
from specllama.drafts.acceptance import LONGEST_K
from specllama.drafts.checkpoints import P_EAGLE
from specllama.drafts.compat import METHOD_OF_KIND
from specllama.drafts.costs import DraftCosts
from specllama.drafts.discover import DiscoveredDrafts, Rejection, discover
from specllama.drafts.rank import PriorPrediction, predict
from specllama.drafts.twins import twin
from specllama.drafts.warnings import warnings
from specllama.engine.capabilities import Capabilities
from specllama.engine.loading import doubts
from specllama.gguf import GgufError, ModelInfo, file_of_kind
from specllama.workloads import Workload

_HALF = 0.5  # of the target's bytes: a larger draft model does not pay off


@dataclass(frozen=True)
class MeasuredAgreement:
    """Agreement with the target, by replay over its responses (temperature 0). `tau` at `k` with
    its 95 % interval; `tau_by_temperature`: temperature → τ at `k`. `speedup` at `k`, with the
    interval from τ's, computed from `costs`; None = estimated from bytes, reason in `uncosted`."""

    k: int
    alpha: float
    tau: float
    tau_low: float
    tau_high: float
    by_position: tuple[float, ...]
    tau_by_temperature: Mapping[float, float]
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
    """Candidates, best first, and rejected files with their rules."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]


def pick(
    target: ModelInfo,
    workload: Workload,
    caps: Capabilities | None = None,
    folders: Iterable[Path] = (),
    everywhere: bool = True,
    more: DiscoveredDrafts | None = None,
) -> PickResult:
    """Finds and checks drafts, and those in `more`; with `caps`, for that build of llama.cpp."""
    found = discover(target, folders, everywhere)
    return rank_drafts(target, workload, caps, found.and_also(more) if more else found)


def rank_drafts(
    target: ModelInfo, workload: Workload, caps: Capabilities | None, found: DiscoveredDrafts
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
        rejected.append(Rejection(target.title, own.rule, own.detail))
    for model in sorted(found.models, key=lambda m: m.path not in found.near):
        method = METHOD_OF_KIND.get(model.kind, "")
        if not method and model.kind != P_EAGLE:
            rejected.append(
                Rejection(model.title, "kind", f"{file_of_kind(model.kind)} cannot draft")
            )
            continue
        if own.ok and method == "draft-mtp":
            # A sidecar would replace the head in the target (llama.cpp, server-context.cpp)
            detail = "the target's own MTP head is used"
            rejected.append(Rejection(model.title, "own head", detail))
            continue
        try:
            verdict = _verdict(target, model, caps)
        except GgufError as e:
            if not e.message.startswith(str(model.path)):
                raise  # of the target
            rejected.append(
                Rejection(model.title, "unreadable", e.message.removeprefix(f"{model.path}: "))
            )
            continue
        if verdict.ok:
            same = twin(model, (c.draft for c in candidates if c.draft is not None))
            if same is not None:
                rejected.append(_twin(model, same))
                continue
            c = _candidate(target, method, model, workload.name)
            if model.path in found.outside:
                warning = f"a link to {model.path.resolve()}, outside the folder searched"
                c = replace(c, warnings=(*c.warnings, warning))
            candidates.append(c)
        else:
            rejected.append(Rejection(model.title, verdict.rule, verdict.detail))

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
        detail = f"it reads {share:.0%} of the target's bytes per token: too much to pay off"
        return compat.Compatibility(False, "size", detail)
    found = compat.check_compatibility(target, model, caps)
    doubt = next(
        (f for f in doubts(model, caps) if f.rule not in {t.rule for t in target.faults}), None
    )
    if found.ok and doubt is not None:
        return compat.Compatibility(
            False, doubt.rule, f"{doubt.detail}; use --draft to try it anyway"
        )
    return found


def _twin(model: ModelInfo, same: ModelInfo) -> Rejection:
    """A second file of one model. Files of the same name are shown with their paths."""
    if model.title != same.title:
        return Rejection(model.title, "duplicate", f"same tensors as {same.title}")
    return Rejection(str(model.path), "duplicate", f"same tensors as {same.path}")


def _candidate(target: ModelInfo, method: str, draft: ModelInfo | None, workload: str) -> Candidate:
    drafter = draft if draft is not None else target
    longest = min(LONGEST_K, compat.longest_draft(method, drafter) or LONGEST_K)
    prediction = predict(target, method, draft, workload, longest)
    lines = list(warnings(target, method, draft))
    if prediction.high < 1:
        lines.append("predicted slower than plain decoding even at the highest acceptance reported")
    return Candidate(method, draft, prediction, tuple(lines))
