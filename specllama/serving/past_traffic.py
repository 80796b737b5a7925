"""Real requests of earlier starts. Once there are enough, they take precedence over results from
the profile's prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from specllama.engine.command import check_methods
from specllama.engine.settings import Speculation
from specllama.planning.feasible import FeasibleMethod, feasible_methods
from specllama.planning.plan import Plan
from specllama.serving.result_keys import device_names, engine_label, traffic_subject
from specllama.serving.scope import SearchScope
from specllama.tuning import results
from specllama.tuning.confidence import Ratios
from specllama.tuning.judge import is_sure_gain
from specllama.tuning.records import Prediction
from specllama.tuning.step_times import StepTimes
from specllama.watching import traffic
from specllama.watching.summary import TrafficSummary
from specllama.watching.traffic import Traffic, TrafficCounts
from specllama.watching.verdict import TrafficVerdict, sentence


@dataclass(frozen=True)
class TrafficFinding:
    """What real requests showed about the last served setting, and the setting they suggest: the
    best K, None = speculation off."""

    counts: TrafficCounts
    summary: TrafficSummary
    suggested: Speculation | None

    @property
    def headline(self) -> str:
        return f"real requests take precedence: {sentence(self.summary, TrafficVerdict(), adaptive=True)}"

    @property
    def message(self) -> str:
        """What was seen, and the conclusion."""
        text = self.headline
        if self.suggested is None:
            sure = ">99%" if (p := self.summary.slower or 0.0) > 0.99 else f"{p:.0%}"
            return f"{text}; off: {sure} chance of being slower than plain decoding"
        k = self.suggested.n_max
        if k != self.counts.speculation.n_max:
            return f"{text}; using K={k} instead (about {self.summary.by_length[k]:.2f}x)"
        return text


def apply_past_traffic(
    plan: Plan, measured: Plan, scope: SearchScope, times: StepTimes | None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan that real requests suggest, and the lines for the user. `measured`: the plan that
    prompts suggest, `times` its step times then. A K set by the user is unchanged."""
    if measured.settings.speculation is None:
        return _on_again(plan, measured, scope)
    plan = measured
    subject = traffic_subject(plan)
    stored = traffic.find(subject) if subject is not None else None
    finding = _finding(stored, scope, times) if stored is not None else None
    if finding is None:
        return plan, ()
    because = finding.message
    if finding.suggested is None:
        return plan.without_speculation(because), (because,)
    own = plan.settings.speculation
    if own is None or scope.lengths or finding.suggested.n_max == own.n_max or not own.uses_draft:
        return plan, (because,)
    return plan.with_speculation(replace(own, n_max=finding.suggested.n_max), because), (because,)


def _on_again(plan: Plan, off: Plan, scope: SearchScope) -> tuple[Plan, tuple[str, ...]]:
    """The plan with speculation that tuning had turned off: on if real requests were certainly
    faster with it."""
    found, lines = predict_from_traffic(plan, scope)
    if found is None or not is_sure_gain(found.ratios, found.ratios):
        return off, ()
    return plan.with_speculation(found.speculation, lines[0]), lines


def predict_from_traffic(
    plan: Plan, scope: SearchScope
) -> tuple[Prediction | None, tuple[str, ...]]:
    """What real requests predict for a search: the first setting that it confirms. None if there
    are too few, if it was slower, or if the method no longer fits the plan."""
    target, files = str(plan.target.path.absolute()), results.stamp(plan.target.shards)
    possible = feasible_methods(plan)
    for stored in traffic.of(target, plan.workload.name, files):
        method = matching_method(plan, stored.last.speculation, possible, scope)
        here = (stored.subject.engine, stored.subject.devices) == (
            engine_label(plan),
            tuple(device_names(plan)),
        )
        finding = _finding(stored, scope, stored.times if here else None)
        if method is None or finding is None:
            continue
        if finding.suggested is None:
            return None, (
                f"{finding.headline}; slower than plain decoding, so other settings are tried",
            )
        known = _at_suggested_length(finding) if here else Ratios()
        own = method.cost / (1 + method.cost)
        source = f"real requests, {finding.summary.counts.drafted or 0:,.0f} drafted tokens"
        short = _short_step_ratio(plan) if here else 1.0
        found = Prediction(finding.suggested, known, source, own_share=own, short_step=short)
        return found, (finding.message,)
    return None, ()


def _short_step_ratio(plan: Plan) -> float:
    """How much longer a step of a short request takes than one within a response: as the newest
    result for this model and machine has it, 1 if there is none."""
    same = (str(plan.target.path.absolute()), engine_label(plan), tuple(device_names(plan)))
    known = (r.short_step for r in results.all_results() if (r.target, r.engine, r.devices) == same)
    return next((short for short in known if short is not None), 1.0)


def _finding(stored: Traffic, scope: SearchScope, times: StepTimes | None) -> TrafficFinding | None:
    """None if too little was seen."""
    counts = stored.last
    found = counts.summary(times or stored.times)
    if not found.enough or found.counts.alpha is None:
        return None
    better = found.better if not scope.lengths else None
    if found.surely_slower and not better:
        return TrafficFinding(counts, found, None)
    spec = replace(counts.speculation, n_max=better) if better else counts.speculation
    return TrafficFinding(counts, found, spec)


def _at_suggested_length(finding: TrafficFinding) -> Ratios:
    """The measured speed-ups, converted to the suggested K."""
    k, ran = finding.suggested.n_max if finding.suggested else 0, finding.counts.speculation.n_max
    at = finding.summary.by_length
    return finding.counts.ratios.shifted(log(at[k] / at[ran]) if k != ran else 0.0)


def matching_method(
    plan: Plan, s: Speculation, possible: tuple[FeasibleMethod, ...], scope: SearchScope
) -> FeasibleMethod | None:
    """The plan's feasible method for a setting; None if there is none."""
    if scope.user_choice or scope.lengths or check_methods(plan.capabilities, s.methods):
        return None
    if not s.uses_draft:
        return FeasibleMethod(s, None, s.n_max, 0.0)
    drafting = [m for m in s.methods if m.startswith("draft-")]
    same = (w for w in possible if w.speculation.draft == s.draft)
    fit = (w for w in same if set(drafting) <= set(w.speculation.methods))
    return next((w for w in fit if s.n_max <= w.max_k), None)
