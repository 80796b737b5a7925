"""A snapshot of a server's counters from Prometheus text, by exact sample names. Pure.

llama.cpp prints six digits, so a counter of millions moves in steps of tens or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specllama.watching.counters import Counts, Gauges, Snapshot
from specllama.watching.engines import ENGINES, CounterNames

_MAX_POSITIONS = 1024


def parse_snapshot(text: str, when: float, model: str = "") -> Snapshot | None:
    """A snapshot from Prometheus text, by exact sample names; None for any other text. Several
    engines behind one address are summed; `model`: only samples with that model_name, if any has
    it."""
    samples = _samples(text)
    if samples is None:
        return None
    engine = next((e for e, n in ENGINES.items() if any(_of(s[0], n) for s in samples)), None)
    if engine is None:
        return None
    names = ENGINES[engine]
    if model and any(labels.get("model_name") == model for _, labels, _ in samples):
        samples = [s for s in samples if s[1].get("model_name", model) == model]
    return Snapshot(engine, when, _counts(samples, names), _gauges(samples, names))


_Sample = tuple[str, Mapping[str, str], float]


def _samples(text: str) -> list[_Sample] | None:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return [
            (s.name, s.labels, float(s.value))
            for family in text_string_to_metric_families(text)
            for s in family.samples
        ]
    except (ValueError, KeyError, IndexError, TypeError):
        return None  # not Prometheus' format


def _of(sample: str, names: CounterNames) -> bool:
    return sample.startswith(names.prefix)


def _counts(samples: Sequence[_Sample], names: CounterNames) -> Counts:
    by_position = _positions(samples, names.per_position)
    accepted, seconds = _sum(samples, names.accepted), _sum(samples, names.seconds)
    rounded = [
        _sum(samples, n) for n in (names.drafted, names.accepted, names.drafts, names.tokens)
    ]
    units = [_unit(x, names.digits) for x in rounded if x is not None]
    unit = max((u for u in units if u > 1), default=0.0)  # below that, whole numbers are exact
    exact = sum(by_position)  # printed in full, while the total may be rounded
    if accepted is not None and by_position and abs(exact - accepted) <= unit:
        accepted = exact
    return Counts(
        drafted=_sum(samples, names.drafted),
        accepted=accepted,
        steps=_sum(samples, names.drafts),
        by_position=by_position,
        tokens=_plausible(_sum(samples, names.tokens)),
        seconds=_plausible(seconds),
        requests=_plausible(_sum(samples, names.requests)),
        rounding=unit,
        rounding_s=_unit(seconds, names.digits) if seconds is not None else 0.0,
    )


def _positions(samples: Sequence[_Sample], name: str) -> tuple[float, ...]:
    found: dict[int, float] = {}
    for sample, labels, value in samples:
        at = str(labels.get("position", ""))
        if name and sample == name and at.isdecimal() and int(at) < _MAX_POSITIONS:
            found[int(at)] = found.get(int(at), 0.0) + value
    return tuple(found.get(i, 0.0) for i in range(max(found, default=-1) + 1))


def _sum(samples: Sequence[_Sample], name: str) -> float | None:
    found = [value for sample, _, value in samples if name and sample == name]
    return sum(found) if found else None


def _plausible(count: float | None) -> float | None:
    """None for impossible counts: not a number, negative, or too large for exact floats."""
    return count if count is not None and 0 <= count < 2**53 else None


def _unit(value: float, digits: int) -> float:
    """The value of the last printed digit."""
    if not digits or not math.isfinite(value) or not value:
        return 0.0
    return float(10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits))


def _gauges(samples: Sequence[_Sample], names: CounterNames) -> Gauges:
    def mean(name: str) -> float | None:
        found = [v for s, _, v in samples if name and s == name and math.isfinite(v)]
        return sum(found) / len(found) if found else None

    running, length = _sum(samples, names.running), mean(names.length_gauge)
    nothing = length == 0  # nothing was drafted yet
    busy = int(running) if running is not None and math.isfinite(running) else None
    return Gauges(
        busy,
        None if nothing else mean(names.rate_gauge),
        None if nothing else length,
        _sum(samples, names.speed_gauge),
    )
