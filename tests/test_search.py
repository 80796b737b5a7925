"""The tuner's decisions on simulated machines: correct, with few launches, within the budget."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning import results
from specllama.tuning.confidence import Ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import TuningDecision, decide
from specllama.tuning.measure import Measurement, Response
from specllama.tuning.records import (
    CRASHED,
    DECIDED,
    FORCED,
    OPEN,
    Confirmation,
    Prediction,
    TuningResult,
    setting_label,
)
from specllama.tuning.results import Subject
from specllama.tuning.run import Task, TrialCandidate
from specllama.tuning.search import Interrupted, OpenResult, tune
from tests.fake_runner import FakeRunner, RecordedProgress, Request, Script, simulated_clock, tuned

PROMPTS = tuple(f"prompt number {i}" for i in range(24))
DRAFT = Speculation(("draft-simple",), Path("draft.gguf"), n_max=4)
MTP = Speculation(("draft-mtp",), n_max=3)
EAGLE = Speculation(("draft-eagle3",), Path("eagle.gguf"), n_max=3)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))
SUBJECT = Subject("/models/t.gguf", "code", (("/models/t.gguf", 1, 2),), (), "b1", ("CPU",))


def task(*candidates: Speculation | TrialCandidate, **more: object) -> Task:
    all_candidates = tuple(
        c if isinstance(c, TrialCandidate) else TrialCandidate(c) for c in candidates
    )
    given = {"budget": 120.0, **more}
    return Task("code", PROMPTS, {"temperature": 0.2}, False, all_candidates, **given)  # type: ignore[arg-type]


def ngram_task(**more: object) -> Task:
    return task(ngrams=(NGRAM,), **more)


def smooth(b: int) -> float:
    """Verifying is nearly free up to 4 tokens, then costs: the optimum is K = 3."""
    return 10 + 0.5 * (b - 1) + (6 * (b - 4) if b > 4 else 0)


def flat(b: int) -> float:
    """A GPU with room: verifying is nearly free."""
    return 10 + 0.1 * (b - 1)


def steep(b: int) -> float:
    """Each verified token costs more than a plain step."""
    return 10 + 12.0 * (b - 1)


def no_gain(b: int) -> float:
    """The time to verify a draft cancels its gain at an acceptance of 0.7."""
    return 10 + 6.5 * (b - 1)


def cpu(b: int) -> float:
    """As measured on one thread: 90 ms, plus 17 ms for each further token."""
    return 90 + 17.0 * (b - 1)


def copying_script(**more: object) -> Script:
    """Half of each response is copied from a prompt of 150 tokens."""
    given: dict[str, object] = {"copies": lambda r: 0.5, "length": lambda p: 150, **more}
    return Script(more.pop("verify", cpu), **{k: v for k, v in given.items() if k != "verify"})  # type: ignore[arg-type]


def best_k(t: TuningResult) -> int | None:
    return t.best.speculation.n_max if t.best else None


# ---- draft length ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_smooth_optimum_is_found_in_three_launches(seed: int) -> None:
    t, runner = tuned(Script(smooth), task(DRAFT), seed)
    assert best_k(t) == 3
    assert t.best is not None
    assert t.best.speedup.value == pytest.approx(2.533 / 11.5 * 10, rel=0.12)
    assert t.loads == len(runner.launches) == 3
    assert runner.launches[-1] == t.best.speculation, "the last server is the one that serves"
    assert runner.up
    assert t.state == DECIDED
    assert t.reason.startswith("draft-simple draft.gguf K=3 is 2.")
    assert t.seconds < 120


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_length_with_a_jump_in_cost_is_not_launched(seed: int) -> None:
    """84 tok/s at K = 3, 6 at K = 4 (llama.cpp issue 25356)."""
    t, runner = tuned(Script(lambda b: 12 + 0.2 * b if b <= 4 else 400.0), task(DRAFT), seed)
    assert best_k(t) == 3
    assert t.loads == 3
    assert max(s.n_max for s in runner.launches if s) <= 3, "V(b) showed it before any launch"


def test_the_shortest_of_equally_fast_lengths_is_chosen() -> None:
    """With K = 1, 2 and 3 predicted within 3 %, the longest and least certain was once tried."""

    def verify(b: int) -> float:
        return 10.0 if b == 1 else 7.5 * (2 - 0.5 ** (b - 1))

    script = Script(verify, accept=lambda r: 0.5)
    chosen = [best_k(tuned(script, task(DRAFT), seed)[0]) for seed in range(10)]
    assert sum(k is not None and k <= 3 for k in chosen) >= 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lengths_above_eight_are_chosen_if_they_are_fastest(seed: int) -> None:
    """A block drafter on a GPU, where V is flat."""
    script = Script(flat, accept=lambda r: 0.92, own=lambda m: 0.2, once=("draft-dflash",))
    block = Speculation(("draft-dflash",), Path("block.gguf"), n_max=4)
    t, _ = tuned(script, task(TrialCandidate(block, longest=16, cost=0.02, one_pass=True)), seed)
    assert best_k(t) is not None
    assert best_k(t) > 8  # type: ignore[operator]
    assert t.loads == 3


def test_a_head_that_declines_with_depth_gets_a_short_draft() -> None:
    script = Script(lambda b: 10 + 1.0 * (b - 1), accept=lambda r: 0.8, decline=0.12)
    t, _ = tuned(script, task(MTP))
    trial = t.trials[0]
    assert trial.speculation.n_max > 3
    # τ(2) = 1 + 0.8 + 0.8·0.68
    assert trial.curve[2].value == pytest.approx((1 + 0.8 + 0.8 * 0.68) / 12 * 10, rel=0.08)
    assert best_k(t) == 3


def test_only_the_given_draft_lengths_are_measured() -> None:
    t, runner = tuned(Script(smooth), task(DRAFT, lengths=(1, 2)))
    assert set(t.trials[0].curve) == {1, 2}
    assert {s.n_max for s in runner.launches if s} <= {1, 2}
    assert best_k(t) == 2
    script = Script(smooth, accept=lambda r: 0.45)
    t, runner = tuned(script, task(DRAFT, lengths=(1, 2, 5), thorough=True, loads=12))
    assert {s.n_max for s in runner.launches if s} <= {1, 2, 5}
    assert {s.p_min for s in runner.launches if s} == {0.0, 0.5, 0.75}


def test_a_single_draft_length_needs_one_launch() -> None:
    t, runner = tuned(Script(smooth), task(DRAFT, lengths=(2,), p_min=0.5))
    assert [(s.n_max, s.p_min) for s in runner.launches if s] == [(2, 0.5)]
    assert best_k(t) == 2
    assert t.loads == 2


def test_an_impossible_draft_length_is_the_reason() -> None:
    t, runner = tuned(Script(smooth), task(TrialCandidate(MTP, longest=3), lengths=(4, 6)))
    assert runner.launches == [None]
    assert t.reason == "draft-mtp: its files and memory limit K to 3"


def test_lengths_beyond_the_longest_possible_are_not_launched() -> None:
    _, runner = tuned(Script(smooth), task(TrialCandidate(MTP, longest=2)))
    assert max(s.n_max for s in runner.launches if s) == 2


def test_p_min_is_varied_if_many_drafted_tokens_are_rejected() -> None:
    def accept(r: Request) -> float:
        return 0.85 if r.speculation and r.speculation.p_min else 0.4

    script = Script(smooth, accept=accept)
    t, runner = tuned(script, task(DRAFT, thorough=True, loads=12, budget=400.0))
    assert {s.p_min for s in runner.launches if s} == {0.0, 0.5, 0.75}
    assert t.best is not None
    assert t.best.speculation.p_min > 0


def test_every_setting_of_a_probe_is_confirmed_on_enough_prompts() -> None:
    """The first settings once used up the prompts, and 1.16x (0.09 to 14.77) over three responses
    was "off" with most of the budget left."""
    script = Script(smooth, accept=lambda r: 0.5, spread=0.15, noise=0.1)
    t, _ = tuned(script, task(DRAFT, thorough=True, loads=12, budget=4000.0), 2)
    assert len(t.confirmations) == 3
    for confirmation in t.confirmations:
        assert len(confirmation.pooled_ratios) >= 5
        sent = [a.prompt_ids for a in confirmation.measurement.responses]
        assert len(set(sent)) == len(sent), "none twice to one server"
    chose = {a.prompt_ids for x in t.trials for a in x.measurement.responses}
    assert not chose & {a.prompt_ids for x in t.confirmations for a in x.measurement.responses}


def test_a_setting_that_is_slower_after_long_prompts_has_that_in_its_reason() -> None:
    """Seen: "on" next to "after 512 tokens: 0.33x"."""
    script = Script(smooth, accept=lambda r: 0.8 if r.prompt else 0.02)
    wanted = task(DRAFT, thorough=True, loads=12, budget=400.0, context=4096)
    t, _ = tuned(script, wanted)
    assert t.best is not None
    assert t.best.deep is not None
    assert (t.best.deep.tokens, t.best.deep.responses) == (1024, 3)
    assert t.reason.endswith(
        f"; after a prompt of 1,024 tokens it was {t.best.deep.speedup:.2f}x, slower than plain "
        "decoding: use --method none for such prompts"
    )
    t, _ = tuned(replace(script, accept=lambda r: 0.8), wanted)
    assert t.best is not None
    assert t.best.deep is not None
    assert t.best.deep.speedup > 1.5
    assert "after a prompt" not in t.reason


def test_a_prompt_is_long_only_next_to_shorter_ones() -> None:
    wanted = task(DRAFT, thorough=True, loads=12, budget=400.0, context=4096)
    t, _ = tuned(Script(smooth, length=lambda prompt: 512), wanted)
    assert [x.deep is not None for x in t.confirmations[:1]] == [True]
    t, _ = tuned(Script(smooth, length=lambda prompt: 513), wanted)
    assert [x.deep is not None for x in t.confirmations[:1]] == [False]


def test_the_cost_of_a_step_includes_the_drafts_own_pass() -> None:
    """A step without a draft on a drafting server is slower by one pass, as its log shows."""
    t, _ = tuned(
        Script(cpu, own=lambda m: 11.0), task(TrialCandidate(DRAFT, cost=0.1), budget=300.0)
    )
    assert t.trials[0].own_ms == pytest.approx(11, rel=0.02)
    assert t.trials[0].plain_step.ms == pytest.approx(90, rel=0.02)
    assert t.confirmations[0].plain_ms == pytest.approx(90, rel=0.02)


def test_only_the_trial_is_traced() -> None:
    """A server that goes on to serve must not list its cache at every request."""
    found, runner = tuned(Script(flat, own=lambda m: 1.0), task(DRAFT))
    assert found.best is not None
    assert [s.n_max if s else 0 for s in runner.launches[:1]] == [0]
    assert runner.traced == [False, True, False]
    assert found.confirmations[0].plain_ms == pytest.approx(
        10, rel=0.02
    )  # minus the draft's own pass


@pytest.mark.parametrize(("method", "traced"), [(DRAFT, True), (MTP, True), (EAGLE, False)])
def test_without_a_trial_the_confirmation_is_traced(method: Speculation, traced: bool) -> None:
    """If a whole draft takes one pass, the log does not show its cost."""
    _, runner = tuned(Script(flat, own=lambda m: 1.0), task(method, lengths=(3,)))
    assert runner.traced == [False, traced]


@pytest.mark.parametrize(("own", "traced"), [(0.1, False), (None, True)])
def test_the_draft_time_of_an_earlier_start_is_used(own: float | None, traced: bool) -> None:
    """The search continues with one load, which can go on to serve."""
    known = Prediction(
        replace(DRAFT, n_max=3), Ratios((0.4, 0.5), (1.0, 1.0)), "earlier", own_share=own
    )
    found, runner = tuned(
        Script(flat, own=lambda m: 1.0), task(DRAFT), earlier=OpenResult((known,))
    )
    assert runner.traced == [traced]
    assert found.confirmations[0].plain_ms == pytest.approx(10, rel=0.02)


# ---- past traffic ----------------------------------------------------------------


def test_the_setting_of_past_traffic_is_confirmed_first_in_one_load() -> None:
    prior = Prediction(replace(DRAFT, n_max=3), ratios(*[0.4] * 8), "real requests", own_share=0.0)
    found, runner = tuned(Script(flat), task(DRAFT, MTP), prior=prior)
    assert (best_k(found), found.loads, found.state) == (3, 1, DECIDED)
    assert [s.n_max for s in runner.launches if s] == [3]


def test_other_settings_are_tried_if_past_traffic_is_refuted() -> None:
    """For example, traffic of another machine: here a draft loses and n-grams win."""
    prior = Prediction(replace(DRAFT, n_max=3), Ratios(), "real requests", own_share=0.0)
    script = copying_script(accept=lambda r: 0.05)
    found, runner = tuned(script, ngram_task(budget=400.0), prior=prior)
    assert runner.launches[:2] == [prior.speculation, None]
    assert found.best is not None
    assert found.best.speculation.methods == ("ngram-simple",)
    assert found.loads <= 5


def test_a_refuted_prediction_leaves_as_many_loads_as_there_are_without_one() -> None:
    """One for it, then the baseline, the trial, the confirmation, and one in reserve."""
    ngrams = Speculation(("ngram-simple",), ngram=NgramSizes(4, 8))
    prior = Prediction(ngrams, Ratios(), "real requests", own_share=0.0)
    found, runner = tuned(Script(flat), task(DRAFT, budget=400.0), prior=prior)
    assert [s and s.methods for s in runner.launches] == [
        *(("ngram-simple",), None, ("draft-simple",), ("draft-simple",)),
    ]
    assert found.best is not None
    assert found.best.speculation.uses_draft


# ---- off, and without launches ---------------------------------------------------


def test_nothing_is_launched_if_no_draft_can_pay_off() -> None:
    """A MoE on one GPU: each verified token reads more experts (issue 19493)."""
    t, runner = tuned(Script(steep), task(DRAFT, MTP))
    assert t.best is None
    assert runner.launches == [None]
    assert (t.loads, t.state) == (1, DECIDED)
    assert (
        "draft-simple draft.gguf: no draft can pay off here: verifying 2 tokens takes as long as 2.2 "
        "plain steps, so even a free draft at 100% acceptance gives 0.91x"
    ) in t.reason
    assert [d.setting for d in t.dropped] == ["draft-simple draft.gguf", "draft-mtp"]


def test_off_by_costs_alone_rests_on_more_than_two_short_responses() -> None:
    """Two responses of 16 tokens once gave a decided "off" with 39 of 40 s left."""
    t, runner = tuned(Script(steep), task(DRAFT))
    assert (runner.launches, t.state) == ([None], DECIDED)
    assert t.baseline is not None
    tokens = [a.tokens for a in t.baseline.measurement.responses]
    assert len(tokens) >= 5
    assert max(tokens) > 16
    few, _ = tuned(Script(steep), replace(task(DRAFT), prompts=PROMPTS[:3]))
    assert few.baseline is not None
    assert len(few.baseline.measurement.responses) == 3, "no prompt twice"
    assert t.seconds < 0.4 * 120


@pytest.mark.parametrize("thorough", [True, False])
def test_a_probe_of_a_fast_model_measures_the_baseline_longer(thorough: bool) -> None:
    """Seen: tok/s from two responses of 16 tokens, with 57 of 60 s left."""
    script = Script(lambda b: no_gain(b) / 10, accept=lambda r: 0.4)
    t, _ = tuned(script, task(DRAFT, thorough=thorough))
    assert t.baseline is not None
    assert (len(t.baseline.measurement.responses) > 5) == thorough


def test_an_uncertain_plain_step_does_not_rule_out_a_draft() -> None:
    """Verifying 2 tokens takes 1.9 plain steps, or 2.0."""
    script = Script(lambda b: 10 + 9.5 * (b - 1))
    assert tuned(script, task(DRAFT))[0].loads == 1
    unsteady = replace(script, load=lambda s: 1.0 if s % 2 < 1 else 1.3)
    assert tuned(unsteady, task(DRAFT))[0].loads == 2


def test_a_draft_that_costs_too_much_is_not_launched() -> None:
    t, _ = tuned(Script(flat), task(TrialCandidate(DRAFT, cost=1.2)))
    assert t.loads == 1
    assert "drafting takes 12.0 ms per token, plain decoding 10.0 ms: not even 100%" in t.reason


def test_a_draft_that_needs_an_unrealistic_acceptance_is_not_launched() -> None:
    t, _ = tuned(Script(lambda b: 10 + 9.1 * (b - 1)), task(DRAFT))
    assert t.loads == 1
    assert "1.03x would need 9" in t.reason
    assert "more than 95% has never been observed" in t.reason


def test_a_draft_without_a_gain_is_off_after_one_launch() -> None:
    t, _ = tuned(Script(no_gain, accept=lambda r: 0.4), task(DRAFT))
    assert t.best is None
    assert t.loads == 2
    assert "x predicted (one launch at K=" in t.reason


def test_high_acceptance_without_a_gain_is_off() -> None:
    """91 % accepted, 30.6 against 48.6 tok/s (continuum 2547)."""
    script = Script(flat, own=lambda m: 14.0, accept=lambda r: 0.98)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.1)))
    assert t.best is None
    assert t.trials[0].measurement.alpha is not None
    assert t.trials[0].measurement.alpha > 0.8


def test_a_draft_is_not_launched_if_n_grams_are_certainly_faster() -> None:
    script = Script(flat, copies=lambda r: 0.95, span=60, length=lambda p: 150)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, longest=1), ngrams=(NGRAM,)))
    assert t.loads == 2
    (reason,) = (d.reason for d in t.dropped if d.setting == "draft-simple draft.gguf")
    assert reason.startswith("at most ")
    (predicted,) = t.predictions
    assert reason.endswith(
        f"; {setting_label(predicted.speculation)} without a draft is predicted at "
        f"{predicted.ratios.value:.2f}x"
    ), "the number that `expected` gives"
    assert t.best is not None
    assert t.best.speculation.methods == ("ngram-simple",)


def test_a_head_that_is_never_accepted_is_named() -> None:
    t, runner = tuned(Script(lambda b: 10 + b, accept=lambda r: 0.0), task(MTP))
    assert t.best is None
    assert re.search(
        "it only costs time: 0 of [0-9]+ drafted tokens accepted; its MTP head is", t.reason
    )
    assert len(runner.launches) == 2


def test_degenerate_output_never_wins() -> None:
    def text(r: Request) -> str:
        return "same" if r.speculation else "word"

    t, _ = tuned(Script(smooth, accept=lambda r: 0.95, text=text), task(DRAFT))
    assert t.best is None
    assert "degenerate output" in t.reason
    t, _ = tuned(copying_script(text=text), ngram_task(budget=300.0))
    assert t.best is None
    assert "degenerate output" in t.reason
    t, _ = tuned(copying_script(text=text), ngram_task(budget=300.0, force=True))
    assert t.best is None, "not even by --force"


def test_one_degenerate_response_does_not_rule_out_a_method() -> None:
    """Sampling once made one response in twelve repeat itself, and the method was dropped."""
    script = Script(smooth, text=lambda r: "same" if r.prompt == PROMPTS[1] else "word")
    t, _ = tuned(script, task(DRAFT))
    assert best_k(t) == 3


def test_full_acceptance_on_a_hybrid_model_is_not_trusted() -> None:
    t, _ = tuned(Script(smooth, accept=lambda r: 1.0), task(MTP, hybrid=True))
    assert t.best is None
    assert "its state may not be rolled back" in t.reason


# ---- n-grams ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_n_grams_are_predicted_and_confirmed_in_two_launches(seed: int) -> None:
    t, runner = tuned(copying_script(), ngram_task(budget=300.0), seed)
    assert t.best is not None
    assert t.best.speculation.methods == ("ngram-simple",)
    assert t.loads == len(runner.launches) == 2
    assert t.best.predicted is not None
    assert t.best.predicted.low < t.best.ratios.value < t.best.predicted.high
    assert len(t.ngrams) == 1
    sizes = t.best.speculation.ngram
    assert sizes is not None
    best_of_map = max(t.ngrams[0].speedups.values())
    assert t.ngrams[0].speedups[sizes] > 0.93 * best_of_map
    assert t.ngrams[0].speedups[NgramSizes(12, 48)] < best_of_map - 0.1, "the guide's sizes"


def test_responses_without_repetition_need_no_launch_of_n_grams() -> None:
    t, runner = tuned(Script(cpu, length=lambda p: 150), ngram_task())
    assert t.best is None
    assert runner.launches == [None]
    assert "nothing would be drafted: no 2-token sequence repeated in the responses" in t.reason


def test_n_gram_sizes_of_the_user_are_kept() -> None:
    t, runner = tuned(copying_script(), ngram_task(fixed=True, budget=300.0))
    assert list(t.ngrams[0].speedups) == [NgramSizes(12, 48)]
    drafting = [s for s in runner.launches if s]
    assert {s.ngram for s in drafting} == {NgramSizes(12, 48)}


def test_every_n_gram_type_is_replayed_and_the_best_launched() -> None:
    types = tuple(
        replace(NGRAM, methods=(m,)) for m in ("ngram-simple", "ngram-map-k", "ngram-mod")
    )
    t, _ = tuned(copying_script(), task(ngrams=types, budget=300.0))
    assert {m.method for m in t.ngrams} == {"ngram-simple", "ngram-map-k", "ngram-mod"}
    assert t.loads <= 3


def test_n_grams_are_launched_if_responses_have_no_ids() -> None:
    """Without a replay, the profile's sizes and shorter ones are tried."""
    script = Script(cpu, gives_ids=False)
    t, runner = tuned(script, ngram_task(budget=900.0))
    assert t.best is None
    assert [s.ngram for s in runner.launches if s and s.ngram] == [
        NgramSizes(6, 12),
        NgramSizes(12, 48),
    ]
    assert [d.reason for d in t.dropped] == [
        "nothing was drafted: no 6-token sequence repeated",
        "nothing was drafted: no 12-token sequence repeated",
    ]


