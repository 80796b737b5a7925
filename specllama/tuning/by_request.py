"""Acceptance for every K on one running server, for builds that accept K per request and do
not report steps (ik_llama.cpp: `speculative.n_max`, seen with 8337e4cd3).

The draft still generates as many tokens as the server was started with, and the rest is discarded:
a response shows the acceptance at a K, not its cost. The cost follows from the baseline (V(b)) and
from the draft's time here. No prompt is sent twice: such a server drafts a known prompt perfectly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specllama.drafts.acceptance import constant_acceptance
from specllama.engine.settings import Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts, drafted_gain
from specllama.tuning.measure import Response, measurement_of, send_request, warm_up
from specllama.tuning.records import Baseline, RunningServer, Trial
from specllama.tuning.run import Run, TrialCandidate
from specllama.tuning.speedup import StepLog

FIELD = "speculative.n_max"
_LENGTHS = (8, 2, 4, 1, 6, 3, 16, 12)  # the most informative first
_SHARE = 0.4  # of the remaining budget; the rest is for the confirmation, which decides
_LEAST, _MOST = 3, 8  # responses
_SURE = 0.99  # highest acceptance that a text can prove


@dataclass(frozen=True)
class LengthRequest:
    """One response to a request with draft length `k`."""

    k: int
    response: Response

    @property
    def steps(self) -> int:
        """Verify steps. Each yields one token besides the accepted ones; the first token of the
        response comes from the prompt."""
        return max(1, self.response.tokens - 1 - self.response.accepted)


def measure_draft(
    run: Run,
    served: RunningServer,
    candidate: TrialCandidate,
    spec: Speculation,
    baseline: Baseline,
) -> Trial:
    """Measures a running server that drafts `spec.n_max` tokens at most."""
    left = run.seconds_for_draft
    run.shorten(_SHARE * left, _LEAST)
    job = run.job(_SHARE * left)
    warm_up(served.client, job)
    shorter = [k for k in run.task.lengths or _LENGTHS if k <= spec.n_max]
    lengths = list(dict.fromkeys([spec.n_max, *shorter]))
    most = max(_LEAST, min(_MOST, len(run.task.prompts) // 3))
    found: list[LengthRequest] = []
    while len(found) < most and not (job.over and len(found) >= _LEAST):
        k = lengths[len(found) % len(lengths)]
        length_job = replace(job, sampling={**job.sampling, FIELD: k})
        found.append(LengthRequest(k, send_request(served.client, run.next_prompt(), length_job)))
        run.report()
        if not run.has_unused_prompts:
            break
    costs = baseline.costs
    own = own_ms(found, costs, spec.n_max, candidate.one_pass)
    if own is None:
        own = candidate.cost * costs.plain_step.ms
    rows = rows_of(found, costs, own, spec.n_max, candidate.one_pass)
    if run.task.lengths:
        rows = {k: r for k, r in rows.items() if k in run.task.lengths}
    curve = {k: r.interval() for k, r in rows.items()}
    responses = measurement_of([a.response for a in found], run.task.hybrid)
    return Trial(spec, responses, StepLog(()), own, costs.plain_step, curve, rows=rows)


def own_ms(
    found: Sequence[LengthRequest], costs: VerifyCosts, n_max: int, one_pass: bool
) -> float | None:
    """ms of one pass of the draft: the time of the responses beyond verification. Each step drafts
    `n_max` tokens, whatever the request says. None if V(b) is unknown."""
    verify = [costs.of(a.k + 1) for a in found]
    if not found or None in verify:
        return None
    steps = sum(a.steps for a in found)
    beyond = sum(a.response.ms - a.steps * (v or 0.0) for a, v in zip(found, verify, strict=True))
    return max(0.0, beyond / steps / (2 if one_pass else n_max + 1))


def rows_of(
    found: Sequence[LengthRequest], costs: VerifyCosts, own: float, n_max: int, one_pass: bool
) -> dict[int, Ratios]:
    """K → speed-up by response, for the requested lengths and those between. A response counts at
    other K with the deviation from the average that it had at its own."""
    if not found:
        return {}
    mean_acceptance = _mean_acceptance(found)
    out = {}
    for k in range(1, n_max + 1):
        at = _interpolated(mean_acceptance, k)
        logs = []
        for a in found:
            own_p = constant_acceptance(_tau(a.response.tokens - 1, a.steps), a.k)
            p = min(_SURE, max(0.0, own_p - mean_acceptance[a.k] + at))
            gain = drafted_gain(costs, p, k, own, one_pass)
            if gain is not None:
                logs.append(math.log(gain))
        if len(logs) == len(found):
            out[k] = Ratios(tuple(logs), tuple(float(a.response.tokens) for a in found))
    return out


def _mean_acceptance(found: Sequence[LengthRequest]) -> dict[int, float]:
    """K → conditional acceptance per token, over all responses at that K."""
    out = {}
    for k in sorted({a.k for a in found}):
        at_k = [a for a in found if a.k == k]
        tokens, steps = sum(a.response.tokens - 1 for a in at_k), sum(a.steps for a in at_k)
        out[k] = constant_acceptance(_tau(tokens, steps), k)
    return out


def _tau(tokens: int, steps: int) -> float:
    return max(1.0, tokens / steps)


def _interpolated(mean_acceptance: Mapping[int, float], k: int) -> float:
    """Linear interpolation between requested lengths; the nearest value beyond them."""
    below = max((x for x in mean_acceptance if x <= k), default=min(mean_acceptance))
    above = min((x for x in mean_acceptance if x >= k), default=max(mean_acceptance))
    if below >= above:
        return mean_acceptance[above if k <= above else below]
    return mean_acceptance[below] + (mean_acceptance[above] - mean_acceptance[below]) * (
        k - below
    ) / (above - below)
