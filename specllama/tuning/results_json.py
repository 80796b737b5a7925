"""Settings, predictions and speed-ups as JSON, and back. Pure.

Reading raises ValueError, TypeError, LookupError or ArithmeticError for a damaged file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.records import Prediction

_MAX_LOG = 20.0  # largest plausible logarithm of a speed-up


def spec_data(s: Speculation) -> dict[str, Any]:
    """A setting as JSON."""
    return {**asdict(s), "draft": str(s.draft) if s.draft else None}


def read_spec(data: Mapping[str, Any]) -> Speculation:
    """The setting that spec_data wrote."""
    ngram = data["ngram"]
    return Speculation(
        methods=tuple(str(m) for m in data["methods"]),
        draft=Path(data["draft"]) if data["draft"] else None,
        n_max=int(data["n_max"]),
        n_min=int(data["n_min"]),
        p_min=float(data["p_min"]),
        draft_layers=data["draft_layers"],
        cache_type=data["cache_type"],
        ngram=NgramSizes(**{k: int(v) for k, v in ngram.items()}) if ngram else None,
    )


def prediction_data(p: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    return {
        "speculation": spec_data(p.speculation),
        "known": asdict(p.ratios),
        "source": p.source,
        "own": p.own_share,
        "short": p.short_step,
    }


def read_prediction(data: Mapping[str, Any]) -> Prediction:
    """The prediction that prediction_data wrote."""
    return Prediction(
        read_spec(data["speculation"]),
        read_ratios(data["known"]),
        str(data["source"]),
        own_share=_share(data.get("own")),
        short_step=read_short_step(data.get("short", 1.0)),
    )


def _share(value: Any) -> float | None:
    if value is None:
        return None
    share = float(value)
    if not 0 <= share < 1:
        raise ValueError("share out of range")
    return share


def read_short_step(value: Any) -> float:
    """`short_step`, as in Baseline."""
    short = float(value)
    if not 0.1 < short < 10:
        raise ValueError("step ratio out of range")
    return short


def read_ratios(data: Mapping[str, Any]) -> Ratios:
    """Speed-ups that were written with asdict."""
    logs, weights = (tuple(float(x) for x in data[k]) for k in ("logs", "weights"))
    if len(logs) != len(weights):
        raise ValueError("logs and weights differ in number")
    if not all(abs(x) < _MAX_LOG for x in logs) or not all(0 < w < inf for w in weights):
        raise ValueError("speed-up out of range")
    shared = float(data.get("shared", 0.0))
    if not 0 <= shared < _MAX_LOG:
        raise ValueError("error out of range")
    return Ratios(logs, weights, shared)