def test_n_grams_on_hybrid_models_are_launched_without_a_replay() -> None:
    t, runner = tuned(copying_script(), ngram_task(hybrid=True, budget=300.0))
    assert t.ngrams == ()
    assert next(s.ngram.n for s in runner.launches if s and s.ngram) == 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_combination_is_chosen_if_it_is_fastest(seed: int) -> None:
    """A part is copied, and a draft predicts the rest well: neither alone is as fast."""
    script = Script(
        flat,
        own=lambda m: 2.0,
        accept=lambda r: 0.75,
        copies=lambda r: 0.35,
        span=40,
        length=lambda p: 150,
    )
    t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.1), ngrams=(NGRAM,)), seed)
    assert t.best is not None
    assert t.best.speculation.methods == ("ngram-simple", "draft-simple")
    assert t.loads == 3
    assert {m.draft for m in t.ngrams} >= {""}
    alone = [p.ratios.value for p in t.predictions if len(p.speculation.methods) == 1]
    assert t.best.ratios.value > max(alone) * 0.97


def test_only_the_combination_is_measured_if_the_user_chose_it() -> None:
    combined_task = task(
        TrialCandidate(DRAFT, cost=0.1), ngrams=(NGRAM,), ngrams_alone=False, drafts_alone=False
    )
    script = Script(flat, own=lambda m: 1.0, copies=lambda r: 0.5, length=lambda p: 150)
    t, _ = tuned(script, combined_task)
    assert {p.speculation.methods for p in t.predictions} == {("ngram-simple", "draft-simple")}


