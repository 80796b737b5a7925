"""advise: the rule that decided, the factors that would change it, the cost of tokens."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama import storage
from specllama.cli.app import run
from specllama.engine.settings import Settings, Speculation
from specllama.errors import UsageError
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.advise import (
    MEASURED,
    NGRAMS,
    NOTHING,
    PREDICTED,
    REJECTED,
    REPORTS,
    REQUESTED,
    rule_of,
)
from specllama.serving.decision_factors import DecisionFactor, decision_factors, needed_alpha
from specllama.serving.scope import scope_of
from specllama.serving.token_cost import HourlyPrice, cost_of, parse_price
from specllama.serving.tune import AUTO, TuningOptions, serve_task
from specllama.tuning import results
from specllama.tuning.judge import MIN_SPEEDUP
from specllama.tuning.results import Result, TriedSetting
from specllama.tuning.search import OpenResult
from tests import made
from tests.fake_server import Fake
from tests.support import MODELS

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
SPEC = Speculation(("draft-simple",), DRAFT, n_max=4)
OPTIONS = SpeculationOptions("code", DRAFT)


@pytest.fixture(autouse=True)
def _no_saved_results() -> None:
    results.clear_results()


def make_plan(tmp: Path, spec_options: SpeculationOptions = OPTIONS, parallel: int = 1) -> Plan:
    settings = Settings(TARGET, "127.0.0.1", 8080, parallel=parallel)
    return prepare(settings, spec_options, (), str(Fake(tmp).path), check_port=False)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan with draft.gguf, which reads 13% of the target's bytes."""
    return make_plan(tmp_path)


def make_result(gain: float | None = 1.3, alpha: float = 0.5, **more: Any) -> Result:
    """A result of K=4 with this gain and α."""
    given: dict[str, Any] = {
        "target": str(TARGET),
        "workload": "code",
        "speculation": SPEC if gain and gain >= MIN_SPEEDUP else None,
        "reason": "because",
        "speedup": (gain, gain - 0.1, gain + 0.1) if gain else None,
        "slower": 0.01,
        "tokens_per_second": 50.0,
        "engine": "",
        "devices": (),
        "when": 0.0,
        "since": 0.0,
        "state": "decided",
        "prompts": "profile",
        "texts": 8,
        "open_result": OpenResult(),
        "file": Path("x"),
        "tried": TriedSetting(SPEC, alpha, 1 + 4 * alpha),
    }
    return Result(**{**given, **more})


def factors(
    plan: Plan, result: Result | None, spec_options: SpeculationOptions = OPTIONS
) -> dict[str, DecisionFactor]:
    return {c.what: c for c in decision_factors(plan, plan, result, spec_options)}


@given(st.floats(0.05, 1), st.floats(0.3, 5))
def test_break_even_alpha_follows_from_the_cost_of_a_step(alpha: float, gain: float) -> None:
    r = make_result(gain, alpha)
    needed = needed_alpha(r)
    assert needed is not None
    if needed > 0:  # at that α, the same steps are MIN_SPEEDUP times as fast as plain ones
        step = (1 + 4 * alpha) / gain
        assert (1 + 4 * needed) / step == pytest.approx(MIN_SPEEDUP)


def test_no_break_even_alpha_without_a_measurement() -> None:
    assert needed_alpha(make_result(None)) is None
    assert needed_alpha(make_result(1.2, tried=None)) is None
    assert needed_alpha(make_result(0.9, tried=TriedSetting(SPEC, 0.0, 1.0))) is None


def test_break_even_alpha_is_reported_for_slower_and_faster_drafts(plan: Plan) -> None:
    loses = factors(plan, make_result(0.9))
    assert "at this cost per step, break-even is at α=0.61 (measured: 0.50)" in (
        loses["a draft with higher acceptance"].reason
    )
    assert loses["a draft with higher acceptance"].command.endswith("--hub")
    hopeless = factors(plan, make_result(0.3))
    assert "not even α=1 would pay" in hopeless["a cheaper draft"].reason
    wins = factors(plan, make_result(1.5))
    assert "break-even is at α=0.27" in wins["other text"].reason


