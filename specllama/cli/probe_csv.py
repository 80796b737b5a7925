"""`probe --csv`: a row for each setting. A cell is empty if its value was not measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from specllama.cli.compared import UNMEASURED, Unconfirmed, unconfirmed
from specllama.cli.tuning_lines import baseline_data, confirmation_data

if TYPE_CHECKING:
    from specllama.serving.probe import ProbeResult

_COLUMNS = (
    "target workload label methods draft n_max p_min alpha tau tokens_per_second "
    "prompt_per_second first_token_ms speedup speedup_low speedup_high draft_share "
    "chance_slower texts state predicted reason"
).split()


def csv_text(found: Sequence[ProbeResult]) -> str:
    """The table with its header, each workload's plain server first."""
    text = io.StringIO()
    out = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    for p in found:
        about = {"target": p.plan.target.title, "workload": p.tuned.workload}
        for row in _rows(p):
            out.writerow(about | row)
    return text.getvalue()


def _rows(p: ProbeResult) -> Iterator[dict[str, Any]]:
    if p.tuned.baseline is not None:
        measured = baseline_data(p.tuned.baseline) or {}
        yield {"label": "no speculation", "state": "baseline", **measured}
    for confirmation in p.tuned.confirmations:
        row = confirmation_data(confirmation)
        value, low, high = row["speedup"]
        yield row | {
            "methods": "+".join(row["methods"]),
            "speedup": value,
            "speedup_low": low,
            "speedup_high": high,
            "state": "confirmed",
            "predicted": row["predicted"][0] if row["predicted"] else None,
        }
    yield from map(_unconfirmed_row, unconfirmed(p.tuned, p.planned.task))


def _unconfirmed_row(o: Unconfirmed) -> dict[str, Any]:
    s, m = o.speculation, o.measurement
    has_length = s.uses_draft and o.state != UNMEASURED
    return {
        "label": o.label,
        "methods": "+".join(s.methods),
        "draft": s.draft,
        "n_max": s.n_max if has_length else None,
        "p_min": s.p_min if has_length else None,
        "alpha": m.alpha if m else None,
        "tau": m.log.tokens_per_step if m else None,
        "state": o.state,
        "predicted": o.speedup.value if o.speedup else None,
        "reason": o.reason,
    }