# ---- several methods -------------------------------------------------------------


def test_the_fastest_of_several_drafts_is_chosen() -> None:
    script = Script(flat, own=lambda m: 0.3 if m == "draft-mtp" else 3.0)
    t, _ = tuned(script, task(DRAFT, MTP, loads=12))
    assert t.best is not None
    assert t.best.label.startswith("draft-mtp")


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_more_than_four_loads_before_serving(seed: int) -> None:
    """With any number of settings; the load of the final server without speculation counts too."""
    types = tuple(replace(NGRAM, methods=(m,)) for m in ("ngram-simple", "ngram-mod"))
    script = copying_script(verify=no_gain, accept=lambda r: 0.65, noise=0.05)
    t, runner = tuned(script, task(DRAFT, MTP, ngrams=types, budget=600.0), seed)
    serving = t.best is None or runner.launches[-1] != t.best.speculation
    assert t.loads + serving <= 4


def test_a_degenerate_setting_does_not_hide_a_good_one() -> None:
    """The best setting by prediction repeats one word when it is launched: the next one serves."""

    def text(r: Request) -> str:
        return "same" if r.speculation is not None and r.speculation.uses_ngram else "word"

    script = Script(
        flat,
        own=lambda m: 2.0,
        accept=lambda r: 0.62,
        text=text,
        copies=lambda r: 0.35,
        span=40,
        length=lambda p: 150,
    )
    t, runner = tuned(script, task(TrialCandidate(DRAFT, cost=0.2), ngrams=(NGRAM,), loads=6))
    assert ("ngram-simple", "draft-simple") in [s.methods for s in runner.launches if s]
    assert t.best is not None
    assert t.best.speculation.methods == ("draft-simple",)
    assert t.best.speculation == runner.launches[-1]
    assert t.state == DECIDED
    assert any("degenerate" in d.reason for d in t.dropped)


