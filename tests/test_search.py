"""The tuner's decisions, on scripted machines: the right one, in few launches, in time."""

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
    ways = tuple(c if isinstance(c, TrialCandidate) else TrialCandidate(c) for c in candidates)
    given = {"budget": 120.0, **more}
    return Task("code", PROMPTS, {"temperature": 0.2}, False, ways, **given)  # type: ignore[arg-type]


def copying(**more: object) -> Task:
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


def never(b: int) -> float:
    """What a draft brings at an acceptance of 0.7, its time takes."""
    return 10 + 6.5 * (b - 1)


def cpu(b: int) -> float:
    """As measured on one thread: 90 ms, and 17 for each token more."""
    return 90 + 17.0 * (b - 1)


def copier(**more: object) -> Script:
    """Half of each answer is copied from a prompt of 150 tokens."""
    given: dict[str, object] = {"copies": lambda r: 0.5, "length": lambda p: 150, **more}
    return Script(more.pop("verify", cpu), **{k: v for k, v in given.items() if k != "verify"})  # type: ignore[arg-type]


def best_k(t: TuningResult) -> int | None:
    return t.best.speculation.n_max if t.best else None


# ---- which length ----------------------------------------------------------------


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
def test_a_cliff_is_not_stepped_on(seed: int) -> None:
    """84 tok/s at K = 3, 6 at K = 4 (llama.cpp issue 25356)."""
    t, runner = tuned(Script(lambda b: 12 + 0.2 * b if b <= 4 else 400.0), task(DRAFT), seed)
    assert best_k(t) == 3
    assert t.loads == 3
    assert max(s.n_max for s in runner.launches if s) <= 3, "V(b) showed it before any launch"


def test_of_equal_lengths_a_short_one_is_taken() -> None:
    """Seen: K = 1, 2 and 3 predicted within 3 %, the longest of them, and least certain, tried."""

    def verify(b: int) -> float:
        return 10.0 if b == 1 else 7.5 * (2 - 0.5 ** (b - 1))

    script = Script(verify, accept=lambda r: 0.5)
    chosen = [best_k(tuned(script, task(DRAFT), seed)[0]) for seed in range(10)]
    assert sum(k is not None and k <= 3 for k in chosen) >= 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_draft_that_is_best_at_twelve_gets_a_long_one(seed: int) -> None:
    """Blocks of a GPU: V is flat. 8 is no limit."""
    script = Script(flat, accept=lambda r: 0.92, own=lambda m: 0.2, once=("draft-dflash",))
    block = Speculation(("draft-dflash",), Path("block.gguf"), n_max=4)
    t, _ = tuned(script, task(TrialCandidate(block, longest=16, cost=0.02, one_pass=True)), seed)
    assert best_k(t) is not None
    assert best_k(t) > 8  # type: ignore[operator]
    assert t.loads == 3


def test_of_a_head_that_declines_with_depth_a_short_draft_is_taken() -> None:
    script = Script(lambda b: 10 + 1.0 * (b - 1), accept=lambda r: 0.8, decline=0.12)
    t, _ = tuned(script, task(MTP))
    trial = t.trials[0]
    assert trial.speculation.n_max > 3
    # τ(2) = 1 + 0.8 + 0.8·0.68
    assert trial.curve[2].value == pytest.approx((1 + 0.8 + 0.8 * 0.68) / 12 * 10, rel=0.08)
    assert best_k(t) == 3


def test_only_the_lengths_asked_for() -> None:
    t, runner = tuned(Script(smooth), task(DRAFT, lengths=(1, 2)))
    assert set(t.trials[0].curve) == {1, 2}
    assert {s.n_max for s in runner.launches if s} <= {1, 2}
    assert best_k(t) == 2
    script = Script(smooth, accept=lambda r: 0.45)
    t, runner = tuned(script, task(DRAFT, lengths=(1, 2, 5), thorough=True, loads=12))
    assert {s.n_max for s in runner.launches if s} <= {1, 2, 5}
    assert {s.p_min for s in runner.launches if s} == {0.0, 0.5, 0.75}


def test_a_single_length_takes_a_single_launch() -> None:
    t, runner = tuned(Script(smooth), task(DRAFT, lengths=(2,), p_min=0.5))
    assert [(s.n_max, s.p_min) for s in runner.launches if s] == [(2, 0.5)]
    assert best_k(t) == 2
    assert t.loads == 2