def test_a_bigger_or_smaller_draft_is_suggested_by_alpha_and_cost(plan: Plan) -> None:
    assert "a smaller draft" in factors(plan, make_result(1.5, 0.9))
    assert "a bigger draft" not in factors(plan, make_result(0.9, 0.3))
    assert plan.choice.draft is not None
    light = replace(plan.choice.draft, active_bytes=plan.target.active_bytes // 50)
    cheap = replace(plan, choice=replace(plan.choice, draft=light))
    assert (
        "reads 2% of the target's bytes"
        in factors(cheap, make_result(0.9, 0.3))["a bigger draft"].reason
    )


def test_without_a_result_the_first_factor_is_a_probe_command(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, parallel=4)
    first = next(iter(decision_factors(plan, plan, None, OPTIONS)))
    assert first.what == "a measurement"
    command = first.command.split()
    assert command[:2] == ["specllama", "probe"]
    assert ("--draft", str(DRAFT)) in itertools.pairwise(command)
    assert "--parallel 4" in first.command
    assert "a measurement" not in factors(plan, make_result())
    assert "fewer slots" in factors(plan, make_result())


def test_a_lower_temperature_is_a_factor_only_above_zero(plan: Plan) -> None:
    assert "a lower temperature" in factors(plan, None)
    greedy = replace(plan.workload, sampling={"temperature": 0.0})
    assert "a lower temperature" not in factors(replace(plan, workload=greedy), None)


def test_a_draft_as_large_as_the_target_is_not_suggested(plan: Plan) -> None:
    assert plan.target.vocabulary is not None
    smol = replace(
        plan.target,
        path=Path("SmolLM2.gguf"),
        names=replace(plan.target.names, name="SmolLM2"),
        vocabulary=replace(plan.target.vocabulary, n_tokens=49152),
    )
    for parameters, suggested in ((135_000_000, False), (1_700_000_000, True)):
        of_size = replace(plan.without_speculation(""), target=replace(smol, parameters=parameters))
        assert ("another draft: SmolLM2-135M-Instruct" in factors(of_size, None)) == suggested


def test_the_rule_that_decided(plan: Plan, tmp_path: Path) -> None:
    off = plan.without_speculation("reports")
    assert rule_of(plan, plan, make_result(), OPTIONS) == MEASURED
    assert rule_of(plan, plan, None, OPTIONS) == REQUESTED
    assert rule_of(plan, plan, None, SpeculationOptions("code")) == PREDICTED
    assert rule_of(plan, off, None, SpeculationOptions("code")) == REPORTS
    assert rule_of(off, off, None, SpeculationOptions("code")) == NOTHING
    named_draft = SpeculationOptions("code", MODELS / "other-vocab.gguf")
    assert rule_of(off, off, None, named_draft) == REJECTED
    assert "no --draft" in [c.what for c in decision_factors(off, off, None, named_draft)]
    none = make_plan(tmp_path, SpeculationOptions("code", method="none"))
    assert rule_of(none, none, None, SpeculationOptions("code", method="none")) == REQUESTED
    ngram = plan.with_speculation(made.NGRAM)
    assert rule_of(ngram, ngram, None, SpeculationOptions("code")) == NGRAMS


def test_advise_defers_to_measuring_when_reports_are_negative(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("target.gguf", "draft.gguf"):
        shutil.copy(MODELS / name, tmp_path / name)
    fake = ["--llama-server", str(Fake(tmp_path).path)]
    assert run(["advise", str(tmp_path / "target.gguf"), "-w", "creative", *fake]) == 0
    out = capsys.readouterr().out
    assert (
        "decision off: draft-simple is not measured: acceptance of creative text at temperature 1"
        in out
    )
    assert "serve measures whether n-grams pay off" in out
    assert "rule     published measurements agree" in out
    assert "--all -w creative" in out


def test_a_setup_that_does_not_fit_in_memory_is_decided_by_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*advise_argv(tmp_path)[:-1], str(Fake(tmp_path).path), "--vram", "8M"]
    assert run(argv) == 0
    out = capsys.readouterr().out
    assert "rule     the requested setup does not fit in memory" in out
    assert "change   more memory: the requested setup does not fit (GPU0 is" in out


def test_cost_of_tokens_with_and_without_speculation() -> None:
    on = cost_of(make_result(1.25), HourlyPrice(1.8))  # 50 tok/s = 0.18 million an hour
    assert on.speculating == pytest.approx(10.0)
    assert on.baseline == pytest.approx(12.5)
    off = cost_of(
        make_result(0.5), HourlyPrice(1.8)
    )  # here the saved speed is that of plain decoding
    assert off.baseline == pytest.approx(10.0)
    assert off.speculating == pytest.approx(20.0)
    for nothing in (None, make_result(tokens_per_second=None), make_result(tokens_per_second=0.0)):
        assert cost_of(nothing, HourlyPrice(1.8)).baseline is None


@pytest.mark.parametrize(
    ("text", "per_hour", "unit"),
    [
        ("2.50/h", 2.5, ""),
        ("2.5", 2.5, ""),
        ("$2.50/h", 2.5, "$"),
        ("60 EUR/day", 2.5, "EUR"),
        ("€730/month", 1.0, "€"),
        (" 1 € / hour ", 1.0, "€"),
    ],
)
def test_prices(text: str, per_hour: float, unit: str) -> None:
    price = parse_price(text)
    assert price.per_hour == pytest.approx(per_hour)
    assert price.currency == unit


@pytest.mark.parametrize(
    "text", ["", "x", "0", "0/h", "-1/h", "2,50/h", "1e5", "2/week", "nan", "inf"]
)
def test_invalid_prices_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="per hour"):
        parse_price(text)


