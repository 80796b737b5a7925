"""Keys under which results and traffic are stored: everything that changes speed or acceptance."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from specllama.engine import cpu
from specllama.engine.client import Prompt
from specllama.memory.nvml import driver
from specllama.planning.feasible import FeasibleMethod
from specllama.planning.plan import Plan
from specllama.serving.scope import SearchScope
from specllama.tuning import results
from specllama.tuning.records import method_label
from specllama.tuning.results import Subject
from specllama.watching.traffic import TrafficSubject

# Arguments and variables that change neither speed nor acceptance.
_IRRELEVANT = {"--host", "--port", "--api-key", "--metrics", "--slots", "--log-file", "--alias"}
_TEXT = re.compile(r"^--(system-|reverse-)?prompt$|grammar|json-schema|chat-template")
# Variables that decide which devices the server sees and how it uses them.
_ENV = tuple(
    "GGML_ CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES "
    "ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR OMP_NUM_THREADS".split()
)


def result_subject(
    plan: Plan, drafts: Sequence[FeasibleMethod], scope: SearchScope, prompts: Sequence[Prompt] = ()
) -> Subject:
    """The key of a result for these drafts: it holds what was requested, not what currently fits
    in memory."""
    files = [*plan.target.shards]
    for w in drafts:
        files += w.draft.shards if w.draft is not None else ()
    return Subject(
        target=str(plan.target.path.absolute()),
        workload=plan.workload.name,
        files=results.stamp(files),
        options=tuple(_option_words(plan, scope, prompts)),
        engine=engine_label(plan),
        devices=tuple(device_names(plan)),
        prompts="yours" if prompts else "profile",
    )


def traffic_subject(plan: Plan) -> TrafficSubject | None:
    """The key of this plan's traffic; None if it does not speculate."""
    spec = plan.settings.speculation
    if spec is None:
        return None
    files = results.stamp([*plan.target.shards, *([spec.draft] if spec.draft else [])])
    return TrafficSubject(
        target=str(plan.target.path.absolute()),
        workload=plan.workload.name,
        method=method_label(spec),
        files=files,
        engine=engine_label(plan),
        devices=tuple(device_names(plan)),
    )


def _option_words(plan: Plan, scope: SearchScope, prompts: Sequence[Prompt]) -> Iterator[str]:
    # the requested context: what fits varies from day to day
    context = plan.budget.requested_context if plan.budget is not None else plan.settings.context
    yield f"-c {context}"
    yield f"-np {plan.settings.parallel}"
    if scope.user_choice:
        chosen = plan.choice.speculation
        yield f"named {','.join(chosen.methods) if chosen else 'none'} {scope.user_method}"
    if scope.everything:
        yield "everything"
    yield from (f"K={k}" for k in scope.lengths)
    if scope.p_min is not None:
        yield f"p_min={scope.p_min:g}"
    yield from scope.other_options
    for flag in plan.user.flags:
        if not _IRRELEVANT & set(flag.option.names):
            values = map(_digest, flag.words[1:]) if _is_text(flag.option.names) else flag.words[1:]
            yield " ".join((flag.option.names[0], *values))  # --threads 1 is -t 1
    for name, value in sorted(plan.command.env.items()):
        secret = "KEY" in name or "TOKEN" in name
        if name.startswith(_ENV) and not secret:
            yield f"{name}={value}"
    w = plan.workload
    content = repr((w.methods, sorted(w.sampling.items()), asdict(w.ngram), prompts or w.prompts))
    yield _digest(content)


def _is_text(names: Sequence[str]) -> bool:
    """Whether an option's value is the user's own text, which `results` must not show."""
    return any(_TEXT.search(name) for name in names)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def engine_label(plan: Plan) -> str:
    """The engine with its build and file: times are not valid for another."""
    build = results.stamp([plan.engine.identity])
    engine = plan.engine.label if plan.engine.embedded else plan.engine.identity
    return f"{engine} {plan.capabilities.label} {build[0][1:] if build else ()}"


def device_names(plan: Plan) -> Iterator[str]:
    """The names of the devices."""
    gpus = plan.budget.request.machine.gpus if plan.budget is not None else ()
    yield from (f"{g.name} {g.label}" for g in gpus)
    if any(g.name.startswith("CUDA") for g in gpus) and (version := driver()):
        yield f"driver {version}"
    yield f"CPU {cpu.name()} ({os.cpu_count()})"