def test_a_length_that_is_not_possible_is_said() -> None:
    t, runner = tuned(Script(smooth), task(TrialCandidate(MTP, longest=3), lengths=(4, 6)))
    assert runner.launches == [None]
    assert t.reason == "draft-mtp: its files and memory limit K to 3"


def test_lengths_that_heads_forbid_are_not_tried() -> None:
    _, runner = tuned(Script(smooth), task(TrialCandidate(MTP, longest=2)))
    assert max(s.n_max for s in runner.launches if s) == 2


def test_p_min_is_a_second_axis_when_drafts_are_rejected() -> None:
    def accept(r: Request) -> float:
        return 0.85 if r.speculation and r.speculation.p_min else 0.4

    script = Script(smooth, accept=accept)
    t, runner = tuned(script, task(DRAFT, thorough=True, loads=12, budget=400.0))
    assert {s.p_min for s in runner.launches if s} == {0.0, 0.5, 0.75}
    assert t.best is not None
    assert t.best.speculation.p_min > 0


def test_every_setting_of_a_probe_gets_prompts_enough() -> None:
    """Seen: the first settings used up the prompts, and a 1.16x (0.09 to 14.77) over three
    responses was "off" with most of the budget left."""
    script = Script(smooth, accept=lambda r: 0.5, spread=0.15, noise=0.1)
    t, _ = tuned(script, task(DRAFT, thorough=True, loads=12, budget=4000.0), 2)
    assert len(t.confirmations) == 3
    for arm in t.confirmations:
        assert len(arm.pooled_ratios) >= 5
        sent = [a.prompt_ids for a in arm.measurement.responses]
        assert len(set(sent)) == len(sent), "none twice to one server"
    chose = {a.prompt_ids for x in t.trials for a in x.measurement.responses}
    assert not chose & {a.prompt_ids for x in t.confirmations for a in x.measurement.responses}


def test_the_cost_curve_holds_the_drafts_own_pass() -> None:
    """A step without a draft on a drafting server is slower by one pass: the log tells it."""
    t, _ = tuned(
        Script(cpu, own=lambda m: 11.0), task(TrialCandidate(DRAFT, cost=0.1), budget=300.0)
    )
    assert t.trials[0].own_ms == pytest.approx(11, rel=0.02)
    assert t.trials[0].plain_step.ms == pytest.approx(90, rel=0.02)
    assert t.confirmations[0].plain_ms == pytest.approx(90, rel=0.02)


def test_only_a_trial_says_where_time_goes() -> None:
    """What goes on to serve must not list its cache at every request."""
    found, runner = tuned(Script(flat, own=lambda m: 1.0), task(DRAFT))
    assert found.best is not None
    assert [s.n_max if s else 0 for s in runner.launches[:1]] == [0]
    assert runner.traced == [False, True, False]
    assert found.confirmations[0].plain_ms == pytest.approx(
        10, rel=0.02
    )  # less the draft's own pass


@pytest.mark.parametrize(("method", "traced"), [(DRAFT, True), (MTP, True), (EAGLE, False)])
def test_without_a_trial_the_confirmation_says_it(method: Speculation, traced: bool) -> None:
    """Where a draft of k tokens is one pass, the log does not tell its cost."""
    _, runner = tuned(Script(flat, own=lambda m: 1.0), task(method, lengths=(3,)))
    assert runner.traced == [False, traced]


@pytest.mark.parametrize(("own", "traced"), [(0.1, False), (None, True)])
def test_what_an_earlier_start_saw_of_the_draft_is_used(own: float | None, traced: bool) -> None:
    """It goes on with one load, which can serve."""
    known = Prediction(
        replace(DRAFT, n_max=3), Ratios((0.4, 0.5), (1.0, 1.0)), "earlier", own_share=own
    )
    found, runner = tuned(
        Script(flat, own=lambda m: 1.0), task(DRAFT), earlier=OpenResult((known,))
    )
    assert runner.traced == [traced]
    assert found.confirmations[0].plain_ms == pytest.approx(10, rel=0.02)


# ---- what real requests predict ---------------------------------------------------