def test_force_uses_the_fastest_setting_even_if_slower() -> None:
    t, _ = tuned(Script(steep), task(DRAFT, force=True))
    assert t.best is not None
    assert t.best.speedup.value < 1
    assert t.reason.endswith("used anyway because of --force")
    assert t.state == FORCED
    results.store(SUBJECT, t)
    assert results.find(SUBJECT) == (None, ""), "never kept as the answer"


# ---- noise, and machines that change ---------------------------------------------


def test_noise_of_a_tenth_does_not_hide_a_clear_gain() -> None:
    on = sum(
        tuned(Script(smooth, noise=0.1), task(DRAFT), s)[0].best is not None for s in range(10)
    )
    assert on == 10


def test_a_machine_that_slows_down_does_not_change_the_decision() -> None:
    """The machine is slower at each launch, so a server is compared only with itself."""
    slowing = Script(no_gain, accept=lambda r: 0.65, drift=lambda n: 1 + 0.04 * n)
    t, _ = tuned(slowing, task(TrialCandidate(DRAFT, longest=1)))
    assert t.best is None
    gaining = Script(smooth, drift=lambda n: 1 + 0.1 * n)
    t, _ = tuned(gaining, task(DRAFT))
    assert best_k(t) == 3
    assert t.best is not None
    assert t.best.speedup.value == pytest.approx(2.2, rel=0.12)
    assert t.best.plain_ms == pytest.approx(13, rel=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_temporarily_slow_machine_does_not_hide_a_gain(seed: int) -> None:
    """With the baseline at full speed and the trial at two thirds of it, a draft with a gain of
    1.2x was once dropped unconfirmed."""
    script = Script(lambda b: 10 + 2.5 * (b - 1), load=lambda s: 1.5 if 5 <= s < 20 else 1.0)
    t, _ = tuned(script, task(DRAFT), seed)
    assert best_k(t) == 2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_first_step_does_not_raise_the_speed_up(seed: int) -> None:
    """The step of a request of two tokens takes a tenth longer than those within a response, and it
    serves as the plain step on a drafting server."""
    waking = Script(lambda b: 10 + 7.5 * (b - 1), accept=lambda r: 0.65, first=1.15, noise=0.02)
    t, _ = tuned(waking, task(TrialCandidate(DRAFT, longest=1), force=True), seed)
    assert t.baseline is not None
    assert t.baseline.short_step == pytest.approx(1.15, rel=0.03)
    (confirmation,) = t.confirmations
    assert confirmation.plain_ms == pytest.approx(10, rel=0.04)
    assert confirmation.ratios.value == pytest.approx(1.65 / 1.75, rel=0.05), "not 1.08x"


def test_repeated_prompts_do_not_raise_the_acceptance() -> None:
    """The acceptance for a repeated prompt is far too high (issues 10455, 26100)."""
    script = Script(smooth, accept=lambda r: 0.99 if r.seen else 0.3)
    t, _ = tuned(script, task(DRAFT))
    acceptance = t.trials[0].measurement.log.acceptance
    assert acceptance[0] == pytest.approx(0.3, abs=0.06)
    for confirmation in t.confirmations:
        assert confirmation.measurement.log.acceptance[0] == pytest.approx(0.3, abs=0.08)


# ---- old builds, odd builds ------------------------------------------------------


def test_an_old_build_is_measured_by_whole_responses() -> None:
    """Without token ids, timings per token and a cached prefix, K is not tuned, but the result is
    decided."""
    script = Script(smooth, per_token=False, counts=False, gives_ids=False, tokenizes=False)
    t, _ = tuned(script, task(DRAFT))
    assert t.baseline is not None
    assert any("/tokenize" in x for x in t.baseline.limitations)
    (missing,) = t.trials[0].measurement.missing
    assert missing.startswith("no per-token timings")
    assert any("no prediction for K: no per-token timings" in d.reason for d in t.dropped)
    assert best_k(t) == 4, "the profile's length"
    assert t.loads == 3


def test_a_build_without_a_prompt_cache_gives_no_verification_costs() -> None:
    """`prompt_n` is then the whole prompt."""
    t, _ = tuned(Script(smooth, caches=False), task(DRAFT))
    assert t.baseline is not None
    assert sorted(t.baseline.costs.verify)[:2] == [1, 41], "no cost of a short draft"
    assert best_k(t) == 2


def test_short_batches_are_not_measured_with_a_sliding_window() -> None:
    t, _ = tuned(Script(smooth, window=True), task(DRAFT))
    assert t.baseline is not None
    assert not {2, 3, 4} & set(t.baseline.costs.verify)
    assert {5, 6} <= set(t.baseline.costs.verify)
    assert best_k(t) == 3, "what V(b) does not tell, the launch does"
    t, _ = tuned(copying_script(window=True), ngram_task(budget=300.0))
    assert t.best is not None


def test_the_cost_of_the_output_matrix_is_added() -> None:
    """Only one row of a batch goes through it; in small models it is half of the work."""
    script = copying_script(output_share=0.4)
    t, _ = tuned(script, ngram_task(budget=300.0, output_share=0.4))
    assert t.baseline is not None
    for b in (2, 5, 9, 17):
        assert t.baseline.costs.of(b) == pytest.approx(cpu(b), rel=0.02)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_clear_gain_on_fewer_prompts_than_required_is_turned_on(count: int) -> None:
    """Prompts are repeated, with a number in front; with K fixed, nothing was predicted."""
    few = replace(task(DRAFT, lengths=(2,)), prompts=PROMPTS[:count])
    t, _ = tuned(Script(smooth, accept=lambda r: 0.8), few)
    assert t.best is not None, t.reason
    assert len(t.best.pooled_ratios) >= 5


def test_a_server_that_ignores_n_max_is_measured_as_it_runs() -> None:
    """The server always drafts 6 tokens."""
    t, _ = tuned(Script(smooth, ignores_n_max=6), task(DRAFT))
    for confirmation in t.confirmations:
        assert max(s.drafted for s in confirmation.measurement.log.steps) == 6
    assert t.best is not None
    assert t.best.ratios.value > 1.1


def test_very_short_responses_do_not_set_the_response_length() -> None:
    """The first response once ended at once, so that the others were requested at full length, which
    left no time to confirm anything."""
    script = Script(
        lambda b: 10 * smooth(b), ends=lambda r: 1 if r.prompt in PROMPTS[::4] else 1000
    )
    t, _ = tuned(script, task(DRAFT))
    assert 24 <= max(a.tokens for a in t.confirmations[-1].measurement.responses) < 128
    assert best_k(t) == 3
    t, _ = tuned(replace(script, slots=2), task(DRAFT, slots=2))
    assert t.baseline is not None
    assert t.baseline.costs.plain_step.ms == pytest.approx(100)


def test_four_slots_are_measured_at_once() -> None:
    """A pass evaluates the tokens of all slots, with and without speculation."""

    def busy(b: int) -> float:
        return 10 + 0.2 * b if b <= 12 else 10 + 3.0 * b

    t, _ = tuned(Script(busy, slots=4), task(DRAFT, slots=4))
    assert t.baseline is not None
    assert t.baseline.costs.step == pytest.approx(busy(4), rel=0.1)
    assert best_k(t) == 2, "with K=3 a pass is 16 tokens"
    assert t.best is not None
    assert len(t.best.slots) == 4
    assert t.loads == 3


def test_a_bad_slot_is_named() -> None:
    """Slots above 0 draft at 2.7 % in a fork (buun 110)."""
    script = Script(flat, slots=2, slot_accept={0: 0.8, 1: 0.02})
    t, _ = tuned(script, task(DRAFT, slots=2))
    assert t.best is not None
    assert len(t.best.slots) == 2
    assert any(x.startswith("acceptance in slot 1 (") for x in t.best.measurement.missing)


# ---- servers that crash ----------------------------------------------------------


def test_a_crash_at_the_longest_draft_is_retried_with_a_shorter_one() -> None:
    script = Script(flat, dies=lambda s: s is not None and s.n_max > 6)
    t, runner = tuned(script, task(DRAFT))
    assert [s.n_max for s in runner.launches if s][:2] == [8, 4]
    assert best_k(t) == 4
    assert t.dropped[0].reason == "llama-server did not start: it crashed (SIGSEGV)"
    assert t.dropped[0].crashed
    assert t.state == DECIDED
    assert t.loads <= 4


@pytest.mark.parametrize(("loads", "launched"), [(1, 1), (2, 2)])
def test_after_a_crash_one_load_is_left_to_serve_without_speculation(
    loads: int, launched: int
) -> None:
    known = tuple(
        Prediction(spec, ratios(*[log] * 8), "an earlier start", own_share=0.0)
        for spec, log in ((DRAFT, 0.4), (MTP, 0.3))
    )
    script = Script(flat, dies=lambda s: s is not None and s.methods == DRAFT.methods)
    t, runner = tuned(script, task(DRAFT, MTP, loads=loads), earlier=OpenResult(known))
    assert len(runner.launches) == launched
    assert ("no model load left before serving" in t.reason) == (launched == 1)


def test_a_server_that_always_crashes_is_stored_as_a_crash() -> None:
    script = Script(smooth, dies_at=lambda r: r.speculation is not None and r.number > 2)
    t, _ = tuned(script, task(DRAFT))
    assert (t.best, t.state) == (None, CRASHED)
    assert "llama-server exited: it crashed (SIGSEGV)" in t.reason
    results.store(SUBJECT, t)
    saved, stale = results.find(SUBJECT)
    assert saved is not None
    assert (saved.state, stale, saved.speculation) == (CRASHED, "", None)


def test_a_setting_measured_after_a_crash_is_decided() -> None:
    script = Script(flat, dies=lambda s: s is not None and s.n_max > 4, accept=lambda r: 0.1)
    script.own = lambda m: 2.0
    t, runner = tuned(script, task(TrialCandidate(DRAFT, cost=0.1)))
    assert len(runner.launches) == 3
    assert t.dropped[0].crashed
    assert (t.best, t.state) == (None, DECIDED)


def test_a_crash_during_confirmation_is_stored_as_a_crash() -> None:
    script = copying_script(dies_at=lambda r: r.speculation is not None)
    t, _ = tuned(script, ngram_task(budget=300.0))
    assert (t.best, t.state) == (None, CRASHED)
    assert t.confirmations == ()


def test_a_baseline_that_crashes_is_an_error() -> None:
    with pytest.raises(TuningError, match="the baseline could not be measured"):
        tuned(Script(smooth, dies=lambda s: s is None), task(DRAFT))
    with pytest.raises(TuningError, match=r"llama-server exited: it crashed \(SIGSEGV\)"):
        tuned(Script(smooth, dies_at=lambda r: r.number >= 5), task(DRAFT))


@pytest.mark.parametrize("launch", [2, 3])
def test_ctrl_c_keeps_the_measurements_so_far(launch: int) -> None:
    runner = FakeRunner(Script(smooth))

    def dies(s: Speculation | None) -> bool:
        if len(runner.launches) == launch:
            raise KeyboardInterrupt
        return False

    runner.script.dies = dies
    with simulated_clock(runner), pytest.raises(Interrupted) as stopped:
        tune(runner, task(DRAFT), RecordedProgress())
    partial = stopped.value.partial
    assert partial.baseline is not None
    assert len(partial.trials) == launch - 2
    assert (partial.best, partial.state) == (None, OPEN)
    assert partial.reason.startswith("stopped")


def test_ctrl_c_before_any_measurement_is_passed_on() -> None:
    def dies(s: Speculation | None) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(Script(smooth, dies=dies), task(DRAFT))


# ---- time ------------------------------------------------------------------------


def test_the_budget_is_wall_time_and_includes_loading() -> None:
    script = Script(cpu, own=lambda m: 9.0, noise=0.04, load_s=lambda s: 8.0)
    for seed in range(6):
        t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.1), budget=120.0), seed)
        assert t.seconds < 120 + 12, "what was begun is ended"


