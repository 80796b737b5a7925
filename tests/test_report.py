"""probe's figures, report, CSV and plot, for results built by hand."""

from __future__ import annotations

import csv
import io
import math
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specllama.cli import app, plot_file, probe_csv, probe_lines, probe_table, report, report_facts
from specllama.cli.charts import DARK, LIGHT, HeatMap, LineChart, doublings, ticks, whole
from specllama.cli.figures import tuning_charts
from specllama.cli.measured_settings import measured_sizes
from specllama.cli.plot_charts import shortened
from specllama.cli.svg import cut_to_width
from specllama.cli.svg_charts import svg
from specllama.engine.settings import NgramSizes, Settings
from specllama.errors import UsageError
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.probe import ProbeOptions, ProbeResult, plan_probes
from specllama.tuning.confidence import Interval
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.records import NgramSpeedups, TuningResult
from specllama.tuning.speedup import StepCost
from tests import made
from tests.support import MODELS

TARGET, DRAFT = (MODELS / f"{n}.gguf" for n in ("target", "draft"))


@pytest.fixture(scope="module")
def probe_result() -> ProbeResult:
    """The plan of one workload with a result built by hand."""
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    options = ProbeOptions(settings, (SpeculationOptions("code", DRAFT),), llama_server="embedded")
    (each,) = plan_probes(options)
    return ProbeResult(each, made.tuned())


def nothing_measured() -> TuningResult:
    return replace(
        made.tuned("open", best=False), baseline=None, trials=(), ngrams=(), predictions=(), confirmations=(),
        dropped=(), reason="loading took 50 s of 60: no time was left to measure anything",
    )  # fmt: skip


# ---- figures ----------------------------------------------------------------------


def test_every_figure_has_a_title_axes_with_units_and_one_sentence() -> None:
    found = {c.title: c for c in tuning_charts(made.tuned(), NgramSizes(12, 48))}
    assert list(found) == [
        "Speed-up by setting",
        "Speed-up by draft length",
        "Cost of verification",
        "Acceptance rate by position",
        "Speed-up by n-gram size: ngram-simple",
        "Speed-up by n-gram size: ngram-mod",
        "Speed-up by n-gram size: ngram-map-k with draft-simple d2.gguf K=3",
        "Where decoding time goes",
    ]
    captions = {title: c.caption for title, c in found.items()}
    best = "draft-simple d2.gguf K=3 is the fastest setting at 1.12x (1.07 to 1.17)."
    assert captions["Speed-up by setting"] == best
    verification = captions["Cost of verification"]
    assert verification.startswith("Verifying 4 tokens takes as long as 1.6 plain decoding steps")
    assert "a draft of 3 tokens pays off only with more than 0.6 accepted tokens" in verification
    speed = captions["Speed-up by draft length"]
    assert "draft-simple d2.gguf is predicted to be fastest with K=3 at 1.18x" in speed
    assert "measures 1.12x (1.07 to 1.17) on other prompts" in speed
    simple = captions["Speed-up by n-gram size: ngram-simple"]
    assert "against 0.95x with the workload's default n=12 m=48" in simple
    assert "measures 1.09x (1.03 to 1.15) with n=4 m=8 on other prompts" in simple
    assert "No size of ngram-mod" in captions["Speed-up by n-gram size: ngram-mod"]
    assert "spends 12% of its decoding time on drafting" in captions["Where decoding time goes"]
    for c in found.values():
        assert len(re.findall(r"\.(?: |$)", c.caption)) == 1, "exactly one sentence"
        assert_well_drawn(svg(c))
    cost = found["Cost of verification"]
    assert isinstance(cost, LineChart)
    assert (cost.x.label, cost.y.label) == ("tokens verified in one pass", "time (ms)")
    assert svg(found["Speed-up by n-gram size: ngram-simple"]).count("stroke-dasharray") == 2