def test_what_real_requests_predict_is_confirmed_first_in_one_load() -> None:
    prior = Prediction(replace(DRAFT, n_max=3), ratios(*[0.4] * 8), "real requests", own_share=0.0)
    found, runner = tuned(Script(flat), task(DRAFT, MTP), prior=prior)
    assert (best_k(found), found.loads, found.state) == (3, 1, DECIDED)
    assert [s.n_max for s in runner.launches if s] == [3]


def test_where_it_is_refuted_everything_else_is_looked_at() -> None:
    """What was seen on another machine, say: here a draft loses, and copies win."""
    prior = Prediction(replace(DRAFT, n_max=3), Ratios(), "real requests", own_share=0.0)
    script = copier(accept=lambda r: 0.05)
    found, runner = tuned(script, copying(budget=400.0), prior=prior)
    assert runner.launches[:2] == [prior.speculation, None]
    assert found.best is not None
    assert found.best.speculation.methods == ("ngram-simple",)
    assert found.loads <= 5


# ---- off, and without launches ---------------------------------------------------


def test_where_nothing_can_win_nothing_is_launched() -> None:
    """A MoE on one GPU: each verified token wakes more experts (issue 19493)."""
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
    """Seen: two responses of 16 tokens, "off" as decided, and 39 of 40 s left."""
    t, runner = tuned(Script(steep), task(DRAFT))
    assert (runner.launches, t.state) == ([None], DECIDED)
    assert t.baseline is not None
    tokens = [a.tokens for a in t.baseline.measurement.responses]
    assert len(tokens) >= 5
    assert max(tokens) > 16
    assert t.seconds < 0.4 * 120


def test_a_draft_is_launched_where_the_plain_step_is_too_uncertain_to_rule_it_out() -> None:
    """Verifying 2 tokens takes 1.9 plain steps, or 2.0."""
    script = Script(lambda b: 10 + 9.5 * (b - 1))
    assert tuned(script, task(DRAFT))[0].loads == 1
    unsteady = replace(script, load=lambda s: 1.0 if s % 2 < 1 else 1.3)
    assert tuned(unsteady, task(DRAFT))[0].loads == 2


def test_a_draft_that_costs_too_much_is_not_launched() -> None:
    t, _ = tuned(Script(flat), task(TrialCandidate(DRAFT, cost=1.2)))
    assert t.loads == 1
    assert "it takes 12.0 ms per token, the target 10.0 ms: it cannot pay off even at" in t.reason


def test_acceptance_that_is_never_seen_is_not_hoped_for() -> None:
    t, _ = tuned(Script(lambda b: 10 + 9.1 * (b - 1)), task(DRAFT))
    assert t.loads == 1
    assert "it would need 9" in t.reason
    assert "more than 95% has never been observed" in t.reason


def test_a_draft_that_could_pay_and_does_not_is_off_after_one_launch() -> None:
    t, _ = tuned(Script(never, accept=lambda r: 0.4), task(DRAFT))
    assert t.best is None
    assert t.loads == 2
    assert "x predicted (one launch at K=" in t.reason


def test_high_acceptance_alone_decides_nothing() -> None:
    """91 % accepted, 30.6 against 48.6 tok/s (continuum 2547)."""
    script = Script(flat, own=lambda m: 14.0, accept=lambda r: 0.98)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.1)))
    assert t.best is None
    assert t.trials[0].measurement.alpha is not None
    assert t.trials[0].measurement.alpha > 0.8


def test_copies_that_are_faster_than_any_draft_could_be_save_its_launch() -> None:
    script = Script(flat, copies=lambda r: 0.95, span=60, length=lambda p: 150)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, longest=1), ngrams=(NGRAM,)))
    assert t.loads == 2
    assert any("n-grams alone are predicted at" in d.reason for d in t.dropped)
    assert t.best is not None
    assert t.best.speculation.methods == ("ngram-simple",)


def test_a_dead_head_is_named() -> None:
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
    t, _ = tuned(copier(text=text), copying(budget=300.0))
    assert t.best is None
    assert "degenerate output" in t.reason
    t, _ = tuned(copier(text=text), copying(budget=300.0, force=True))
    assert t.best is None, "not even by --force"


