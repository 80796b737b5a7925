"""probe's report: one HTML file that opens offline, and a CSV of the arms."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama import __version__
from specllama.cli import probe_lines
from specllama.cli.figures import figures
from specllama.cli.tuning_lines import arm_data, plain_data
from specllama.errors import UsageError
from specllama.stop import signals_deferred

if TYPE_CHECKING:
    from specllama.serving.probe import ProbeResult

_COLUMNS = (
    "target workload label methods draft n_max p_min alpha tau tokens_per_second "
    "prompt_per_second first_token_ms speedup speedup_low speedup_high draft_share "
    "chance_slower texts"
).split()


def write_csv(path: Path, found: Sequence[ProbeResult]) -> None:
    """A row per arm, the plain server first. Raises UsageError when it cannot be written."""
    text = io.StringIO()
    out = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    for p in found:
        about = {"target": p.plan.target.title, "workload": p.tuned.workload}
        for row in _csv_rows(p):
            out.writerow(about | row)
    _write(path, text.getvalue())


def _csv_rows(p: ProbeResult) -> Iterator[dict[str, Any]]:
    if p.tuned.plain is not None:
        yield {"label": "no speculation", **(plain_data(p.tuned.plain) or {})}
    for arm in p.tuned.arms:
        row = arm_data(arm)
        value, low, high = row["speedup"]
        yield row | {
            "methods": "+".join(row["methods"]),
            "speedup": value,
            "speedup_low": low,
            "speedup_high": high,
        }


def write_html(path: Path, found: Sequence[ProbeResult]) -> None:
    """The report. Raises UsageError when it cannot be written."""
    from jinja2 import Environment

    source = files("specllama.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(source)
    sections = [_section(p) for p in found]
    _write(path, template.render(found=sections, version=__version__, when=f"{date.today()}"))


def _section(p: ProbeResult) -> dict[str, Any]:
    """What the template shows of one workload."""
    return {
        "title": probe_lines.title(p),
        "engine": f"{p.plan.engine.label}, {p.plan.capabilities.label}",
        "on": p.tuned.best is not None,
        "columns": probe_lines.columns(p),
        "rows": list(probe_lines.rows(p)),
        "verdict": [_line(line) for line in probe_lines.verdict(p)],
        "figures": figures(p.tuned, p.plan.workload.ngram),
    }


def _line(line: str) -> tuple[str, str]:
    """A printed line as (what it is about, the rest): the first 8 characters are its name."""
    return line[:8].strip(), line[8:].strip()


def _write(path: Path, text: str) -> None:
    try:
        with signals_deferred():
            path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{path} cannot be written ({e.strerror or e})") from None
