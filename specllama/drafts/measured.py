"""`pick-draft --measure`: measured agreement and costs instead of the prior and file sizes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from specllama.drafts import costs
from specllama.drafts.acceptance import LONGEST_K
from specllama.drafts.agreement import (
    TEMPERATURES,
    Agreement,
    measure,
    measure_text,
)
from specllama.drafts.inprocess import MeasureError
from specllama.drafts.pick import Candidate, MeasuredAgreement, PickResult
from specllama.drafts.rank import draft_cost, verify_cost
from specllama.drafts.replay import expected_tau, replay_length, tau_interval
from specllama.errors import UsageError
from specllama.gguf import ModelInfo
from specllama.prompts import as_text
from specllama.workloads import Workload

_PROMPTS = 12
_LONGEST_TEXT = 2**22  # characters; far more than needed


def measure_candidates(
    target: ModelInfo,
    picked: PickResult,
    workload: Workload,
    text: Path | None,
    threads: int | None,
) -> PickResult:
    """The candidates with their plain drafts measured, the fastest first. Drafts that are
    not on this machine keep their prior. Raises MeasureError, or UsageError for the text."""
    drafts = [
        c.draft.path
        for c in picked.candidates
        if c.method == "draft-simple" and c.draft is not None and os.path.exists(c.draft.path)
    ]
    if not drafts:
        raise MeasureError(
            "nothing to measure: no compatible draft model on this machine",
            "`specllama probe` measures heads; omit --measure to list what fits.",
        )
    if text is not None:
        try:
            with text.open(encoding="utf-8") as f:
                content = f.read(_LONGEST_TEXT)
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or "not UTF-8 text"
            raise UsageError(f"--text {text}: could not be read ({reason})") from None
        _, found = measure_text(target.path, drafts, content, threads)
        source = text.name
    else:
        # each prompt is processed three times: short ones are as informative and much faster
        prompts = sorted(map(as_text, workload.prompts), key=len)[:_PROMPTS]
        _, found = measure(target.path, drafts, prompts, threads)
        source = f"the target's responses to {len(prompts)} {workload.name} prompts"
    candidates = [
        replace(c, measured=_best(target, c, found[c.draft.path], source))
        if c.draft is not None and c.draft.path in found
        else c
        for c in picked.candidates
    ]
    candidates.sort(key=lambda c: (not c.may_pay and c.measured is None, -_speedup(c)))
    return replace(picked, candidates=tuple(candidates))


def _speedup(c: Candidate) -> float:
    """Measured, or predicted to one decimal, as `pick.ranked` compares it."""
    return c.measured.speedup if c.measured else round(c.prediction.speedup, 1)


def _best(target: ModelInfo, c: Candidate, agreement: Agreement, source: str) -> MeasuredAgreement:
    """The K with the highest speed-up by measured τ and measured costs, or costs estimated from
    bytes if they could not be measured."""

    def speedup(tau: float, k: int) -> float:
        if agreement.costs is not None:
            return agreement.costs.speedup(tau, k)
        return tau / (draft_cost(target, c.method, c.draft) * k + verify_cost(target, k))

    run = costs.best([replay_length(agreement.agrees, k) for k in range(1, LONGEST_K + 1)], speedup)
    low, high = tau_interval(agreement.agrees, run.k)
    return MeasuredAgreement(
        k=run.k,
        alpha=run.alpha,
        tau=run.tau,
        tau_low=low,
        tau_high=high,
        by_position=run.by_position,
        tau_by_temperature={t: expected_tau(agreement.probability[t], run.k) for t in TEMPERATURES},
        speedup=speedup(run.tau, run.k),
        speedup_low=speedup(low, run.k),
        speedup_high=speedup(high, run.k),
        costs=agreement.costs,
        uncosted=agreement.uncosted,
        source=source,
    )