def test_one_degenerate_answer_of_many_is_chance() -> None:
    """Seen: sampling made one answer in twelve repeat itself, and the method was thrown away."""
    script = Script(smooth, text=lambda r: "same" if r.prompt == PROMPTS[1] else "word")
    t, _ = tuned(script, task(DRAFT))
    assert best_k(t) == 3


def test_a_hybrid_that_accepts_everything_is_doubted() -> None:
    t, _ = tuned(Script(smooth, accept=lambda r: 1.0), task(MTP, hybrid=True))
    assert t.best is None
    assert "its state may not be rolled back" in t.reason


# ---- copies ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_copies_are_predicted_and_confirmed_in_two_launches(seed: int) -> None:
    t, runner = tuned(copier(), copying(budget=300.0), seed)
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


def test_answers_without_copies_need_no_launch() -> None:
    t, runner = tuned(Script(cpu, length=lambda p: 150), copying())
    assert t.best is None
    assert runner.launches == [None]
    assert "nothing would be drafted: no 2-token sequence repeated in the responses" in t.reason


def test_the_users_own_sizes_are_kept() -> None:
    t, runner = tuned(copier(), copying(fixed=True, budget=300.0))
    assert list(t.ngrams[0].speedups) == [NgramSizes(12, 48)]
    drafting = [s for s in runner.launches if s]
    assert {s.ngram for s in drafting} == {NgramSizes(12, 48)}


def test_the_types_differ_and_the_best_is_launched() -> None:
    types = tuple(
        replace(NGRAM, methods=(m,)) for m in ("ngram-simple", "ngram-map-k", "ngram-mod")
    )
    t, _ = tuned(copier(), task(ngrams=types, budget=300.0))
    assert {m.method for m in t.ngrams} == {"ngram-simple", "ngram-map-k", "ngram-mod"}
    assert t.loads <= 3


def test_an_ngram_that_never_fires_when_it_serves() -> None:
    """Nothing to replay: the profile's sizes and shorter ones are tried."""
    script = Script(cpu, gives_ids=False)
    t, runner = tuned(script, copying(budget=900.0))
    assert t.best is None
    assert [s.ngram for s in runner.launches if s and s.ngram] == [
        NgramSizes(6, 12),
        NgramSizes(12, 48),
    ]
    assert [d.reason for d in t.dropped] == [
        "nothing was drafted: no 6-token sequence repeated",
        "nothing was drafted: no 12-token sequence repeated",
    ]


def test_hybrids_are_not_replayed_but_tried() -> None:
    t, runner = tuned(copier(), copying(hybrid=True, budget=300.0))
    assert t.ngrams == ()
    assert next(s.ngram.n for s in runner.launches if s and s.ngram) == 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_combination_wins_where_it_wins(seed: int) -> None:
    """A part is copied, the rest a draft guesses well: neither alone is as fast."""
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


def test_a_combination_that_was_asked_for_leaves_its_parts_alone() -> None:
    wanted = task(
        TrialCandidate(DRAFT, cost=0.1), ngrams=(NGRAM,), ngrams_alone=False, drafts_alone=False
    )
    script = Script(flat, own=lambda m: 1.0, copies=lambda r: 0.5, length=lambda p: 150)
    t, _ = tuned(script, wanted)
    assert {p.speculation.methods for p in t.predictions} == {("ngram-simple", "draft-simple")}


# ---- which way -------------------------------------------------------------------


def test_the_fastest_of_several_drafts() -> None:
    script = Script(flat, own=lambda m: 0.3 if m == "draft-mtp" else 3.0)
    t, _ = tuned(script, task(DRAFT, MTP, loads=12))
    assert t.best is not None
    assert t.best.label.startswith("draft-mtp")


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_more_than_four_loads_before_serving(seed: int) -> None:
    """Whatever is there to be tried; that of the plain server that serves in the end counts."""
    types = tuple(replace(NGRAM, methods=(m,)) for m in ("ngram-simple", "ngram-mod"))
    script = copier(verify=never, accept=lambda r: 0.65, noise=0.05)
    t, runner = tuned(script, task(DRAFT, MTP, ngrams=types, budget=600.0), seed)
    serving = t.best is None or runner.launches[-1] != t.best.speculation
    assert t.loads + serving <= 4


def test_a_broken_arm_never_decides_against_a_good_one() -> None:
    """The best by prediction says one word over and over when it is launched: the next serves."""

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