def test_the_caption_of_a_search_without_a_gain() -> None:
    t = made.tuned(best=False)
    slower = tuple(made.confirmation(a.speculation, 0.9) for a in t.confirmations)
    first, *_ = tuning_charts(replace(t, confirmations=slower))
    assert first.caption.startswith("No setting is reliably faster than plain decoding; the fast")
    first, *_ = tuning_charts(replace(t, confirmations=()))
    assert first.caption.endswith("at 1.39x, which was not confirmed.")
    assert tuning_charts(nothing_measured()) == []


def test_an_arm_belongs_to_one_n_gram_map_only() -> None:
    both = replace(made.DRAFTED, methods=("ngram-map-k", "draft-simple"), ngram=NgramSizes(4, 6))
    confirmations = (
        made.confirmation(both, 1.3),
        made.confirmation(replace(both, p_min=0.5), 0.9),
        made.confirmation(made.NGRAM),
    )
    alone, _, joined = made.tuned().ngrams
    assert measured_sizes(joined, confirmations) == {(4, 6): confirmations[0].speedup}
    assert measured_sizes(alone, confirmations) == {(4, 8): confirmations[2].speedup}


def test_a_heat_map_includes_the_best_and_the_measured_sizes() -> None:
    ns = range(2, 65)
    speeds = {NgramSizes(n, m): 1.5 if (n, m) == (7, 41) else 0.9 for n in ns for m in ns}
    confirmation = made.confirmation(replace(made.NGRAM, ngram=NgramSizes(9, 33)))
    t = replace(
        made.tuned(), ngrams=(NgramSpeedups("ngram-simple", speeds),), confirmations=(confirmation,)
    )
    (chart,) = (c for c in tuning_charts(t) if isinstance(c, HeatMap))
    assert len(chart.columns) <= 13
    assert {7, 9} <= set(chart.rows)
    assert {41, 33} <= set(chart.columns)
    assert chart.best == (7, 41)
    assert set(chart.measured) == {(9, 33)}


def assert_well_drawn(figure: str) -> None:
    """Checks a figure: well-formed, only finite numbers, no label outside the frame or over another."""
    tree = ET.fromstring(figure)
    title, desc = tree[0], tree[1]
    assert tree.attrib["aria-labelledby"].split() == [title.attrib["id"], desc.attrib["id"]]
    assert title.text
    assert desc.text
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    boxes = []
    for e in tree.iter():
        assert not any("nan" in v or "inf" in v for v in e.attrib.values())
        if e.tag.endswith("text"):
            x, y, size = float(e.attrib["x"]), float(e.attrib["y"]), 7.5 * len(e.text or "")
            left = {"start": x, "middle": x - size / 2, "end": x - size}[e.attrib["text-anchor"]]
            boxes.append((left, y - 11, left + size, y, e.text))
            assert left >= -2, e.text
            assert left + size <= width + 2, e.text
            assert 8 <= y <= height, e.text
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, (a, b)


@pytest.mark.parametrize("longest", [2, 9, 40, 129])
@pytest.mark.parametrize("step_ms", [0.4, 12.0, 2400.0])
def test_figures_of_any_size_are_well_drawn(longest: int, step_ms: float) -> None:
    verify = {b: step_ms * (1 + 0.2 * (b - 1)) for b in range(1, longest + 1)}
    plain = replace(made.plain(), costs=VerifyCosts(StepCost(step_ms, 0.01, 9), verify))
    trials = (
        made.trial(top=min(longest, 16)),
        made.trial(replace(made.DRAFTED, methods=("draft-mtp",))),
    )
    wide = replace(trials[0], curve={1: Interval(1.2, 0.0, math.inf), 2: Interval(4.1, 0.2, 90.0)})
    for shown in (trials, (wide,), (replace(wide, curve={}),)):
        t = replace(made.tuned(), baseline=plain, trials=shown)
        for c in tuning_charts(t):
            assert_well_drawn(svg(c))