@given(st.text(max_size=12))
def test_any_text_is_a_price_or_a_usage_error(text: str) -> None:
    try:
        price = parse_price(text)
    except UsageError:
        return
    assert 0 < price.per_hour < math.inf


def save_result(tmp: Path, gain: float, state: str = "decided") -> Plan:
    """Saves the result that `advise TARGET --draft DRAFT -w code` looks up."""
    plan = make_plan(tmp)
    about = serve_task(plan, TuningOptions(AUTO, 60, scope_of(OPTIONS)))[2]
    confirmation = made.confirmation(SPEC, gain)
    best = confirmation if gain >= MIN_SPEEDUP else None
    reason = "so it was measured"
    tuned = replace(
        made.tuned(best=False),
        confirmations=(confirmation,),
        best=best,
        reason=reason,
        state=state,
    )
    results.store(about, tuned)
    return plan


def advise_argv(tmp: Path) -> list[str]:
    return [
        "advise",
        str(TARGET),
        "--draft",
        str(DRAFT),
        "-w",
        "code",
        "--llama-server",
        str(tmp / "llama-server"),
    ]


def test_alpha_and_tokens_per_step_are_saved_with_a_result(tmp_path: Path) -> None:
    save_result(tmp_path, 1.12)
    (result,) = results.all_results()
    m = made.confirmation(SPEC).measurement
    assert result.tried is not None
    assert result.tried.speculation == SPEC
    assert result.tried.alpha == pytest.approx(m.alpha)
    assert result.tried.tokens_per_step > 1
    data = storage.read_stored(result.file)
    assert data is not None
    del data["tried"]  # as earlier versions wrote it
    storage.write_stored(result.file, data)
    (old,) = results.all_results()
    assert old.tried is None
    storage.write_stored(result.file, {**data, "tried": {}})
    assert [r.tried for r in results.all_results()] == [None]
    for wrong in ({"alpha": 2, "tokens_per_step": 1}, {"alpha": 0.5, "tokens_per_step": 0.5}, 7):
        storage.write_stored(result.file, {**data, "tried": wrong})
        assert results.all_results() == (), "a damaged file is passed over"