def test_force_takes_the_fastest_way_even_if_slower() -> None:
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


def test_a_machine_that_slows_down_meanwhile_is_seen_through() -> None:
    """Each launch finds the machine slower: it is compared with itself only."""
    slowing = Script(never, accept=lambda r: 0.65, drift=lambda n: 1 + 0.04 * n)
    t, _ = tuned(slowing, task(TrialCandidate(DRAFT, longest=1)))
    assert t.best is None
    gaining = Script(smooth, drift=lambda n: 1 + 0.1 * n)
    t, _ = tuned(gaining, task(DRAFT))
    assert best_k(t) == 3
    assert t.best is not None
    assert t.best.speedup.value == pytest.approx(2.2, rel=0.12)
    assert t.best.plain_ms == pytest.approx(13, rel=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_machine_that_is_slow_for_a_while_hides_no_gain(seed: int) -> None:
    """Seen: the plain server at full speed, the trial at two thirds of it, and a draft worth
    1.2x given up unconfirmed."""
    script = Script(lambda b: 10 + 2.5 * (b - 1), load=lambda s: 1.5 if 5 <= s < 20 else 1.0)
    t, _ = tuned(script, task(DRAFT), seed)
    assert best_k(t) == 2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_first_step_flatters_no_draft(seed: int) -> None:
    """Seen: the step of a request of two tokens takes a tenth longer than those of an answer, and
    it stands for the plain step beside a server that drafts."""
    waking = Script(lambda b: 10 + 7.5 * (b - 1), accept=lambda r: 0.65, first=1.15, noise=0.02)
    t, _ = tuned(waking, task(TrialCandidate(DRAFT, longest=1), force=True), seed)
    assert t.baseline is not None
    assert t.baseline.short_step == pytest.approx(1.15, rel=0.03)
    (arm,) = t.confirmations
    assert arm.plain_ms == pytest.approx(10, rel=0.04)
    assert arm.ratios.value == pytest.approx(1.65 / 1.75, rel=0.05), "not 1.08x"


def test_repeated_prompts_do_not_flatter() -> None:
    """A prompt seen before is drafted ten times too well (issues 10455, 26100)."""
    script = Script(smooth, accept=lambda r: 0.99 if r.seen else 0.3)
    t, _ = tuned(script, task(DRAFT))
    acceptance = t.trials[0].measurement.log.acceptance
    assert acceptance[0] == pytest.approx(0.3, abs=0.06)
    for arm in t.confirmations:
        assert arm.measurement.log.acceptance[0] == pytest.approx(0.3, abs=0.08)


# ---- old builds, odd builds ------------------------------------------------------


def test_an_old_build_is_measured_by_whole_answers() -> None:
    """Neither token ids nor timings per token nor a kept prefix: K is not tuned, but decided."""
    script = Script(smooth, per_token=False, counts=False, gives_ids=False, tokenizes=False)
    t, _ = tuned(script, task(DRAFT))
    assert t.baseline is not None
    assert any("/tokenize" in x for x in t.baseline.limitations)
    (missing,) = t.trials[0].measurement.missing
    assert missing.startswith("no per-token timings")
    assert any("no prediction for K: no per-token timings" in d.reason for d in t.dropped)
    assert best_k(t) == 4, "the profile's length"
    assert t.loads == 3


def test_a_build_that_keeps_no_prompt_shows_no_costs() -> None:
    """`prompt_n` is then the whole prompt, whatever was added to it."""
    t, _ = tuned(Script(smooth, caches=False), task(DRAFT))
    assert t.baseline is not None
    assert sorted(t.baseline.costs.verify)[:2] == [1, 41], "no cost of a short draft"
    assert best_k(t) == 2


def test_a_sliding_window_hides_the_short_batches() -> None:
    t, _ = tuned(Script(smooth, window=True), task(DRAFT))
    assert t.baseline is not None
    assert not {2, 3, 4} & set(t.baseline.costs.verify)
    assert {5, 6} <= set(t.baseline.costs.verify)
    assert best_k(t) == 3, "what V(b) does not tell, the launch does"
    t, _ = tuned(copier(window=True), copying(budget=300.0))
    assert t.best is not None


def test_the_output_matrix_is_added() -> None:
    """Only one row of a batch goes through it: in small models it is a half of the work."""
    script = copier(output_share=0.4)
    t, _ = tuned(script, copying(budget=300.0, output_share=0.4))
    assert t.baseline is not None
    for b in (2, 5, 9, 17):
        assert t.baseline.costs.of(b) == pytest.approx(cpu(b), rel=0.02)


def test_a_server_that_ignores_n_max() -> None:
    """It drafts 6 whatever is asked: what is confirmed is what is served."""
    t, _ = tuned(Script(smooth, ignores_n_max=6), task(DRAFT))
    for arm in t.confirmations:
        assert max(s.drafted for s in arm.measurement.log.steps) == 6
    assert t.best is not None
    assert t.best.ratios.value > 1.1


def test_answers_of_one_word_do_not_say_how_fast_it_is() -> None:
    """Seen: the first answer ended at once, so that the others were asked at full length, and
    not enough time to confirm anything."""
    script = Script(
        lambda b: 10 * smooth(b), ends=lambda r: 1 if r.prompt in PROMPTS[::4] else 1000
    )
    t, _ = tuned(script, task(DRAFT))
    assert 24 <= max(a.tokens for a in t.confirmations[-1].measurement.responses) < 128
    assert best_k(t) == 3
    t, _ = tuned(replace(script, slots=2), task(DRAFT, slots=2))
    assert t.baseline is not None
    assert t.baseline.costs.plain_step.ms == pytest.approx(100)


def test_four_slots_at_once() -> None:
    """A pass is all slots' tokens, and so is what plain decoding is compared with."""

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


# ---- servers that die ------------------------------------------------------------


def test_a_server_that_dies_at_the_longest_draft() -> None:
    script = Script(flat, dies=lambda s: s is not None and s.n_max > 6)
    t, runner = tuned(script, task(DRAFT))
    assert [s.n_max for s in runner.launches if s][:2] == [8, 4]
    assert best_k(t) == 4
    assert t.dropped[0].reason == "llama-server did not start: it crashed (SIGSEGV)"
    assert t.dropped[0].crashed
    assert t.state == DECIDED
    assert t.loads <= 4


def test_a_server_that_dies_whatever_is_asked_is_stored_as_a_crash() -> None:
    script = Script(smooth, dies_at=lambda r: r.speculation is not None and r.number > 2)
    t, _ = tuned(script, task(DRAFT))
    assert (t.best, t.state) == (None, CRASHED)
    assert "llama-server exited: it crashed (SIGSEGV)" in t.reason
    results.store(SUBJECT, t)
    kept, stale = results.find(SUBJECT)
    assert kept is not None
    assert (kept.state, stale, kept.speculation) == (CRASHED, "", None)


def test_a_way_that_was_measured_after_a_crash_is_decided() -> None:
    script = Script(flat, dies=lambda s: s is not None and s.n_max > 4, accept=lambda r: 0.1)
    script.own = lambda m: 2.0
    t, runner = tuned(script, task(TrialCandidate(DRAFT, cost=0.1)))
    assert len(runner.launches) == 3
    assert t.dropped[0].crashed
    assert (t.best, t.state) == (None, DECIDED)


def test_a_server_that_dies_while_it_is_confirmed() -> None:
    script = copier(dies_at=lambda r: r.speculation is not None)
    t, _ = tuned(script, copying(budget=300.0))
    assert (t.best, t.state) == (None, CRASHED)
    assert t.confirmations == ()


def test_a_baseline_that_dies_is_an_error() -> None:
    with pytest.raises(TuningError, match="the baseline could not be measured"):
        tuned(Script(smooth, dies=lambda s: s is None), task(DRAFT))
    with pytest.raises(TuningError, match=r"llama-server exited: it crashed \(SIGSEGV\)"):
        tuned(Script(smooth, dies_at=lambda r: r.number >= 5), task(DRAFT))


@pytest.mark.parametrize("launch", [2, 3])
def test_ctrl_c_keeps_what_was_learnt(launch: int) -> None:
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


def test_ctrl_c_before_anything_is_known_is_passed_on() -> None:
    def dies(s: Speculation | None) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(Script(smooth, dies=dies), task(DRAFT))


# ---- time ------------------------------------------------------------------------


def test_the_budget_is_wall_time_with_loading_in_it() -> None:
    script = Script(cpu, own=lambda m: 9.0, noise=0.04, load_s=lambda s: 8.0)
    for seed in range(6):
        t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.1), budget=120.0), seed)
        assert t.seconds < 120 + 12, "what was begun is ended"