def test_a_result_of_one_prompt_is_drawn_without_an_interval() -> None:
    confirmation = made.confirmation(n=1)
    assert math.isinf(confirmation.speedup.high)
    for c in tuning_charts(replace(made.tuned(), confirmations=(confirmation,), best=confirmation)):
        assert_well_drawn(svg(c))


def test_ticks_are_round_and_within_the_range() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.63, 1.4) == pytest.approx([0.8, 1.0, 1.2, 1.4])
    assert doublings(1, 65) == [1, 2, 4, 8, 16, 32, 64]
    assert whole(5) == [1, 2, 3, 4, 5]
    assert len(whole(129)) <= 13
    assert cut_to_width("a very long name.gguf", 90).endswith(".gguf")
    assert shortened("a very long name.gguf", 11) == "a ver….gguf"


@pytest.mark.parametrize(("colours", "page"), [(LIGHT, "#ffffff"), (DARK, "#111827")])
def test_text_and_lines_have_enough_contrast(colours: dict[str, str], page: str) -> None:
    """WCAG 2.2: 4.5:1 for text, 3:1 for lines and bars."""
    for name, colour in colours.items():
        if name != "grid":
            assert contrast(colour, page) >= (4.5 if name in ("ink", "soft") else 3.0), name


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# ---- the report -------------------------------------------------------------------