def test_a_model_that_loads_slowly_is_served_unmeasured() -> None:
    t, runner = tuned(Script(cpu, load_s=lambda s: 90.0), task(DRAFT, ngrams=(NGRAM,)))
    assert runner.launches == [None]
    assert (t.best, t.state) == (None, OPEN)
    assert t.reason.startswith(
        "loading took 90 s of 120 s: not enough time to measure anything; use --budget 570"
    )
    assert t.seconds < 91


def test_no_second_load_without_time_for_it() -> None:
    t, _ = tuned(Script(cpu, load_s=lambda s: 35.0), task(TrialCandidate(DRAFT, cost=0.1)))
    assert t.state == OPEN
    assert "not enough time" in t.reason
    assert t.seconds < 130


def test_no_time_to_measure_is_the_reason() -> None:
    t, _ = tuned(Script(cpu), task(DRAFT, budget=1e-6))
    assert t.best is None
    assert "not enough time" in t.reason
    assert t.state == OPEN


def test_an_unconfirmed_gain_is_reported_and_left_open() -> None:
    script = Script(cpu, accept=lambda r: 0.9, own=lambda m: 3.0, load_s=lambda s: 15.0)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.03), budget=66.0))
    assert (t.best, t.state, t.confirmations) == (None, OPEN, ())
    assert "not enough time to confirm it (2." in t.reason
    assert "x predicted)" in t.reason


