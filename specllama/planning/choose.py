"""Which method drafts, with which file, and why the others do not.

Order, unless the user names a draft or a method: the workload's own list, as a rule
an MTP head in the target, then a draft beside it, then an n-gram method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specllama.drafts import compat
from specllama.drafts.discover import Neighbours, beside
from specllama.engine.capabilities import MTP_ARCHITECTURES, Answer, Capabilities
from specllama.engine.command import check_methods
from specllama.engine.settings import Speculation
from specllama.errors import UsageError
from specllama.gguf import ModelInfo
from specllama.workloads import METHODS, Workload

# A draft over half the target cannot pay; over a tenth it seldom does.
_MOST_OF_TARGET = 0.5
_WARN_OF_TARGET = 0.1

_SHORT_NAMES = {
    "mtp": "draft-mtp",
    "draft": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
# What a draft file of each kind is used with.
_METHOD_OF_KIND = {
    "model": "draft-simple",
    "mtp-head": "draft-mtp",
    "gemma4-assistant": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}


@dataclass(frozen=True)
class Rejected:
    """Something that could have drafted and does not."""

    what: str
    rule: str
    detail: str


@dataclass(frozen=True)
class Request:
    """What the user asked for. `methods` () = whatever fits; ("none",) = no speculation."""

    target: ModelInfo
    workload: Workload
    draft: ModelInfo | None = None
    methods: tuple[str, ...] = ()
    n_max: int | None = None
    p_min: float | None = None
    draft_layers: str | None = None


@dataclass(frozen=True)
class Choice:
    """`speculation` is None when it is off; `because` says why it is on or off."""

    speculation: Speculation | None
    because: str
    rejected: tuple[Rejected, ...] = ()
    warnings: tuple[str, ...] = ()


class _No(Exception):
    """A method that cannot be used: the rule and the detail."""

    def __init__(self, what: str, rule: str, detail: str) -> None:
        self.rejected = Rejected(what, rule, detail)


def parse_methods(text: str) -> tuple[str, ...]:
    """`--method`'s value as --spec-type names. Raises UsageError for one that does not exist."""
    out: list[str] = []
    for word in (w.strip() for w in text.split(",")):
        name = _SHORT_NAMES.get(word, word)
        if word == "draft-self":
            raise UsageError(
                "llama.cpp has no draft-self: what guides call self-speculation are its n-gram types",
                "Use --method ngram-simple (or ngram-map-k, ngram-mod).",
            )
        if word in ("none", "off"):
            name = "none"
        elif name not in METHODS:
            raise UsageError(f"no method called {word!r}", f"Methods: {', '.join(METHODS)}, none")
        if name not in out:
            out.append(name)
    if "none" in out and len(out) > 1:
        raise UsageError("--method none goes with no other method")
    return tuple(out)


def choose(request: Request, caps: Capabilities) -> Choice:
    """The decision. Raises UsageError only for requests that contradict themselves."""
    _check_request(request)
    if request.methods == ("none",):
        return Choice(None, "you asked for --method none")
    if request.draft is not None or request.methods:
        return _as_asked(request, caps)
    around = beside(request.target)
    rejected: list[Rejected] = []
    for method in request.workload.methods:
        try:
            choice = _one(method, request, caps, around, rejected)
        except _No as no:
            rejected.append(no.rejected)
            continue
        return replace(choice, rejected=tuple(rejected))
    return Choice(None, f"nothing drafts for this target: {_summary(rejected)}", tuple(rejected))


def _check_request(r: Request) -> None:
    if r.draft is None:
        return
    if r.draft.path.samefile(r.target.path):
        raise UsageError(
            f"--draft is the target itself ({r.target.path.name})",
            "Give a smaller model of its family.",
        )
    if r.methods and not any(m.startswith("draft-") for m in r.methods):
        raise UsageError(f"--draft does not go with --method {','.join(r.methods)}")


def _as_asked(r: Request, caps: Capabilities) -> Choice:
    """The user's own draft and methods, or off with the rule that forbids them."""
    methods = r.methods
    if not methods:
        assert r.draft is not None
        method = _METHOD_OF_KIND.get(r.draft.kind)
        if method is None:
            return _off(r.draft.path.name, "kind", f"a {r.draft.kind} file cannot draft")
        methods = (method,)
    if reason := check_methods(caps, methods):
        return _off(",".join(methods), "engine", reason)
    rejected: list[Rejected] = []
    drafting = [m for m in methods if m.startswith("draft-")]
    looks_around = drafting and r.draft is None
    around = beside(r.target) if looks_around else Neighbours()
    try:
        choice = _one((drafting or list(methods))[0], r, caps, around, rejected)
    except _No as no:
        why = no.rejected
        return Choice(None, f"{why.what}: {why.detail} ({why.rule})", (*rejected, why))
    assert choice.speculation is not None
    asked = "you named the draft" if r.draft else "you named the method"
    return replace(
        choice,
        speculation=replace(choice.speculation, methods=methods, ngram=r.workload.ngram),
        because=asked,
        rejected=tuple(rejected),
    )


def _off(what: str, rule: str, detail: str) -> Choice:
    return Choice(None, f"{detail} ({rule})", (Rejected(what, rule, detail),))


