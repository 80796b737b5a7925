"""probe's report: one HTML file that opens offline, and a CSV of the arms."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.cli import probe_lines
from specllama.cli.tuning_lines import arm_data
from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.serving.probe import Probed
    from specllama.tuning.arms import Tuned

_W, _H, _LEFT, _BOTTOM = 560, 260, 46, 30
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
_COLUMNS = (
    "target workload label methods draft n_max p_min alpha tau tokens_per_second "
    "prompt_per_second first_token_ms speedup speedup_low speedup_high draft_share"
).split()


def write_csv(path: Path, found: Sequence[Probed]) -> None:
    """A row per arm, the baseline first. Raises UsageError when it cannot be written."""
    text = io.StringIO()
    out = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    for p in found:
        for arm in (p.tuned.baseline, *p.tuned.arms):
            data = arm_data(arm)
            s = arm.speedup
            out.writerow(
                data
                | {
                    "target": p.plan.target.path.name,
                    "workload": p.tuned.workload,
                    "methods": "+".join(data["methods"]),
                    "speedup": s.value if s else "",
                    "speedup_low": s.low if s else "",
                    "speedup_high": s.high if s else "",
                    "draft_share": arm.split.draft_share if arm.split else "",
                }
            )
    _write(path, text.getvalue())


def write_html(path: Path, found: Sequence[Probed]) -> None:
    """The report. Raises UsageError when it cannot be written."""
    from jinja2 import Environment

    source = files("specllama.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(source)
    _write(
        path,
        template.render(
            found=[
                {
                    "title": probe_lines.title(p),
                    "rows": list(probe_lines.rows(p)),
                    "verdict": list(probe_lines.verdict(p)),
                    "speed": speed_plot(p.tuned),
                    "acceptance": acceptance_plot(p.tuned),
                    "split": split_plot(p.tuned),
                    "engine": f"{p.plan.engine.label}, {p.plan.capabilities.label}",
                }
                for p in found
            ]
        ),
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{path} cannot be written ({e.strerror or e})") from None


def speed_plot(t: Tuned) -> str:
    """SVG: speed-up against K, predicted as a line with its interval, measured as points."""
    curves = list(t.curves.items())
    points = [
        (a.speculation.n_max, a.speedup)
        for a in t.arms
        if a.speculation and a.speculation.uses_draft and a.speedup
    ]
    highs = [v.high for _, c in curves for v in c.values()] + [s.high for _, s in points if s]
    most_k = max([k for _, c in curves for k in c] + [k for k, _ in points] + [1])
    top = min(max([*highs, 1.2]), 10.0) * 1.05

    def x(k: float) -> float:
        return _LEFT + (k - 0.5) / most_k * (_W - _LEFT - 10)

    def y(v: float) -> float:
        return _H - _BOTTOM - min(v, top) / top * (_H - _BOTTOM - 10)

    out = [_line(_LEFT, y(1), _W - 10, y(1), "#888", "4 3"), _text(_W - 60, y(1) - 5, "plain")]
    out += [_text(x(k) - 4, _H - 10, str(k)) for k in range(1, most_k + 1)]
    out += [_text(4, y(v) + 4, f"{v:.1f}x") for v in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0) if v <= top]
    for i, ((name, curve), colour) in enumerate(zip(curves, _COLOURS * 9, strict=False)):
        if len(curves) > 1:
            out.append(_text(_W - 250, 16 + 15 * i, name, colour))
        ks = sorted(curve)
        upper = [f"{x(k):.1f},{y(curve[k].high):.1f}" for k in ks]
        lower = [f"{x(k):.1f},{y(max(0.0, curve[k].low)):.1f}" for k in reversed(ks)]
        out.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.15"/>')
        middle = " ".join(f"{x(k):.1f},{y(curve[k].value):.1f}" for k in ks)
        out.append(f'<polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for k, s in points:
        out.append(_line(x(k), y(max(0.0, s.low)), x(k), y(s.high), "#111"))
        out.append(f'<circle cx="{x(k):.1f}" cy="{y(s.value):.1f}" r="4" fill="#111"/>')
    return _svg(out)


def acceptance_plot(t: Tuned) -> str:
    """SVG: a_i by position of the arm with the longest draft."""
    logs = [a.measurement.log for a in t.arms if a.measurement.log.acceptance]
    acceptance = max((log.acceptance for log in logs), key=len, default=())
    step = (_W - _LEFT - 10) / max(1, len(acceptance))
    height = _H - _BOTTOM - 20
    out = []
    for i, a in enumerate(acceptance):
        left, top = _LEFT + i * step + 4, _H - _BOTTOM - a * height
        out.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(4.0, step - 8):.1f}" '
            f'height="{a * height:.1f}" fill="#2563eb"/>'
        )
        out.append(_text(left, top - 4, f"{a:.2f}"))
        out.append(_text(left + step / 3, _H - 10, str(i + 1)))
    return _svg(out)


def split_plot(t: Tuned) -> str:
    """SVG: of each arm's decoding time, the share spent drafting and the rest, verifying."""
    arms = [(a.label, a.split.draft_share) for a in t.arms if a.split]
    shown = [(name, share) for name, share in arms if share is not None]
    out, width = [], _W - 250
    for i, (name, share) in enumerate(shown):
        top = 12 + i * 26
        out.append(_text(4, top + 14, name[:34]))
        out.append(f'<rect x="236" y="{top}" width="{width}" height="18" fill="#93c5fd"/>')
        out.append(
            f'<rect x="236" y="{top}" width="{share * width:.1f}" height="18" fill="#d97706"/>'
        )
        out.append(_text(240, top + 14, f"{share:.0%} drafting"))
    return _svg(out, 30 + 26 * len(shown)) if shown else ""


def _svg(parts: Sequence[str], height: int = _H) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {_W} {height}" width="{_W}" height="{height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, colour: str = "#333") -> str:
    from html import escape

    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="{colour}">{escape(text)}</text>'
