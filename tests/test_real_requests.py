"""Real requests to a server of `specllama serve`: counted, saved, printed, and used by the next
start."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specllama.engine.settings import Settings, Speculation
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.past_traffic import apply_past_traffic, predict_from_traffic
from specllama.serving.result_keys import result_subject, traffic_subject
from specllama.serving.scope import SearchScope
from specllama.tuning import results
from specllama.tuning.confidence import Ratios
from specllama.tuning.step_times import StepTimes
from specllama.watching import own_requests, running, traffic
from specllama.watching.counters import Counts, between
from specllama.watching.prometheus_text import parse_snapshot
from tests import made
from tests.support import MODELS, Serve, specllama

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
TIMES = StepTimes(10.0, {0: 10.5, 1: 13.0, 2: 16.0, 4: 22.0})


@pytest.fixture(autouse=True)
def no_saved_traffic() -> None:
    traffic.clear()


def send_requests(url: str, count: int, tokens: int = 48) -> None:
    for i in range(count):
        body = {"prompt": f"def add_{i}(x):", "n_predict": tokens, "cache_prompt": False}
        httpx.post(f"{url}/completion", json=body, timeout=60).raise_for_status()


def counters(url: str) -> Any:
    found = parse_snapshot(httpx.get(f"{url}/metrics").text, time.monotonic())
    assert found is not None
    return found


def test_saved_traffic_agrees_with_the_servers_counters(tmp_path: Path, engine: str) -> None:
    args = (TARGET, "--draft", DRAFT, "-w", "code", "--llama-server", engine, "--no-idle-probes")
    with Serve(tmp_path, *args) as s:
        before = counters(s.url)
        send_requests(s.url, 6)
        counted = between(before, counters(s.url))
        assert running.at(s.url) is not None
        assert s.stop() == 0
    assert running.all_running() == ()
    data = json.loads(specllama("results", TARGET, "--json").stdout)
    (record,) = data["real_requests"]
    (setting,) = record["settings"]
    assert setting["drafted"] == counted.drafted != 0
    assert setting["alpha"] == pytest.approx(counted.alpha)
    assert setting["acceptance_by_position"] == pytest.approx(counted.acceptance)
    shown = specllama("results", TARGET).stdout
    assert f": α={counted.alpha:.2f} over {counted.drafted:,.0f} drafted tokens" in shown
    assert "1 record of real requests deleted" in specllama("results", TARGET, "--clear").stdout


def test_requests_of_probe_are_not_real(tmp_path: Path, engine: str) -> None:
    args = (TARGET, "--draft", DRAFT, "-w", "code", "--llama-server", engine, "--no-idle-probes")
    with Serve(tmp_path, *args) as s:
        done = specllama("probe", "--url", s.url, "-w", "code", "--budget", "1", "--json")
        assert done.returncode == 0, done.stderr
        s.wait_for(lambda: not list(own_requests.marks(s.popen.pid)), "end of the mark")
        shown = json.loads(specllama("watch", "--once", "--json").stdout)
        assert (shown["alpha"], shown["requests"]) == (None, 0)
        assert s.stop() == 0
    assert traffic.all_traffic() == ()


def test_a_changed_verdict_is_printed_once_as_line_and_event(tmp_path: Path, native: Path) -> None:
    """The tiny pair accepts a fifth of its drafted tokens."""
    args = (TARGET, "--draft", DRAFT, "-w", "code", "--llama-server", native)
    with Serve(tmp_path, *args, "--json-events", "--no-idle-probes") as s:
        assert s.info["event"] == "ready"
        out = tmp_path / "out"
        until = time.monotonic() + 60
        while out.read_text().count("\n") < 2:
            send_requests(s.url, 4)
            assert time.monotonic() < until
        send_requests(s.url, 4)
        time.sleep(4)
        event = json.loads(out.read_text().splitlines()[1])
        assert (event["event"], event["verdict"]) == ("real requests", "very low acceptance")
        assert event["drafted"] >= 300
        assert "`--adaptive` would switch" in event["text"]
        assert s.err.count("real requests: α=") == 1
        assert out.read_text().count("\n") == 2


def test_step_times_are_measured_while_the_server_is_idle(tmp_path: Path, native: Path) -> None:
    args = (TARGET, "--draft", DRAFT, "-w", "code", "--n-max", "2", "--llama-server", native)
    with Serve(tmp_path, *args) as s:
        before = counters(s.url)
        s.wait_for(
            lambda: counters(s.url).counts.tokens > before.counts.tokens + 20, "short requests"
        )
        s.wait_for(lambda: (r := running.at(s.url)) is not None and r.times, "times")
        send_requests(s.url, 2)
        time.sleep(0.5)
        shown = json.loads(specllama("watch", "--once", "--json").stdout)
        assert shown["requests"] == 2  # without the idle probes
        assert shown["since_start"]["speedup"] > 0
        assert s.stop() == 0
    (record,) = traffic.all_traffic()
    assert record.times is not None
    assert set(record.times.drafted) == {0, 1, 2}
    tokens = record.last.counts.tokens or 0
    assert 0 < tokens <= 2 * 48  # idle probes are not counted as traffic


def plan_of(native: Path, **spec_options: Any) -> Plan:
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    all_options = SpeculationOptions("code", DRAFT, n_max=4, **spec_options)
    return prepare(settings, all_options, (), str(native), check_port=False)


def counts_of(drafted: int, *by: int) -> Counts:
    """Counts with four drafted tokens per step."""
    steps = drafted // 4
    positions = tuple(float(x) for x in by)
    return Counts(drafted, sum(by), steps, positions, steps + sum(by), 1.0)


def save_traffic(plan: Plan, counts: Counts, log: float, spec: Speculation | None = None) -> None:
    about, spec = traffic_subject(plan), spec or plan.settings.speculation
    assert about is not None
    assert spec is not None
    logs = tuple(log + 0.01 * (i % 3) for i in range(12))
    traffic.add(about, spec, counts, Ratios(logs, (100.0,) * 12), TIMES)


def test_the_next_start_reports_past_traffic(native: Path) -> None:
    plan = plan_of(native)
    save_traffic(plan, counts_of(4000, 900, 850, 800, 750), 0.4)
    served, (line,) = apply_past_traffic(plan, plan, SearchScope(), TIMES)
    assert served == plan
    assert line.startswith(
        "real requests take precedence: α=0.82 over 4,000 drafted tokens, about 1.95x"
    )


def test_the_next_start_uses_the_best_draft_length_of_past_traffic(native: Path) -> None:
    plan = plan_of(native)
    save_traffic(plan, counts_of(4000, 800, 100, 10, 0), -0.1)
    served, (line,) = apply_past_traffic(plan, plan, SearchScope(), TIMES)
    assert served.settings.speculation is not None
    assert served.settings.speculation.n_max == 1
    assert "using K=1 instead (about 1.38x)" in line
    assert "--spec-draft-n-max 1" in served.command.display()
    fixed, _ = apply_past_traffic(plan, plan, SearchScope(lengths=(4,)), TIMES)
    assert fixed.settings.speculation is None  # at the K that the user fixed it was slower


def test_the_next_start_is_without_speculation_after_slow_requests(native: Path) -> None:
    plan = plan_of(native)
    save_traffic(plan, counts_of(4000, 100, 20, 5, 0), -0.5)
    served, (line,) = apply_past_traffic(plan, plan, SearchScope(), TIMES)
    assert served.settings.speculation is None
    assert "off: >99% chance of being slower than plain decoding" in line


def test_fast_past_traffic_overrides_a_measured_off(native: Path) -> None:
    plan = plan_of(native)
    off = plan.without_speculation("measured")
    assert apply_past_traffic(plan, off, SearchScope(), None) == (off, ())
    save_traffic(plan, counts_of(4000, 900, 850, 800, 750), 0.4)
    served, lines = apply_past_traffic(plan, off, SearchScope(), None)
    assert served.settings.speculation == plan.settings.speculation
    assert len(lines) == 1
    for fixed in (SearchScope(user_choice=True), SearchScope(lengths=(4,))):
        assert apply_past_traffic(plan, off, fixed, None) == (off, ())


def test_past_traffic_is_a_prediction_for_the_search(native: Path) -> None:
    plan = plan_of(native)
    assert predict_from_traffic(plan, SearchScope()) == (None, ())
    save_traffic(plan, counts_of(4000, 900, 850, 800, 750), 0.4)
    found, _ = predict_from_traffic(plan, SearchScope())
    assert found is not None
    assert found.speculation.n_max == 4
    assert found.ratios.value == pytest.approx(1.5, abs=0.02)
    assert predict_from_traffic(plan, SearchScope(user_choice=True)) == (
        None,
        (),
    )  # the user has chosen


def test_a_prediction_is_confirmed_with_the_short_steps_measured_before(native: Path) -> None:
    """A step of a short request may take a tenth longer than one within a response: without the
    baseline launch that measures this, a speed-up by real requests looked that much too high."""
    plan = plan_of(native)
    save_traffic(plan, counts_of(4000, 900, 850, 800, 750), 0.4)
    found, _ = predict_from_traffic(plan, SearchScope())
    assert found is not None
    assert found.short_step == 1.0
    before = made.tuned()
    assert before.baseline is not None
    other_workload = replace(result_subject(plan, (), SearchScope()), workload="chat")
    results.store(
        other_workload, replace(before, baseline=replace(before.baseline, short_step=1.1))
    )
    found, _ = predict_from_traffic(plan, SearchScope())
    assert found is not None
    assert found.short_step == 1.1
    results.clear_results()


def test_draft_lengths_without_a_timing_are_predicted_from_traffic(native: Path) -> None:
    plan = plan_of(native)
    assert plan.settings.speculation is not None
    longer = replace(plan.settings.speculation, n_max=8)
    counts = Counts(8000, 810, 1000, (800.0, 10.0, *(0.0,) * 6), 1810, 1.0)
    save_traffic(plan, counts, 0.4, longer)
    found, _ = predict_from_traffic(plan, SearchScope())
    assert found is not None
    assert found.speculation == longer


def test_a_search_after_slow_requests_reports_them(native: Path) -> None:
    plan = plan_of(native)
    save_traffic(plan, counts_of(4000, 100, 20, 5, 0), -0.5)
    found, (line,) = predict_from_traffic(plan, SearchScope())
    assert found is None
    assert line.endswith("slower than plain decoding, so other settings are tried")


def test_tuning_begins_with_the_setting_of_past_traffic(tmp_path: Path, native: Path) -> None:
    """The saved traffic says faster, but the tiny pair never is, so all other settings are tried."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("target.gguf", "draft.gguf"):
        (models / name).write_bytes((MODELS / name).read_bytes())
    target = models / "target.gguf"
    user_args = ("-t", "1", "-c", "1024")
    settings = Settings(target, "127.0.0.1", 0)
    plan = prepare(settings, SpeculationOptions("code"), user_args, str(native), check_port=False)
    assert plan.settings.speculation is not None
    save_traffic(plan, counts_of(4000, 900, 850, 800, 750), 0.4)
    args = (target, "-w", "code", "--llama-server", native, "--tune", "auto", "--budget", "20")
    with Serve(tmp_path, *args) as s:
        assert "tuning   real requests take precedence: α=0.8" in s.err
        assert s.info["tuning"]["confirmations"] or s.info["tuning"]["dropped"]


def test_little_traffic_decides_nothing(native: Path) -> None:
    plan = plan_of(native)
    save_traffic(plan, counts_of(200, 5, 1, 0, 0), -0.5)
    assert apply_past_traffic(plan, plan, SearchScope(), TIMES) == (plan, ())


def test_a_deleted_draft_is_not_predicted(native: Path, tmp_path: Path) -> None:
    plan = plan_of(native)
    spec = plan.settings.speculation
    assert spec is not None
    with_missing_draft = replace(
        plan,
        settings=replace(plan.settings, speculation=replace(spec, draft=tmp_path / "draft.gguf")),
    )
    save_traffic(with_missing_draft, counts_of(4000, 900, 850, 800, 750), 0.4)
    assert predict_from_traffic(plan, SearchScope()) == (None, ())