@pytest.mark.parametrize(("gain", "on"), [(1.2, True), (0.9, False)])
def test_measured_figures_are_printed(
    gain: float, on: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = save_result(tmp_path, gain)
    argv = [*advise_argv(tmp_path)[:-1], str(plan.engine.argv[-1]), "--price", "$2.50/h"]
    assert run(argv) == 0
    out = capsys.readouterr().out
    assert "rule     measured on this machine" in out
    assert ("decision draft-simple draft.gguf K=4" in out) == on
    assert ("decision off: so it was measured" in out) != on
    assert "α=" in out
    assert "a million tokens:" in out
    assert "$ without" in out
    assert run([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["rule"] == "measured"
    assert data["cost_per_million"]["without"] > 0
    assert 0 < data["alpha"] <= 1
    assert data["alpha_needed"] > 0


def test_predicted_settings_are_not_reported_as_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = save_result(tmp_path, 0.9)
    (result,) = results.all_results()
    data = storage.read_stored(result.file)
    storage.write_stored(
        result.file, {**data, "speedup": None, "slower": None, "texts": 0, "tried": None}
    )
    assert run([*advise_argv(tmp_path)[:-1], str(plan.engine.argv[-1])]) == 0
    out = capsys.readouterr().out
    assert "measured plain decoding" in out
    assert "rule     predicted from a measurement on this machine" in out
    assert "the rest is predicted from that" in out
    assert "0 of" not in out


def test_an_open_result_is_continued_not_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = save_result(tmp_path, 1.01, "open")
    argv = [*advise_argv(tmp_path)[:-1], plan.engine.label]
    assert run([*argv, "--price", "2.50/h"]) == 0
    out = capsys.readouterr().out
    assert "note     not decided yet: so it was measured" in out
    assert "change   a longer measurement: the earlier one decided nothing yet" in out
    assert "nothing was measured" not in out
    assert "cost     a million tokens:" in out
    assert run(["serve", *argv[1:], "--dry-run"]) == 0
    assert "tuning   not decided yet: so it was measured; serve runs" in capsys.readouterr().out


def test_suggested_commands_name_the_engine_and_work_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make_plan(tmp_path).engine.label
    assert run([*advise_argv(tmp_path)[:-1], engine]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [x.split() for x in lines if x.lstrip().startswith("specllama ")]
    assert len(commands) > 2
    for command in commands:
        assert ("--llama-server", engine) in itertools.pairwise(command)
    (vllm,) = (c for c in commands if "vllm" in c)
    assert ("--target-repo", "OWNER/NAME") in itertools.pairwise(vllm)
    assert ("--draft-repo", "OWNER/NAME") in itertools.pairwise(vllm)
    assert run(vllm[1:]) == 0


def test_cost_is_unknown_without_a_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*advise_argv(tmp_path)[:-1], str(Fake(tmp_path).path), "--price", "2.50/h"]
    assert run(argv) == 0
    out = capsys.readouterr().out
    assert "cost     unknown: no speed was measured; run `specllama probe" in out
    assert run([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost_per_million"]["without"] is None


def test_invalid_input_prints_two_lines_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ["--llama-server", str(Fake(tmp_path).path)]
    (tmp_path / "no.gguf").write_bytes(b"no model")
    for argv in (
        ["advise", str(TARGET), "--price", "cheap", *fake],
        ["advise", str(tmp_path / "missing.gguf"), *fake],
        ["advise", str(tmp_path / "no.gguf"), *fake],
        ["advise", str(TARGET), "-w", "cooking", *fake],
        ["advise", str(TARGET), "--method", "draft-self", *fake],
    ):
        assert run(argv) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert len(err.splitlines()) <= 2
