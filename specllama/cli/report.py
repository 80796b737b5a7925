"""probe's report: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from specllama.cli import probe_lines, probe_table, report_facts
from specllama.cli.charts import DARK, LIGHT
from specllama.cli.compared import UNMEASURED, unconfirmed
from specllama.cli.figures import tuning_charts
from specllama.cli.svg_charts import svg

if TYPE_CHECKING:
    from specllama.serving.probe import ProbeResult

_NAMED = {
    "chance slower": "chance it is slower",
    "draft/verify": "draft / verify",
}


def html(found: Sequence[ProbeResult]) -> str:
    """The page about one model, a section for each workload."""
    from jinja2 import Environment

    source = files("specllama.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        source
    )
    plan = found[0].plan
    return template.render(
        title=plan.target.title,
        verdict=report_facts.headline(found),
        setup=list(report_facts.setup(plan, f"{date.today():%d %B %Y}".lstrip("0"))),
        found=[_section(p, f"w{i}") for i, p in enumerate(found)],
        light=LIGHT,
        dark=DARK,
    )


def _section(p: ProbeResult, name: str) -> dict[str, Any]:
    """What the template shows of one workload."""
    columns, rows = _table(p)
    lines = [_line(line) for line in probe_lines.verdict_lines(p)]
    charts = tuning_charts(p.tuned, p.plan.workload.ngram)
    return {
        "workload": p.tuned.workload,
        "state": report_facts.state(p),
        "results": list(report_facts.results(p)),
        "columns": columns,
        "rows": rows,
        "unmeasured": _unmeasured(p),
        "reason": next((text for name, text in lines if name == "verdict"), ""),
        "run": next((text for name, text in lines if name == "run"), ""),
        "details": [x for x in lines if x[0] not in ("verdict", "run")],
        "figures": [
            {"title": c.title, "caption": c.caption, "svg": svg(c, f"{name}f{i}")}
            for i, c in enumerate(charts)
        ],
    }


def _table(p: ProbeResult) -> tuple[list[str], list[list[str]]]:
    """The table's head and rows, without columns and rows in which nothing was measured."""
    columns = probe_table.columns(p)
    speedup = columns.index("speed-up")
    rows = [r for r in probe_table.rows(p) if r[speedup] != UNMEASURED]
    used = [i for i in range(len(columns)) if any(r[i] for r in rows)]
    return [_NAMED.get(columns[i], columns[i]) for i in used], [[r[i] for i in used] for r in rows]


def _unmeasured(p: ProbeResult) -> list[str]:
    """The settings that were neither measured nor predicted."""
    found = unconfirmed(p.tuned, p.planned.task)
    return [o.label for o in found if o.measurement is None and o.speedup is None]


def _line(line: str) -> tuple[str, str]:
    """A printed line as (what it is about, the rest): the first 8 characters are its name."""
    return line[:8].strip(), line[8:].strip()
