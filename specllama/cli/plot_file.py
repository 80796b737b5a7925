"""`probe --plot FILE`: the report's figures as one PNG or SVG, drawn by matplotlib."""

from __future__ import annotations

import io
import logging
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.errors import UsageError, install_hint

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

    from specllama.cli.charts import Chart
    from specllama.serving.probe import ProbeResult

_KINDS = ("png", "svg")
_COLUMNS = 2
_LONGEST = 105  # characters in a line of the verdict
# At 1600 pixels a picture is still legible when a README shows it 800 wide.
_WIDTH, _ROW_HEIGHT, _HEAD, _DPI = 10.0, 3.3, 0.75, 160  # inches
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fontsize": 9,
    "text.parse_math": False,  # a file's name may hold $
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "specllama",
}


def check(path: Path) -> None:
    """Raises UsageError for an unsupported format, or if matplotlib is missing."""
    if _kind(path) not in _KINDS:
        raise UsageError(f"--plot {path}: unsupported format", "Use a name ending in .png or .svg.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise UsageError(f"--plot needs matplotlib ({e})", install_hint("matplotlib")) from None
    except Exception as e:  # MPLBACKEND or a matplotlibrc that it does not accept
        raise UsageError(f"--plot: matplotlib could not be imported ({e})") from None


def plot_image(found: Sequence[ProbeResult], path: Path) -> bytes:
    """The figures of all workloads, one below the other, in the format of `path`'s suffix."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    charts = [_charts(p) for p in found]
    heights = [_HEAD + _ROW_HEIGHT * -(-len(c) // _COLUMNS) for c in charts]
    out = io.BytesIO()
    # The user's matplotlibrc does not apply; a glyph missing from the fonts is drawn as a box.
    style: dict[Any, Any] = {**mpl.rcParamsDefault, **_STYLE}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(_WIDTH, sum(heights)), dpi=_DPI, layout="constrained")
        parts = figure.subfigures(len(found), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, p, drawn in zip(parts, found, charts, strict=True):
            _workload(part, p, drawn)
        kind = _kind(path)
        figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return _smaller(out) if kind == "png" else out.getvalue()


def _smaller(png: io.BytesIO) -> bytes:
    """With a palette, a third of the size."""
    from PIL import Image

    out = io.BytesIO()
    image = (
        Image.open(png)
        .convert("RGB")
        .quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    )
    image.save(out, format="png", optimize=True)
    return out.getvalue()


def _kind(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _charts(p: ProbeResult) -> list[Chart]:
    from specllama.cli.figures import tuning_charts

    return tuning_charts(p.tuned, p.plan.workload.ngram)


def _workload(part: SubFigure, p: ProbeResult, charts: Sequence[Chart]) -> None:
    from specllama.cli.plot_charts import draw, shortened
    from specllama.cli.report_facts import headline

    title = shortened(f"{p.plan.target.title}, {p.tuned.workload}", 80)
    words = textwrap.fill(headline([p]), _LONGEST)
    part.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=12, linespacing=1.5)
    if not charts:
        return
    rows = -(-len(charts) // _COLUMNS)
    columns = min(_COLUMNS, len(charts))
    axes = part.subplots(rows, columns, squeeze=False).flatten()
    for a in axes[len(charts) :]:
        a.set_visible(False)
    for a, chart in zip(axes, charts, strict=False):
        draw(chart, a)
