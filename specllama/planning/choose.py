"""Chooses the method and the draft, and gives a reason for each rejected one.

Without --draft and --method: the best candidate of `drafts.pick`, ranked by predicted speed-up;
where no draft fits, the workload's n-gram method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specllama.drafts import compat
from specllama.drafts.compat import METHOD_OF_KIND
from specllama.drafts.discover import DiscoveredDrafts, Rejection
from specllama.drafts.pick import Candidate, pick
from specllama.drafts.remedies import remedy
from specllama.drafts.warnings import warnings
from specllama.engine.capabilities import Capabilities
from specllama.engine.command import check_methods
from specllama.engine.loading import check_loads
from specllama.engine.settings import Speculation
from specllama.errors import UsageError
from specllama.gguf import ModelInfo, file_of_kind
from specllama.workloads import METHODS, Workload

_SHORT_NAMES = {
    "mtp": "draft-mtp",
    "draft": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
_MAX_ALTERNATIVES = 6  # drafts to fall back to if memory is short
# The file that a method needs, for messages.
_NEEDED_FILE = {
    "draft-mtp": "MTP head",
    "draft-simple": "compatible draft model",
    "draft-eagle3": "EAGLE-3 head",
    "draft-dflash": "DFlash drafter",
    "draft-dspark": "DSpark drafter",
}


@dataclass(frozen=True)
class MethodRequest:
    """What the user requested. `methods` () = whatever fits; ("none",) = no speculation.
    `extra_drafts`: drafts in addition to those found on this machine."""

    target: ModelInfo
    workload: Workload
    draft: ModelInfo | None = None
    methods: tuple[str, ...] = ()
    n_max: int | None = None
    p_min: float | None = None
    draft_layers: str | None = None
    extra_drafts: DiscoveredDrafts | None = None


@dataclass(frozen=True)
class Alternative:
    """A speculation that could be used instead. `draft`: its file."""

    speculation: Speculation
    draft: ModelInfo | None
    reason: str


@dataclass(frozen=True)
class Choice:
    """`speculation` is None when it is off; `reason` says why it is on or off. `warnings` are
    about it, `notes` about the launch however it speculates. `draft`: its file. `alternatives`:
    what else fits, best first, in case memory is short; `unlikely`: what fits but is not expected
    to pay off, or is not one of the workload's methods. `remedy`: what would fit, if it is off
    because the user's own choice does not."""

    speculation: Speculation | None
    reason: str
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[str, ...] = ()
    draft: ModelInfo | None = None
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    unlikely: tuple[Alternative, ...] = ()
    remedy: str = ""

    @property
    def all_alternatives(self) -> tuple[Alternative, ...]:
        """Everything else that fits."""
        return self.alternatives + self.unlikely


def parse_methods(text: str) -> tuple[str, ...]:
    """`--method`'s value as --spec-type names. Raises UsageError for an unknown one."""
    out: list[str] = []
    for word in (w.strip() for w in text.split(",")):
        name = _SHORT_NAMES.get(word, word)
        if word == "draft-self":
            raise UsageError(
                "llama.cpp has no draft-self: guides mean its n-gram methods",
                "Use --method ngram-simple (or ngram-map-k, ngram-mod).",
            )
        if word in ("none", "off"):
            name = "none"
        elif name not in METHODS:
            raise UsageError(f"no method called {word!r}", f"Methods: {', '.join(METHODS)}, none")
        if name not in out:
            out.append(name)
    if "none" in out and len(out) > 1:
        raise UsageError("--method none cannot be combined with another method")
    return tuple(out)


def choose(request: MethodRequest, caps: Capabilities) -> Choice:
    """The decision. Raises UsageError only for requests that contradict themselves."""
    _check_request(request)
    if request.methods == ("none",):
        return Choice(None, "--method none is set")
    if request.methods and (reason := check_methods(caps, request.methods)):
        return _off(",".join(request.methods), "engine", reason)
    if request.draft is not None:
        choice = _named_draft(request, request.draft, caps)
    elif request.methods:
        choice = _named_methods(request, caps)
    else:
        choice = _best_fitting(request, caps)
    if choice.speculation is None or not choice.speculation.uses_draft:
        return choice
    return replace(choice, alternatives=choice.alternatives + tuple(_ngrams(request, caps)))


def _check_request(r: MethodRequest) -> None:
    if r.draft is None:
        return
    if r.target.path.exists() and r.draft.path.samefile(r.target.path):
        raise UsageError(
            f"--draft is the target itself ({r.target.title})",
            "Use a smaller model of the same family.",
        )
    if r.methods and not any(m.startswith("draft-") for m in r.methods):
        only = ",".join(r.methods)
        raise UsageError(
            f"--draft (-md) cannot be combined with --method (--spec-type) {only}, which uses no draft",
            f"Leave one of them out, or use both: --method draft-simple,{only}.",
        )


def _named_draft(r: MethodRequest, draft: ModelInfo, caps: Capabilities) -> Choice:
    """The user's draft, or off with the rule that rejects it."""
    name = draft.title
    method = METHOD_OF_KIND.get(draft.kind, "")
    requested = next((m for m in r.methods if m.startswith("draft-")), method)
    if method and requested != method:
        return _off(name, "kind", f"{requested} cannot use {file_of_kind(draft.kind)}")
    verdict = compat.check_compatibility(r.target, draft, caps)
    if not verdict.ok:
        helps = remedy(r.target, method, verdict.rule)
        return _off(name, verdict.rule, verdict.detail, remedy=helps)
    methods = r.methods or (method,)
    notes = check_loads(draft, caps) + tuple(warnings(r.target, method, draft))
    spec = _speculation(r, methods, draft)
    return Choice(spec, "set with --draft", warnings=notes, draft=draft)


