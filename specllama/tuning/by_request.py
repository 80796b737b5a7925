"""Acceptance for every K on one running server, for builds whose requests say their K and whose
answers do not show their steps (ik_llama.cpp: `speculative.n_max`, seen with 8337e4cd3).

The draft still makes all that the server was started with, and the rest is cut: an answer shows
what a K brings, not what it costs. That is known from the plain server (V(b)) and from the time
that the draft takes here. No prompt is asked twice: such a server drafts one that it has seen
without a fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specllama.engine.settings import Speculation
from specllama.tuning.arms import Plain, Served, Trial
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts, drafted_gain
from specllama.tuning.measure import Answer, ask, measured, warm_up
from specllama.tuning.run import Run, TrialCandidate
from specllama.tuning.speedup import StepLog, constant_acceptance

FIELD = "speculative.n_max"
_LENGTHS = (8, 2, 4, 1, 6, 3, 16, 12)  # the more telling ones first
_SHARE = 0.4  # of what is left of the budget; the rest is for the confirmation, which decides
_LEAST, _MOST = 3, 8  # answers
_SURE = 0.99  # acceptance that no text proves


@dataclass(frozen=True)
class LengthRequest:
    """One answer to a request for drafts of `k` tokens."""

    k: int
    answer: Answer

    @property
    def steps(self) -> int:
        """Verify steps: each brings one token beside those accepted; the first token is none's."""
        return max(1, self.answer.tokens - 1 - self.answer.accepted)


def measure_draft(
    run: Run, served: Served, candidate: TrialCandidate, spec: Speculation, plain: Plain
) -> Trial:
    """Measures a running server that drafts `spec.n_max` tokens at most."""
    left = run.for_this_draft
    run.shorten(_SHARE * left, _LEAST)
    job = run.job(_SHARE * left)
    warm_up(served.client, job)
    wanted = [k for k in run.task.lengths or _LENGTHS if k <= spec.n_max]
    lengths = list(dict.fromkeys([spec.n_max, *wanted]))
    most = max(_LEAST, min(_MOST, len(run.task.prompts) // 3))
    found: list[LengthRequest] = []
    while len(found) < most and not (job.over and len(found) >= _LEAST):
        k = lengths[len(found) % len(lengths)]
        there = replace(job, sampling={**job.sampling, FIELD: k})
        found.append(LengthRequest(k, ask(served.client, run.next_question(), there)))
        run.say()
        if not run.fresh:
            break
    costs = plain.costs
    own = own_ms(found, costs, spec.n_max, candidate.once)
    if own is None:
        own = candidate.cost * costs.plain.ms
    rows = rows_of(found, costs, own, spec.n_max, candidate.once)
    if run.task.lengths:
        rows = {k: r for k, r in rows.items() if k in run.task.lengths}
    curve = {k: r.interval() for k, r in rows.items()}
    answers = measured([a.answer for a in found], run.task.hybrid)
    return Trial(spec, answers, StepLog(()), own, costs.plain, curve, rows=rows)


def own_ms(
    found: Sequence[LengthRequest], costs: VerifyCosts, n_max: int, once: bool
) -> float | None:
    """ms of one pass of the draft: what the answers took beyond verifying. Each step drafts
    `n_max` tokens, whatever the request asked. None where V(b) is not known."""
    verify = [costs.of(a.k + 1) for a in found]
    if not found or None in verify:
        return None
    steps = sum(a.steps for a in found)
    beyond = sum(a.answer.ms - a.steps * (v or 0.0) for a, v in zip(found, verify, strict=True))
    return max(0.0, beyond / steps / (2 if once else n_max + 1))


def rows_of(
    found: Sequence[LengthRequest], costs: VerifyCosts, own: float, n_max: int, once: bool
) -> dict[int, Ratios]:
    """K → speed-up by answer, for the lengths that were asked and lie between. An answer tells
    its own K; at another it is as much better or worse than the others as it was at its own."""
    if not found:
        return {}
    usual = _usual(found)
    out = {}
    for k in range(1, n_max + 1):
        at = _between(usual, k)
        logs = []
        for a in found:
            own_p = constant_acceptance(_tau(a.answer.tokens - 1, a.steps), a.k)
            p = min(_SURE, max(0.0, own_p - usual[a.k] + at))
            gain = drafted_gain(costs, p, k, own, once)
            if gain is not None:
                logs.append(math.log(gain))
        if len(logs) == len(found):
            out[k] = Ratios(tuple(logs), tuple(float(a.answer.tokens) for a in found))
    return out


def _usual(found: Sequence[LengthRequest]) -> dict[int, float]:
    """K → acceptance per position, given the ones before, over all answers at that K."""
    out = {}
    for k in sorted({a.k for a in found}):
        there = [a for a in found if a.k == k]
        tokens, steps = sum(a.answer.tokens - 1 for a in there), sum(a.steps for a in there)
        out[k] = constant_acceptance(_tau(tokens, steps), k)
    return out


def _tau(tokens: int, steps: int) -> float:
    return max(1.0, tokens / steps)


def _between(usual: Mapping[int, float], k: int) -> float:
    """Between lengths that were asked by a straight line, beyond them as at the nearest."""
    below = max((x for x in usual if x <= k), default=min(usual))
    above = min((x for x in usual if x >= k), default=max(usual))
    if below >= above:
        return usual[above if k <= above else below]
    return usual[below] + (usual[above] - usual[below]) * (k - below) / (above - below)