def small_gain(budget: float, load_s: float = 0.0) -> tuple[Script, Task]:
    """A gain of 1.12x that needs many responses to be certain."""
    script = Script(
        lambda b: 90.0 if b == 1 else 90 * {2: 1.6, 3: 1.75}.get(b, 1.6 + 0.3 * (b - 2)),
        accept=lambda r: 0.6,
        load_s=lambda s: load_s,
    )
    return script, task(TrialCandidate(DRAFT, longest=2), budget=budget)


def open_result(seed_from: int = 1) -> tuple[TuningResult, Script, Task, int]:
    """The first run that ends open with a measured setting."""
    script, search_task = small_gain(45.0)
    for seed in range(seed_from, 60):
        t, _ = tuned(script, search_task, seed)
        if t.state == OPEN and t.confirmations:
            return t, script, search_task, seed
    raise AssertionError("no open answer in 60 runs")


def test_an_open_result_is_continued_at_the_next_start() -> None:
    first, script, search_task, seed = open_result()
    assert first.best is None
    assert first.confirmations[0].out_of_time
    results.store(SUBJECT, first)
    saved, stale = results.find(SUBJECT)
    assert saved is not None
    assert (saved.state, stale, saved.speculation) == (OPEN, "", None)
    earlier = saved.open_result
    own = first.confirmations[0].ratios
    assert earlier.measured[first.confirmations[0].label] == own
    assert earlier.prompts_used >= len(own) + len(first.trials[0].measurement.responses)
    second, runner = tuned(script, search_task, seed, earlier)
    assert (second.loads, len(runner.launches)) == (1, 1), "no plain server, no trial"
    assert second.baseline is None
    assert second.confirmations[0].ratios.logs[-len(own) :] == own.logs, "its data count"
    assert len(second.confirmations[0].ratios) == len(own) + len(
        second.confirmations[0].measurement.responses
    )
    prompts = {a.prompt_ids for a in first.confirmations[0].measurement.responses}
    assert not prompts & {a.prompt_ids for a in second.confirmations[0].measurement.responses}, (
        "other prompts"
    )