class Page(HTMLParser):
    """Tags still open, ids, and addresses that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_works_offline_and_escapes_markup(probe_result: ProbeResult) -> None:
    with_markup = replace(made.tuned(), reason="<b>&amp; a file called <script>x</script>.gguf")
    text = report.html([replace(probe_result, tuned=with_markup), probe_result])
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.fetched == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<script" not in text
    assert "&lt;b&gt;&amp;amp; a file called &lt;script&gt;x" in text
    assert text.count("<figure>") == text.count("<svg") == text.count("<figcaption>") == 16
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_a_report_starts_with_the_model_a_verdict_and_the_key_facts(
    probe_result: ProbeResult,
) -> None:
    text = report.html([probe_result])
    verdict = "Speculative decoding gives a 1.12x speed-up (95% interval 1.07 to 1.17) on code."
    assert f"<title>target.gguf: {verdict}</title>" in text
    assert re.search(rf'<h1>target.gguf</h1>\s*<p class="verdict">{re.escape(verdict)}</p>', text)
    facts = {
        f.name.replace("\N{NO-BREAK SPACE}", " "): f for f in report_facts.results(probe_result)
    }
    assert facts["Speed-up"].value == "1.12x"
    assert facts["Best setting"].value == "draft-simple d2.gguf K=3"
    assert facts["Acceptance rate α"].value == "0.32"
    assert facts["Mean accepted length τ"].value == "1.97"
    assert facts["Decoding speed"].detail == "plain decoding 11.1 tok/s"
    model, machine, engine, when = report_facts.setup(probe_result.plan, "today")
    assert model.value == "3.8 M parameters"
    assert "threads" in machine.value
    assert (engine.value, when.value) == ("llama.cpp", "today")
    assert str(TARGET.parent) not in text.replace(probe_lines.run_line(probe_result), "")


def test_the_verdict_is_one_line_for_any_outcome(probe_result: ProbeResult) -> None:
    off = replace(probe_result, tuned=replace(made.tuned(best=False), workload="chat"))
    cut_short = replace(probe_result, tuned=nothing_measured())
    stopped = replace(off, stopped=True)
    assert report_facts.headline([off]).startswith("Speculative decoding does not pay off on chat")
    assert report_facts.headline([off]).endswith(
        "no setting is reliably faster than plain decoding."
    )
    predicted = replace(off, tuned=replace(off.tuned, confirmations=()))
    assert "no setting is predicted to be faster" in report_facts.headline([predicted])
    assert report_facts.headline([cut_short]).startswith("No verdict on code yet")
    assert report_facts.headline([stopped]).startswith("No verdict on chat yet")
    for p in (cut_short, stopped):
        assert next(iter(probe_lines.verdict_lines(p))).startswith("verdict  open")
    assert '<p class="reason">No verdict' in report.html([cut_short])
    every = report_facts.headline([probe_result, off, cut_short])
    assert every == (
        "Speculative decoding: 1.12x on code, no speed-up on chat, no verdict on code yet."
    )
    for p in (off, cut_short, stopped):
        assert Page(report.html([p])).open == []


def test_a_report_leaves_out_columns_and_rows_with_nothing_in_them(
    probe_result: ProbeResult,
) -> None:
    columns, rows = report._table(probe_result)
    assert all(any(row[i] for row in rows) for i in range(len(columns)))
    assert not any("not measured" in cell for row in rows for cell in row)
    assert report._table(replace(probe_result, tuned=nothing_measured()))[1] == []


def test_csv_has_a_row_per_setting(probe_result: ProbeResult) -> None:
    once = made.trial(replace(made.DRAFTED, draft=Path("/models/d3.gguf")))
    found = replace(probe_result, tuned=replace(probe_result.tuned, trials=(once,)))
    rows = csv.DictReader(io.StringIO(probe_csv.csv_text([found])))
    plain, drafted, copied, *others = rows
    assert plain["label"] == "no speculation"
    assert float(plain["tokens_per_second"]) > 0
    assert plain["speedup"] == plain["chance_slower"] == ""
    assert (
        float(drafted["speedup_low"]) < float(drafted["speedup"]) < float(drafted["speedup_high"])
    )
    assert (drafted["texts"], drafted["n_max"]) == ("9", "3")
    assert float(drafted["chance_slower"]) < 0.1
    assert copied["methods"] == "ngram-simple"
    assert [row["state"] for row in (plain, drafted, copied)] == [
        *("baseline", "confirmed", "confirmed")
    ]
    table = [cells[0] for cells in probe_table.rows(found)]
    assert [row["label"] for row in (plain, drafted, copied, *others)] == table
    launched = next(row for row in others if row["state"] == "launched once")
    assert (launched["n_max"], launched["speedup"], launched["texts"]) == ("8", "", "")
    assert float(launched["alpha"]) > 0
    assert float(launched["predicted"]) > 0
    predicted = next(row for row in others if row["state"] == "predicted")
    assert (predicted["methods"], predicted["alpha"]) == ("ngram-mod", "")
    assert float(predicted["predicted"]) == pytest.approx(1.0, abs=0.01)
    unmeasured = next(row for row in others if row["state"] == "not measured")
    known = {name for name, value in unmeasured.items() if value}
    assert known <= {"target", "workload", "label", "methods", "draft", "state", "reason"}


# ---- --plot -----------------------------------------------------------------------


def test_a_plot_is_a_png_or_an_svg_with_every_title(probe_result: ProbeResult) -> None:
    t = replace(made.tuned(), ngrams=made.tuned().ngrams[2:])
    nothing = replace(probe_result, tuned=replace(nothing_measured(), workload="chat"))
    two = [replace(probe_result, tuned=t), nothing]
    few = replace(probe_result, tuned=replace(made.tuned(), ngrams=(), trials=()))
    png = plot_file.plot_image([few], Path("p.PNG"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", png[16:20]) == (1600,)
    text = plot_file.plot_image(two, Path("p.svg")).decode("utf-8")
    words = " ".join("".join(e.itertext()) for e in ET.fromstring(text).iter() if "text" in e.tag)
    for chart in tuning_charts(t, probe_result.plan.workload.ngram):
        for word in chart.title.replace("-map-k with draft-simple", " ").split():
            assert word in words
    assert "Speculative decoding gives a 1.12x speed-up" in words
    assert "target.gguf, chat" in words
    assert "No verdict on chat yet" in words
    for label in ("draft length K (tokens)", "time (ms)", "speed-up over plain decoding"):
        assert label in words


def test_a_plot_accepts_any_file_name(probe_result: ProbeResult) -> None:
    """$…$ is TeX to matplotlib, and control characters are no XML."""
    odd = Path("/models/a$b$_\x1b[31m^{\udcff模型" + "x" * 200 + ".gguf")
    confirmation = made.confirmation(replace(made.DRAFTED, draft=odd))
    trial = made.trial(confirmation.speculation)
    maps = (replace(made.tuned().ngrams[0], draft=odd.name),)
    t = replace(
        made.tuned(), confirmations=(confirmation,), trials=(trial,), ngrams=maps, best=confirmation
    )
    p = replace(probe_result, tuned=t)
    ET.fromstring(plot_file.plot_image([p], Path("p.svg")))
    for c in tuning_charts(t):
        ET.fromstring(svg(c))
    assert "\\udcff" in report.html([p]).encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("name", ["p.pdf", "p", "p.svgz", ".png", "p.png.txt"])
def test_other_plot_formats_are_an_error_that_names_png_and_svg(name: str) -> None:
    with pytest.raises(UsageError, match="unsupported format") as e:
        plot_file.check(Path(name))
    assert e.value.hint == "Use a name ending in .png or .svg."


def test_without_matplotlib_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("specllama.serving.probe.run_probe", lambda *_: pytest.fail("measured"))
    assert app.run(["probe", str(TARGET), "--plot", str(tmp_path / "p.png")]) == 2
    stderr = capsys.readouterr().err
    assert "--plot needs matplotlib" in stderr
    assert "`pip install matplotlib`" in stderr
    assert len(stderr.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--plot", "{here}/p.jpg"], "unsupported format"),
        (["--plot", "{here}/none/p.png"], "no such folder"),
        (["--plot", "{here}/folder.png"], "is a folder"),
        (["--report", "{here}/none/r.html"], "no such folder"),
        (["--csv", "{here}/folder.png"], "is a folder"),
        (["--plot", "{here}/a.svg", "--report", "{here}/../{name}/a.svg"], "file of its own"),
        (["--plot", "{here}/p.png", "--replay", "{here}/c.jsonl"], "--replay cannot be combined"),
    ],
)
def test_unwritable_files_are_errors_before_measuring(
    args: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("specllama.serving.probe.run_probe", lambda *_: pytest.fail("measured"))
    (tmp_path / "folder.png").mkdir()
    given = [a.format(here=tmp_path, name=tmp_path.name) for a in args]
    assert app.run(["probe", str(TARGET), *given]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert len(stderr.splitlines()) <= 2
    assert [f.name for f in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize("option", ["--report", "--csv", "--plot"])
def test_report_files_are_errors_for_a_running_server(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """These options were once silently ignored."""
    file = str(tmp_path / "p.png")
    assert app.run(["probe", "--url", "http://127.0.0.1:9", option, file]) == 2
    assert f"{option} needs a MODEL" in capsys.readouterr().err


def test_report_csv_and_plot_are_written(
    probe_result: ProbeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(probe_result, tuned=replace(made.tuned(), ngrams=(), trials=()))
    monkeypatch.setattr("specllama.serving.probe.run_probe", lambda *_: (few,))
    names = {"--report": "r.html", "--csv": "r.csv", "--plot": "r.svg"}
    args = [a for o, n in names.items() for a in (o, str(tmp_path / n))]
    assert app.run(["probe", str(TARGET), "--llama-server", "embedded", *args]) == 0
    heads = ("<!doctype html>", "target,workload,", "<?xml")
    for name, head in zip(names.values(), heads, strict=True):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(head)


def test_help_and_probe_without_plot_import_no_matplotlib() -> None:
    code = "import sys; from specllama.cli import app; app.run(sys.argv[1:])\n"
    code += "assert not {'matplotlib', 'numpy'} & set(sys.modules)"
    for args in (["--help"], ["probe", str(TARGET), "--dry-run"]):
        subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True)