def test_a_slow_loader_is_served_at_once_and_says_so() -> None:
    t, runner = tuned(Script(cpu, load_s=lambda s: 90.0), task(DRAFT, ngrams=(NGRAM,)))
    assert runner.launches == [None]
    assert (t.best, t.state) == (None, OPEN)
    assert t.reason.startswith(
        "loading took 90 s of 120 s: not enough time to measure anything; use --budget 570"
    )
    assert t.seconds < 91


def test_a_load_that_leaves_no_time_for_another_is_not_repeated() -> None:
    t, _ = tuned(Script(cpu, load_s=lambda s: 35.0), task(TrialCandidate(DRAFT, cost=0.1)))
    assert t.state == OPEN
    assert "not enough time" in t.reason
    assert t.seconds < 130


def test_no_time_is_said() -> None:
    t, _ = tuned(Script(cpu), task(DRAFT, budget=1e-6))
    assert t.best is None
    assert "not enough time" in t.reason
    assert t.state == OPEN


def test_a_gain_that_could_not_be_confirmed_is_named_and_open() -> None:
    script = Script(cpu, accept=lambda r: 0.9, own=lambda m: 3.0, load_s=lambda s: 15.0)
    t, _ = tuned(script, task(TrialCandidate(DRAFT, cost=0.03), budget=66.0))
    assert (t.best, t.state, t.confirmations) == (None, OPEN, ())
    assert "not enough time to confirm it (2." in t.reason
    assert "x predicted)" in t.reason