def test_an_open_result_is_decided_after_some_starts() -> None:
    first, script, search_task, seed = open_result()
    t, earlier = first, OpenResult()
    for _ in range(6):
        results.store(SUBJECT, t)
        saved, _ = results.find(SUBJECT)
        assert saved is not None
        if t.state != OPEN:
            break
        assert len(saved.open_result.measured) >= len(earlier.measured)
        earlier = saved.open_result
        t, _ = tuned(script, search_task, seed, earlier)
    assert t.state == DECIDED
    saved, _ = results.find(SUBJECT)
    assert saved is not None
    assert saved.open_result == OpenResult()
    assert saved.since <= saved.when


# ---- the decision ----------------------------------------------------------------


def ratios(*logs: float) -> Ratios:
    return Ratios(logs, (40.0,) * len(logs))


def confirmation(spec: Speculation, own: Ratios, drafted: int = 9, **more: object) -> Confirmation:
    responses = (
        Response(20, 50.0, 50.0, 11, 100.0, drafted, drafted // 2, "a b", ()) for _ in own.logs
    )
    m = Measurement(tuple(responses))
    slower = own.chance_below(1.0)
    return Confirmation(spec, m, own, own, own.interval(), slower, **more)  # type: ignore[arg-type]


def decision_on(
    *confirmations: Confirmation, stop_reason: str = "", force: bool = False
) -> TuningDecision:
    return decide(confirmations, (), stop_reason, force)


CERTAIN = ratios(0.2, 0.22, 0.18, 0.21, 0.19, 0.2)


def test_a_certain_gain_wins_over_a_larger_uncertain_one() -> None:
    maybe = confirmation(MTP, ratios(1.5, -0.5, 1.4, -0.6, 0.9, -0.4))
    assert maybe.speedup.value > 1.23
    t = decision_on(maybe, confirmation(DRAFT, CERTAIN))
    assert t.best is not None
    assert t.best.speculation == DRAFT


def test_the_reason_names_the_condition_that_failed() -> None:
    few = decision_on(confirmation(DRAFT, ratios(0.2, 0.21, 0.19)))
    assert few.best is None
    assert few.reason.endswith("but on only 3 prompts (5 required)")
    refuted = confirmation(DRAFT, ratios(-0.03, -0.02))
    pooled = ratios(-0.03, -0.02, *[0.09, 0.1] * 8)
    refuted = replace(refuted, pooled_ratios=pooled, speedup=pooled.interval(), slower=0.001)
    assert decision_on(refuted).reason.endswith("but 0.98x on the confirmation prompts")


def test_the_reason_states_the_chance_of_being_slower() -> None:
    t = decision_on(confirmation(MTP, ratios(0.3, -0.2, 0.25, -0.15, 0.2, -0.1), out_of_time=True))
    assert (t.best, t.state) == (None, OPEN)
    assert "% chance of being slower; measurement continues at the next start" in t.reason
    t = decision_on(confirmation(MTP, ratios(0.3, -0.2, 0.25, -0.15, 0.2, -0.1)))
    assert t.state == DECIDED
    assert t.reason.endswith("% chance of being slower")


def test_speed_ups_near_the_threshold_have_three_digits() -> None:
    t = decision_on(confirmation(MTP, ratios(*(0.0275 + 0.001 * i for i in (-1, 0, 1, 0, -1, 1)))))
    assert t.best is None
    assert "is 1.028x plain decoding" in t.reason
    assert "below the required 1.03x" in t.reason


def test_fewer_than_five_prompts_decide_nothing() -> None:
    assert decision_on(confirmation(DRAFT, ratios(*CERTAIN.logs[:4]))).best is None
    assert decision_on(confirmation(DRAFT, ratios(*CERTAIN.logs[:5]))).best is not None


def test_a_setting_that_drafted_nothing_never_wins() -> None:
    t = decision_on(confirmation(NGRAM, CERTAIN, drafted=0), force=True)
    assert (t.best, t.reason) == (None, "nothing was drafted")


@pytest.mark.parametrize(
    "script", [Script(smooth), copying_script(), Script(steep), Script(smooth, per_token=False)]
)
def test_progress_starts_with_the_baseline(script: Script) -> None:
    runner, progress = FakeRunner(script), RecordedProgress()
    with simulated_clock(runner):
        tune(runner, task(DRAFT, ngrams=(NGRAM,), budget=100.0), progress)
    assert progress.messages[0] == "measuring the baseline"


def test_no_prompt_is_used_twice_while_others_are_left() -> None:
    requests: list[tuple[object, str]] = []

    def ends(r: Request) -> int:
        requests.append((r.speculation, r.prompt))
        return 10**6

    script = Script(smooth, ends=ends)
    t, _ = tuned(script, task(DRAFT))
    prompt_ids = [a.prompt_ids for a in t.baseline.measurement.responses] if t.baseline else []
    prompt_ids += [a.prompt_ids for x in t.trials for a in x.measurement.responses]
    prompt_ids += [a.prompt_ids for x in t.confirmations for a in x.measurement.responses]
    assert len(set(prompt_ids)) == len(prompt_ids)


def test_the_tuner_uses_the_simulated_clock() -> None:
    t, _ = tuned(Script(smooth, load_s=lambda s: 7.0), task(DRAFT))
    assert t.seconds > 3 * 7
    assert t.baseline is not None
    assert t.baseline.load_s == pytest.approx(7)