def _named_methods(r: MethodRequest, caps: Capabilities) -> Choice:
    """The user's methods with the best file for them, or off with the reason."""
    set_by = "set with --method"
    drafting = next((m for m in r.methods if m.startswith("draft-")), None)
    if drafting is None:
        return Choice(
            _speculation(r, r.methods), set_by, warnings=_target_warnings(r, r.methods[0])
        )
    picked = pick(r.target, r.workload, caps, more=r.extra_drafts)
    fitting = [c for c in picked.candidates if c.method == drafting]
    if fitting:
        others = tuple(_alternative(r, r.methods, c) for c in fitting[1:_MAX_ALTERNATIVES])
        best = fitting[0]
        spec = _speculation(r, r.methods, best.draft)
        return Choice(spec, set_by, picked.rejected, best.warnings, best.draft, others)
    reason = f"no {_NEEDED_FILE[drafting]} in the target, next to it or in the model folders"
    remedy_text = remedy(r.target, drafting, "no file")
    return _off(drafting, "no file", reason, picked.rejected, remedy_text)


def _best_fitting(r: MethodRequest, caps: Capabilities) -> Choice:
    picked = pick(r.target, r.workload, caps, more=r.extra_drafts)
    rejected = list(picked.rejected)
    paying: list[Candidate] = []
    unlikely: list[Alternative] = []
    for c in picked.candidates:
        if c.method in r.workload.methods and c.may_pay:
            paying.append(c)
            continue
        detail = (
            f"predicted {c.prediction.low:.2f}x to {c.prediction.high:.2f}x, so it cannot pay off"
            if not c.may_pay
            else f"the {r.workload.name} workload does not use {c.method}"
        )
        rejected.append(Rejection(_file_name(c), "gain", detail))
        unlikely.append(_alternative(r, (c.method,), c))
    rest = tuple(unlikely[:_MAX_ALTERNATIVES])
    if paying:
        best = paying[0]
        others = tuple(_alternative(r, (c.method,), c) for c in paying[1:_MAX_ALTERNATIVES])
        spec = _speculation(r, (best.method,), best.draft)
        notes = best.warnings
        reason = _reason(best)
        return Choice(spec, reason, tuple(rejected), notes, best.draft, others, unlikely=rest)
    for method in (m for m in r.workload.methods if m.startswith("ngram-")):
        if reason := check_methods(caps, [method]):
            rejected.append(Rejection(method, "engine", reason))
    for other in _ngrams(r, caps):
        notes = _target_warnings(r, other.speculation.methods[0])
        return Choice(other.speculation, other.reason, tuple(rejected), notes, unlikely=rest)
    reasons = "; ".join(f"{x.what}: {x.detail}" for x in rejected[:3]) or "no draft found"
    reason = f"no usable draft for this target ({reasons})"
    return Choice(None, reason, tuple(rejected), unlikely=rest)


def _ngrams(r: MethodRequest, caps: Capabilities) -> Iterator[Alternative]:
    """The workload's first n-gram method that this build has."""
    for method in (m for m in r.workload.methods if m.startswith("ngram-")):
        if not check_methods(caps, [method]):
            reason = "no draft fits; n-grams copy repeated text without one"
            yield Alternative(_speculation(r, (method,)), None, reason)
            return


def _alternative(r: MethodRequest, methods: tuple[str, ...], c: Candidate) -> Alternative:
    return Alternative(_speculation(r, methods, c.draft), c.draft, _reason(c))


def _reason(c: Candidate) -> str:
    if c.draft is None:
        return "the target has a trained MTP head"
    if c.method == "draft-simple":
        return f"{c.draft.title} has the target's vocabulary"
    return f"{c.draft.title} was trained to draft for this target"


def _file_name(c: Candidate) -> str:
    return c.draft.title if c.draft is not None else "the target's MTP head"


def _target_warnings(r: MethodRequest, method: str) -> tuple[str, ...]:
    return tuple(warnings(r.target, method, None))


def _off(
    what: str, rule: str, detail: str, rejected: Sequence[Rejection] = (), remedy: str = ""
) -> Choice:
    own = Rejection(what, rule, detail)
    return Choice(None, f"{what}: {detail} ({rule})", (*rejected, own), remedy=remedy)


def _speculation(
    r: MethodRequest, methods: tuple[str, ...], draft: ModelInfo | None = None
) -> Speculation:
    n_max = r.n_max if r.n_max is not None else r.workload.n_max
    p_min = r.p_min if r.p_min is not None else r.workload.p_min
    for method in methods:
        n_max = min(n_max, compat.longest_draft(method, draft or r.target) or n_max)
    return Speculation(
        methods=methods,
        draft=draft.path if draft else None,
        n_max=n_max,
        p_min=0.0 if draft and not draft.stops_when_unsure else p_min,
        draft_layers=r.draft_layers if draft else None,
        ngram=r.workload.ngram if any(m.startswith("ngram-") for m in methods) else None,
    )