def _one(
    method: str, r: Request, caps: Capabilities, around: Neighbours, rejected: list[Rejected]
) -> Choice:
    """The choice of one method. Raises _No with the rule that forbids it; files that
    were tried on the way are added to `rejected`."""
    if reason := check_methods(caps, [method]):
        raise _No(method, "engine", reason)
    if method.startswith("ngram-"):
        spec = _speculation(r, method)
        return Choice(
            spec, f"no draft fits; the {r.workload.name} workload repeats itself ({method})"
        )
    if method == "draft-mtp":
        return _mtp(r, caps, around, rejected)
    if method == "draft-simple":
        return _draft_model(r, around, rejected)
    if r.draft is None:
        raise _No(method, "no file", f"{method} needs its file: --draft FILE")
    if _METHOD_OF_KIND.get(r.draft.kind) != method:
        raise _No(r.draft.path.name, "kind", f"a {r.draft.kind} file is not for {method}")
    return Choice(_speculation(r, method, r.draft), "")


def _mtp(r: Request, caps: Capabilities, around: Neighbours, rejected: list[Rejected]) -> Choice:
    t = r.target
    if r.draft is None:
        if t.has_mtp_head:
            _check_graph(t, caps)
            return Choice(_speculation(r, "draft-mtp"), "the target carries a trained MTP head")
        if t.mtp_heads:
            detail = "its key promises an MTP head, but the head's tensors are not in the file"
            rejected.append(Rejected(t.path.name, "MTP tensors", detail))
        elif t.mtp_tensors:
            rejected.append(Rejected(t.path.name, "MTP key", "MTP tensors, but no key for them"))
    heads = [r.draft] if r.draft else [m for m in around.models if _is_head(m)]
    for head in heads:
        if not _is_head(head):
            raise _No(head.path.name, "kind", f"a {head.kind} file is no MTP head")
        verdict = compat.head_verdict(t, head)
        if verdict.ok:
            _check_graph(t, caps)
            because = f"{head.path.name} is an MTP head for this target"
            return Choice(_speculation(r, "draft-mtp", head), because)
        rejected.append(Rejected(head.path.name, verdict.rule, verdict.detail))
    raise _No("draft-mtp", "no head", "no MTP head in the target or beside it")


def _is_head(m: ModelInfo) -> bool:
    return m.kind in ("mtp-head", "gemma4-assistant")


def _check_graph(t: ModelInfo, caps: Capabilities) -> None:
    if caps.mtp_graph(t.architecture) is not Answer.NO:
        return
    first = MTP_ARCHITECTURES.get(t.architecture)
    if first is None:
        detail = f"llama.cpp has no MTP graph for {t.architecture}"
    else:
        detail = f"{caps.label} cannot run {t.architecture}'s MTP head; it needs build ≥ b{first}"
    raise _No(t.path.name, "MTP graph", detail)


def _draft_model(r: Request, around: Neighbours, rejected: list[Rejected]) -> Choice:
    if r.draft is not None:
        verdict = compat.draft_model_verdict(r.target, r.draft)
        if not verdict.ok:
            raise _No(r.draft.path.name, verdict.rule, verdict.detail)
        return Choice(
            _speculation(r, "draft-simple", r.draft), "", warnings=_size(r.target, r.draft)
        )
    rejected += [Rejected(p.path.name, p.rule, p.reason) for p in around.passed_over]
    for model in around.models:
        if model.kind != "model":
            continue  # heads are judged by draft-mtp; projectors and the like never draft
        share = model.file_bytes / r.target.file_bytes
        if share > _MOST_OF_TARGET:
            detail = f"{share:.0%} of the target's size; a draft this large cannot pay"
            rejected.append(Rejected(model.path.name, "size", detail))
            continue
        verdict = compat.draft_model_verdict(r.target, model)
        if verdict.ok:
            because = f"{model.path.name} beside the target has its vocabulary"
            return Choice(
                _speculation(r, "draft-simple", model), because, warnings=_size(r.target, model)
            )
        rejected.append(Rejected(model.path.name, verdict.rule, verdict.detail))
    raise _No("draft-simple", "no draft", f"no compatible draft model in {r.target.path.parent}")


def _size(target: ModelInfo, draft: ModelInfo) -> tuple[str, ...]:
    share = draft.file_bytes / target.file_bytes
    if share <= _WARN_OF_TARGET:
        return ()
    return (f"the draft is {share:.0%} of the target's size; over a tenth seldom pays",)


def _speculation(r: Request, method: str, draft: ModelInfo | None = None) -> Speculation:
    n_max = r.n_max if r.n_max is not None else r.workload.n_max
    heads = (draft or r.target).mtp_heads if method == "draft-mtp" else 0
    if heads > 1:  # llama.cpp clamps to the trained heads (speculative.cpp, b11434)
        n_max = min(n_max, heads)
    return Speculation(
        methods=(method,),
        draft=draft.path if draft else None,
        n_max=n_max,
        p_min=r.p_min if r.p_min is not None else r.workload.p_min,
        draft_layers=r.draft_layers if draft else None,
        ngram=r.workload.ngram if method.startswith("ngram-") else None,
    )


def _summary(rejected: list[Rejected]) -> str:
    return "; ".join(r.detail for r in rejected[-3:]) or "the workload allows no method"