def narrow(budget: float, load_s: float = 0.0) -> tuple[Script, Task]:
    """A gain of 1.12x that few answers do not show."""
    script = Script(
        lambda b: 90.0 if b == 1 else 90 * {2: 1.6, 3: 1.75}.get(b, 1.6 + 0.3 * (b - 2)),
        accept=lambda r: 0.6,
        load_s=lambda s: load_s,
    )
    return script, task(TrialCandidate(DRAFT, longest=2), budget=budget)


def open_answer(seed_from: int = 1) -> tuple[TuningResult, Script, Task, int]:
    """The first run that ends open with something measured."""
    script, wanted = narrow(45.0)
    for seed in range(seed_from, 60):
        t, _ = tuned(script, wanted, seed)
        if t.state == OPEN and t.confirmations:
            return t, script, wanted, seed
    raise AssertionError("no open answer in 60 runs")


def test_an_answer_cut_short_is_continued_at_the_next_start() -> None:
    first, script, wanted, seed = open_answer()
    assert first.best is None
    assert first.confirmations[0].out_of_time
    results.store(SUBJECT, first)
    kept, stale = results.find(SUBJECT)
    assert kept is not None
    assert (kept.state, stale, kept.speculation) == (OPEN, "", None)
    earlier = kept.open_result
    own = first.confirmations[0].ratios
    assert earlier.measured[first.confirmations[0].label] == own
    assert earlier.prompts_used >= len(own) + len(first.trials[0].measurement.responses)
    second, runner = tuned(script, wanted, seed, earlier)
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


def test_an_open_answer_is_decided_in_the_end() -> None:
    first, script, wanted, seed = open_answer()
    t, earlier = first, OpenResult()
    for _ in range(6):
        results.store(SUBJECT, t)
        kept, _ = results.find(SUBJECT)
        assert kept is not None
        if t.state != OPEN:
            break
        assert len(kept.open_result.measured) >= len(earlier.measured)
        earlier = kept.open_result
        t, _ = tuned(script, wanted, seed, earlier)
    assert t.state == DECIDED
    kept, _ = results.find(SUBJECT)
    assert kept is not None
    assert kept.open_result == OpenResult()
    assert kept.since <= kept.when


# ---- the decision ----------------------------------------------------------------


def ratios(*logs: float) -> Ratios:
    return Ratios(logs, (40.0,) * len(logs))


