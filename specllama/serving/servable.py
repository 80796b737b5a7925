"""Settings that `serve --adaptive` may switch to: the one it started with, and those measured
before, for any workload, with prompts or real requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from specllama.engine.settings import Speculation
from specllama.planning.feasible import feasible_methods
from specllama.planning.plan import Plan
from specllama.serving.past_traffic import matching_method
from specllama.serving.real_requests import TuningReference
from specllama.serving.result_keys import device_names, engine_label
from specllama.serving.scope import SearchScope
from specllama.tuning import results
from specllama.tuning.records import DECIDED
from specllama.watching import traffic
from specllama.watching.policy import ServableSetting


def servable_settings(
    base: Plan, served: Speculation | None, measured: TuningReference, scope: SearchScope
) -> tuple[ServableSetting, ...]:
    """`base`: the plan with all alternatives; `served`: the first setting, `measured` its results.
    If a setting is found twice, the first figure counts."""
    found: dict[Speculation, ServableSetting] = {}
    for option in _candidates(base, served, measured, scope):
        found.setdefault(option.speculation, option)
    return tuple(found.values())


def _candidates(
    base: Plan, served: Speculation | None, measured: TuningReference, scope: SearchScope
) -> Iterator[ServableSetting]:
    if served is not None:
        yield ServableSetting(served, measured.speedup, "when it was tuned")
    target, possible = str(base.target.path.absolute()), feasible_methods(base)
    here = engine_label(base), tuple(device_names(base))
    files = results.stamp(base.target.shards)
    for stored in traffic.of(target, base.workload.name, files):
        if (stored.subject.engine, stored.subject.devices) != here:
            continue
        for counts in stored.settings:
            speedup = counts.summary(stored.times).speedup
            if speedup is not None and matching_method(base, counts.speculation, possible, scope):
                yield ServableSetting(counts.speculation, speedup, "on real requests")
    for r in results.all_results():
        if r.target != target or (r.engine, r.devices) != here or r.state != DECIDED:
            continue
        if r.speculation is None or r.speedup is None:
            continue
        if matching_method(base, r.speculation, possible, scope):
            yield ServableSetting(
                r.speculation, r.speedup[0], f"when it was tuned for {r.workload}"
            )
