"""Which method drafts, with which file, and why the others do not.

Unless the user names a draft or a method: the best candidate of `drafts.pick`, as a rule
an MTP head in the target before a draft model near it; where nothing fits, the workload's
n-gram method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.drafts import compat
from specllama.drafts.compat import METHOD_OF_KIND
from specllama.drafts.discover import Rejected
from specllama.drafts.pick import Candidate, pick
from specllama.drafts.warnings import warnings
from specllama.engine.capabilities import Capabilities
from specllama.engine.command import check_methods
from specllama.engine.settings import Speculation
from specllama.errors import UsageError
from specllama.gguf import ModelInfo
from specllama.workloads import METHODS, Workload

_SHORT_NAMES = {
    "mtp": "draft-mtp",
    "draft": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}
# What a method needs, in a user's words.
_WHAT = {
    "draft-mtp": "MTP head",
    "draft-simple": "compatible draft model",
    "draft-eagle3": "EAGLE-3 head",
    "draft-dflash": "DFlash drafter",
    "draft-dspark": "DSpark drafter",
}


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
    if request.methods and (reason := check_methods(caps, request.methods)):
        return _off(",".join(request.methods), "engine", reason)
    if request.draft is not None:
        return _named_draft(request, request.draft, caps)
    if request.methods:
        return _named_methods(request, caps)
    return _whatever_fits(request, caps)


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


def _named_draft(r: Request, draft: ModelInfo, caps: Capabilities) -> Choice:
    """The user's draft, or off with the rule that forbids it."""
    name = draft.path.name
    method = METHOD_OF_KIND.get(draft.kind, "")
    asked = next((m for m in r.methods if m.startswith("draft-")), method)
    if method and asked != method:
        return _off(name, "kind", f"a file of the kind {draft.kind} is not for {asked}")
    verdict = compat.verdict(r.target, draft, caps)
    if not verdict.ok:
        return _off(name, verdict.rule, verdict.detail)
    methods = r.methods or (method,)
    said = tuple(warnings(r.target, method, draft))
    return Choice(_speculation(r, methods, draft), "you named the draft", warnings=said)


def _named_methods(r: Request, caps: Capabilities) -> Choice:
    """The user's methods with the best file for them, or off with the reasons."""
    because = "you named the method"
    drafting = next((m for m in r.methods if m.startswith("draft-")), None)
    if drafting is None:
        return Choice(_speculation(r, r.methods), because, warnings=_said(r, r.methods[0]))
    picked = pick(r.target, r.workload, caps)
    for c in picked.candidates:
        if c.method == drafting:
            return Choice(_speculation(r, r.methods, c.draft), because, picked.rejected, c.warnings)
    reason = f"no {_WHAT[drafting]} in the target, beside it or in the model folders"
    return _off(drafting, "no file", reason, picked.rejected)


def _whatever_fits(r: Request, caps: Capabilities) -> Choice:
    picked = pick(r.target, r.workload, caps)
    rejected = list(picked.rejected)
    for c in picked.candidates:
        if c.method in r.workload.methods and c.prediction.high >= 1:
            return Choice(
                _speculation(r, (c.method,), c.draft), _because(c), tuple(rejected), c.warnings
            )
        detail = (
            f"predicted {c.prediction.low:.2f}x to {c.prediction.high:.2f}x: it cannot pay"
            if c.prediction.high < 1
            else f"the {r.workload.name} workload does not use {c.method}"
        )
        rejected.append(Rejected(_file(c), "gain", detail))
    for method in (m for m in r.workload.methods if m.startswith("ngram-")):
        if reason := check_methods(caps, [method]):
            rejected.append(Rejected(method, "engine", reason))
            continue
        because = f"no draft fits; the {r.workload.name} workload repeats itself"
        return Choice(_speculation(r, (method,)), because, tuple(rejected), _said(r, method))
    why = "; ".join(f"{x.what}: {x.detail}" for x in rejected[:3]) or "no draft was found"
    return Choice(None, f"nothing drafts for this target ({why})", tuple(rejected))


def _because(c: Candidate) -> str:
    if c.draft is None:
        return "the target carries a trained MTP head"
    if c.method == "draft-simple":
        return f"{c.draft.path.name} has the target's vocabulary"
    return f"{c.draft.path.name} was trained to draft for this target"


def _file(c: Candidate) -> str:
    return c.draft.path.name if c.draft is not None else "the target's MTP head"


def _said(r: Request, method: str) -> tuple[str, ...]:
    return tuple(warnings(r.target, method, None))


def _off(what: str, rule: str, detail: str, rejected: Sequence[Rejected] = ()) -> Choice:
    own = Rejected(what, rule, detail)
    return Choice(None, f"{what}: {detail} ({rule})", (*rejected, own))


def _speculation(
    r: Request, methods: tuple[str, ...], draft: ModelInfo | None = None
) -> Speculation:
    n_max = r.n_max if r.n_max is not None else r.workload.n_max
    for method in methods:
        n_max = min(n_max, compat.longest_draft(method, draft or r.target) or n_max)
    return Speculation(
        methods=methods,
        draft=draft.path if draft else None,
        n_max=n_max,
        p_min=r.p_min if r.p_min is not None else r.workload.p_min,
        draft_layers=r.draft_layers if draft else None,
        ngram=r.workload.ngram if any(m.startswith("ngram-") for m in methods) else None,
    )