def arm(spec: Speculation, own: Ratios, drafted: int = 9, **more: object) -> Confirmation:
    answers = (
        Response(20, 50.0, 50.0, 11, 100.0, drafted, drafted // 2, "a b", ()) for _ in own.logs
    )
    m = Measurement(tuple(answers))
    slower = own.chance_below(1.0)
    return Confirmation(spec, m, own, own, own.interval(), slower, **more)  # type: ignore[arg-type]


def judged(*arms: Confirmation, stop_reason: str = "", force: bool = False) -> TuningDecision:
    return decide(arms, (), stop_reason, force)


SURE = ratios(0.2, 0.22, 0.18, 0.21, 0.19, 0.2)


def test_a_sure_gain_comes_before_a_faster_one_that_may_be_chance() -> None:
    maybe = arm(MTP, ratios(1.5, -0.5, 1.4, -0.6, 0.9, -0.4))
    assert maybe.speedup.value > 1.23
    t = judged(maybe, arm(DRAFT, SURE))
    assert t.best is not None
    assert t.best.speculation == DRAFT


def test_what_is_missing_is_named_where_chance_is_not_it() -> None:
    few = judged(arm(DRAFT, ratios(0.2, 0.21, 0.19)))
    assert few.best is None
    assert few.reason.endswith("but on only 3 prompts (5 required)")
    refuted = arm(DRAFT, ratios(-0.03, -0.02))
    pooled = ratios(-0.03, -0.02, *[0.09, 0.1] * 8)
    refuted = replace(refuted, pooled_ratios=pooled, speedup=pooled.interval(), slower=0.001)
    assert judged(refuted).reason.endswith("but 0.98x on the confirmation prompts")


def test_the_chance_is_stated() -> None:
    t = judged(arm(MTP, ratios(0.3, -0.2, 0.25, -0.15, 0.2, -0.1), out_of_time=True))
    assert (t.best, t.state) == (None, OPEN)
    assert "% chance of being slower; measurement continues at the next start" in t.reason
    t = judged(arm(MTP, ratios(0.3, -0.2, 0.25, -0.15, 0.2, -0.1)))
    assert t.state == DECIDED
    assert t.reason.endswith("% chance of being slower")


def test_near_the_threshold_three_digits_are_given() -> None:
    t = judged(arm(MTP, ratios(*(0.0275 + 0.001 * i for i in (-1, 0, 1, 0, -1, 1)))))
    assert t.best is None
    assert "is 1.028x plain decoding" in t.reason
    assert "below the required 1.03x" in t.reason


def test_few_prompts_decide_nothing() -> None:
    assert judged(arm(DRAFT, ratios(*SURE.logs[:4]))).best is None
    assert judged(arm(DRAFT, ratios(*SURE.logs[:5]))).best is not None


def test_an_arm_that_drafted_nothing_never_wins() -> None:
    t = judged(arm(NGRAM, SURE, drafted=0), force=True)
    assert (t.best, t.reason) == (None, "nothing was drafted")


@pytest.mark.parametrize(
    "script", [Script(smooth), copier(), Script(steep), Script(smooth, per_token=False)]
)
def test_what_is_told_meanwhile(script: Script) -> None:
    runner, silent = FakeRunner(script), RecordedProgress()
    with simulated_clock(runner):
        tune(runner, task(DRAFT, ngrams=(NGRAM,), budget=100.0), silent)
    assert silent.messages[0] == "measuring the baseline"


def test_nothing_is_asked_twice_while_prompts_are_left() -> None:
    seen: list[tuple[object, str]] = []

    def ends(r: Request) -> int:
        seen.append((r.speculation, r.prompt))
        return 10**6

    script = Script(smooth, ends=ends)
    t, _ = tuned(script, task(DRAFT))
    answers = [a.prompt_ids for a in t.baseline.measurement.responses] if t.baseline else []
    answers += [a.prompt_ids for x in t.trials for a in x.measurement.responses]
    answers += [a.prompt_ids for x in t.confirmations for a in x.measurement.responses]
    assert len(set(answers)) == len(answers)


def test_the_scripted_clock_is_the_tuners() -> None:
    t, _ = tuned(Script(smooth, load_s=lambda s: 7.0), task(DRAFT))
    assert t.seconds > 3 * 7
    assert t.baseline is not None
    assert t.baseline.load_s == pytest.approx(7)
