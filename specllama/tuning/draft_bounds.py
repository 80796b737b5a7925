"""Which drafts cannot win here at any acceptance, by the baseline's costs; the K of a trial."""

from __future__ import annotations

import math

from specllama.drafts.acceptance import LONGEST_K
from specllama.tuning.costs import (
    HIGHEST_ACCEPTANCE,
    VerifyCosts,
    best_length,
    drafted_gain,
    why_no_draft,
)
from specllama.tuning.judge import MIN_SPEEDUP
from specllama.tuning.predict import cautious
from specllama.tuning.records import Baseline, setting_label
from specllama.tuning.run import Run, TrialCandidate

_LIKELY = 0.85  # acceptance per token that the longest K of a trial is chosen for
_LITTLE_TIME = 0.01  # of the remaining budget, for one response
_OVER_BYTES = 1.5  # time of a small model's pass ÷ the time expected from its bytes


def needs_more_responses(run: Run, baseline: Baseline) -> bool:
    """Whether the few short responses of a baseline without n-grams alone are too little: nothing
    would be launched because of them, or more take probe hardly any time."""
    task = run.task
    if (task.ngrams and task.ngrams_alone) or task.slots > 1 or not task.candidates:
        return False
    response_s = run.tokens * baseline.costs.plain_step.ms / 1000
    if task.thorough and response_s < _LITTLE_TIME * run.seconds_left:
        return True
    return all(_why_at_costs(run, c, baseline.costs) for c in task.candidates)


def why_it_cannot_win(run: Run, c: TrialCandidate, baseline: Baseline) -> str:
    """Why a draft cannot win here at any acceptance; "" if it may, within the error of a plain
    step's time."""
    surely = _why_at_costs(run, c, baseline.costs.at_slowest)
    return _why_at_costs(run, c, baseline.costs) if surely else ""


def _why_at_costs(run: Run, c: TrialCandidate, costs: VerifyCosts) -> str:
    if run.task.force or run.task.everything or not costs.known:
        return ""
    own = c.cost * costs.plain_step.ms
    most = min(c.longest, costs.longest - 1)
    if reason := why_no_draft(costs, own, most, MIN_SPEEDUP, c.one_pass):
        return reason
    gains = (
        drafted_gain(costs, HIGHEST_ACCEPTANCE, k, own, c.one_pass) for k in range(1, most + 1)
    )
    bound = max((g for g in gains if g is not None), default=0.0)
    predicted = [p for p in run.predictions if len(p.ratios) > 2]
    ngrams = max(predicted, key=lambda p: cautious(p.ratios), default=None)
    if ngrams is None or bound >= math.exp(cautious(ngrams.ratios)):
        return ""
    return (
        f"at most {bound:.2f}x at {HIGHEST_ACCEPTANCE:.0%} acceptance; "
        f"{setting_label(ngrams.speculation)} without a draft is predicted at "
        f"{ngrams.ratios.value:.2f}x"
    )


def trial_length(c: TrialCandidate, baseline: Baseline) -> int:
    """The K to launch a draft with: longer ones do not pay off at a likely acceptance."""
    costs = baseline.costs
    if not costs.known:
        return min(c.longest, LONGEST_K)
    own = _OVER_BYTES * c.cost * costs.plain_step.ms
    most = min(c.longest, max(1, costs.longest - 1))
    return max(min(2, most), best_length(costs, _LIKELY, own, most, c.one_pass))
