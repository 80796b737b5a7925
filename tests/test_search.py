"""The tuner's decisions, on scripted machines: the right one, in few launches."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.arms import Arm, Tuned
from specllama.tuning.errors import TuningError
from specllama.tuning.judge import answer
from specllama.tuning.measure import Answer, Measurement
from specllama.tuning.run import Candidate, Task
from specllama.tuning.search import Interrupted, tune
from tests.fake_lab import FakeLab, Request, Script, Silent

PROMPTS = tuple(f"prompt number {i}" for i in range(12))
DRAFT = Speculation(("draft-simple",), Path("draft.gguf"), n_max=4)
MTP = Speculation(("draft-mtp",), n_max=3)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))


def task(*candidates: Speculation | Candidate, **more: object) -> Task:
    ways = tuple(c if isinstance(c, Candidate) else Candidate(c) for c in candidates)
    return Task("code", PROMPTS, {"temperature": 0.2}, False, ways, budget=1e6, **more)  # type: ignore[arg-type]


def run(script: Script, wanted: Task, two: bool = True, seed: int = 1) -> tuple[Tuned, FakeLab]:
    lab = FakeLab(script, two, seed)
    return tune(lab, wanted, Silent()), lab


def smooth(k: int, method: str) -> float:
    """Verifying is nearly free up to 3 tokens, then costs: the optimum is K = 3."""
    return 10 + 0.5 * k + (6 * (k - 3) if k > 3 else 0)


def best_k(t: Tuned) -> int | None:
    return t.best.speculation.n_max if t.best and t.best.speculation else None


@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_smooth_optimum_is_found_in_three_launches(two: bool, seed: int) -> None:
    t, lab = run(Script(smooth), task(DRAFT), two, seed)
    assert best_k(t) == 3
    assert t.best is not None
    assert t.best.speedup is not None
    assert t.best.speedup.value == pytest.approx(2.533 / 11.5 * 10, rel=0.12)
    assert t.launches == len(lab.launches) == 3
    assert t.reason.startswith("draft-simple draft.gguf K=3 is 2.")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cliff_is_not_stepped_on(seed: int) -> None:
    """84 tok/s at K = 3, 6 at K = 4 (llama.cpp issue 25356)."""
    t, _ = run(Script(lambda k, m: 12 + 0.2 * k if k <= 3 else 400.0), task(DRAFT), seed=seed)
    assert best_k(t) in (2, 3)
    assert t.launches <= 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_equal_lengths_the_shortest_is_taken(seed: int) -> None:
    """Seen: K = 1, 2 and 3 predicted within 3 %, the longest of them, and least certain, tried."""
    script = Script(lambda k, m: 10 * (2 - 0.5**k) if k else 15, accept=lambda r: 0.5)
    t, _ = run(script, task(DRAFT), seed=seed)
    assert best_k(t) in (1, 2)


def test_where_nothing_wins_the_answer_is_off() -> None:
    """A MoE on one GPU: each verified token wakes more experts (issue 19493)."""
    t, lab = run(Script(lambda k, m: 10 * (1 + 1.2 * k)), task(DRAFT, MTP))
    assert t.best is None
    assert "slower or no faster" in t.reason
    assert len(lab.launches) <= 3  # no confirmation of what cannot win
    assert {d.what for d in t.dropped} == {"draft-simple draft.gguf K=4", "draft-mtp K=3"}


def test_high_acceptance_alone_decides_nothing() -> None:
    """91 % accepted, 30.6 against 48.6 tok/s (continuum 2547)."""
    t, _ = run(
        Script(lambda k, m: 10 if k == 0 else 14 * (k + 1), accept=lambda r: 0.98), task(DRAFT)
    )
    assert t.best is None
    alpha = t.arms[0].measurement.alpha
    assert alpha is not None
    assert alpha > 0.8


def test_a_dead_head_is_named() -> None:
    t, lab = run(Script(lambda k, m: 10 + k, accept=lambda r: 0.0), task(MTP))
    assert t.best is None
    assert "a dead head or draft: 0.0% of " in t.reason
    assert len(lab.launches) == 2


def test_an_ngram_that_never_fires() -> None:
    t, lab = run(Script(smooth, drafts=lambda r: 0.0), task(NGRAM))
    assert t.best is None
    assert [d.why for d in t.dropped] == [
        "nothing was drafted: no run of 12 tokens came back",
        "nothing was drafted: no run of 6 tokens came back",
    ]
    assert len(lab.launches) == 3


def test_an_ngram_that_fires_with_shorter_sizes() -> None:
    def fires(r: Request) -> float:
        return 0.5 if r.speculation and r.speculation.ngram and r.speculation.ngram.n < 12 else 0.0

    script = Script(lambda k, m: 10 + 0.2 * k, accept=lambda r: 0.9, drafts=fires)
    t, _ = run(script, task(NGRAM))
    assert t.best is not None
    assert t.best.label == "ngram-simple n=6 m=12"


def test_repeated_prompts_do_not_flatter() -> None:
    """A prompt seen before is drafted ten times too well (issues 10455, 26100)."""
    script = Script(smooth, accept=lambda r: 0.99 if r.seen else 0.3)
    t, _ = run(script, task(DRAFT))
    acceptance = t.arms[0].measurement.all_steps.acceptance
    assert acceptance[0] == pytest.approx(0.3, abs=0.06)


def test_noise_of_a_tenth_does_not_decide() -> None:
    """Equal servers under 10 % noise: off in nearly every run; a clear gain is found."""
    even = sum(
        run(
            Script(lambda k, m: 10 if k == 0 else 10 * 1.7, lambda r: 0.7, noise=0.1),
            task(Candidate(DRAFT, longest=1)),
            seed=s,
        )[0].best
        is not None
        for s in range(10)
    )
    assert even <= 2
    clear = sum(
        run(Script(smooth, noise=0.1), task(DRAFT), seed=s)[0].best is not None for s in range(10)
    )
    assert clear == 10


def measured(*ms_per_token: float, drafted: int = 0) -> Measurement:
    answers = (
        Answer(20, 50.0, 50.0, 11, 10 * ms, drafted, drafted, "a b", ()) for ms in ms_per_token
    )
    return Measurement(tuple(answers))


def test_a_sure_gain_comes_before_a_faster_one_that_may_be_noise() -> None:
    plain = measured(10, 10, 10, 10)
    sure = Arm(DRAFT, measured(8, 8, 8, 8, drafted=9))
    maybe = Arm(MTP, measured(2, 2, 2, 25, drafted=9))
    t = answer("code", [plain], [maybe, sure], (), {}, 3, 1.0, True, 1.03, False)
    assert t.best is not None
    assert t.best.speculation == DRAFT
    assert t.upper == pytest.approx(40 / (2 + 2 + 2 + 8)), "the best of both for each prompt"
    trial = replace(sure, trial=True)
    t = answer("code", [plain], [maybe, trial], (), {}, 3, 1.0, True, 1.03, False)
    assert t.best is None, "a trial that was followed by a comparison does not decide"
    assert "inside the noise" in t.reason


def test_answers_are_compared_with_those_to_the_same_prompt() -> None:
    """Seen: 0.77x (0.23 to 1.18) of a gain of 1.07x, since an answer of one word had shifted
    the others against the wrong prompts."""
    plain, own = measured(10, 20, 30), measured(5, 10, 15, drafted=9)
    word = replace(own.answers[1], tokens=1, ms=0.01)
    own = replace(own, answers=(own.answers[0], word, own.answers[2]))
    t = answer("code", [plain], [Arm(MTP, own)], (), {}, 3, 1.0, True, 1.03, False)
    assert t.best is not None
    assert t.best.speedup is not None
    assert (t.best.speedup.value, t.best.speedup.low) == (2, 2)
    t = answer(
        "code",
        [plain],
        [Arm(MTP, replace(own, answers=(word,)))],
        (),
        {},
        3,
        1.0,
        True,
        1.03,
        False,
    )
    assert (t.best, t.reason) == (None, "the answers are too short to show a speed")


def test_the_bound_is_never_under_the_best_arm() -> None:
    """Seen: 1.07x measured over 8 prompts, a "bound" of 1.03x over the 3 that all arms shared."""
    plain, slow = measured(10, 10, 10), measured(12, 12, 12, 12, 12)
    trial = Arm(DRAFT, measured(30, 30, 30, drafted=9), trial=True)
    best = Arm(MTP, measured(11, 11, 11, 6, 6, drafted=9), against=slow)
    t = answer("code", [plain], [trial, best], (), {}, 3, 1.0, True, 1.0, False)
    assert t.best is not None
    assert t.best.speedup is not None
    assert t.upper == pytest.approx(t.best.speedup.value) == 60 / 45


def test_a_machine_that_slows_down_meanwhile_is_seen_through() -> None:
    """Each launch finds the machine slower: a baseline beside each arm does not mind, one
    before and after at least does not take it for a loss or a gain."""
    slowing = Script(lambda k, m: 10 if k == 0 else 17, lambda r: 0.7, drift=lambda n: 1 + 0.04 * n)
    t, lab = run(slowing, task(Candidate(DRAFT, longest=1)), two=False)
    assert lab.launches.count(None) == 2  # A-B-A
    assert t.best is None


def test_a_gain_that_could_not_be_confirmed_is_named() -> None:
    lab = FakeLab(Script(smooth))
    silent = Silent()
    silent.step = lambda text, share: time.sleep(0.2 if text.startswith("measuring draft") else 0)  # type: ignore[method-assign]
    t = tune(lab, replace(task(DRAFT), budget=0.1), silent)
    assert t.best is None
    assert "K=3: no time was left to confirm it (2." in t.reason
    assert t.reason.endswith("x is predicted): a larger --budget")
    assert not t.complete_enough


def test_an_answer_of_one_word_does_not_say_how_fast_it_is() -> None:
    """Seen: the first answer ended at once, so the others were asked at full length, and no
    time was left to confirm anything."""
    script = Script(lambda k, m: 100 + 5 * k, ends=lambda r: 1 if r.prompt == PROMPTS[-1] else 1000)
    t, _ = run(script, replace(task(DRAFT), budget=60))
    assert 24 <= max(a.tokens for a in t.arms[-1].measurement.answers) < 128


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_machine_that_is_slow_for_a_while_hides_no_gain(seed: int) -> None:
    """Seen: the plain server at full speed, the trial at two thirds of it, and a draft worth
    1.2x given up unconfirmed."""
    script = Script(
        lambda k, m: 10 + 4.5 * k, lambda r: 0.7, weather=lambda n: 1.5 if 14 <= n < 60 else 1.0
    )
    t, _ = run(script, task(DRAFT), seed=seed)
    assert best_k(t) in (1, 2)


def test_a_server_that_dies_at_the_longest_draft() -> None:
    script = Script(smooth, dies=lambda s: s is not None and s.n_max > 6)
    t, lab = run(script, task(DRAFT))
    assert [s.n_max for s in lab.launches if s] == [8, 4, 3]
    assert best_k(t) == 3
    assert t.dropped[0].why == "llama-server did not start: it crashed (SIGSEGV)"


def test_an_old_build_is_measured_by_whole_answers() -> None:
    script = Script(smooth, per_token=False, counts=False)
    t, _ = run(script, task(DRAFT))
    assert t.arms[0].measurement.missing
    assert any("no timings per token" in d.why for d in t.dropped)
    # K = 8 was measured to be slower, K = 4 (the profile's) to be faster: that one is served
    assert best_k(t) == 4
    thorough, lab = run(script, task(DRAFT, thorough=True))
    assert {s.n_max for s in lab.launches if s} >= {8, 4, 2, 1}
    assert best_k(thorough) in (2, 4)


def test_a_server_that_ignores_n_max() -> None:
    """It drafts 6 whatever is asked: what is confirmed is what is served."""
    t, _ = run(Script(smooth, ignores_n_max=6), task(DRAFT))
    confirmed = t.arms[-1]
    assert max(s.drafted for s in confirmed.measurement.log.steps) == 6
    assert t.best is None or t.best.speedup.value >= 1.03  # type: ignore[union-attr]


def test_the_fastest_of_several_methods() -> None:
    def cost(k: int, method: str) -> float:
        return 10 + (0.3 if method == "draft-mtp" else 1.5) * k

    t, _ = run(Script(cost), task(DRAFT, MTP))
    assert t.best is not None
    assert t.best.label.startswith("draft-mtp")


def test_what_cannot_win_is_not_launched() -> None:
    slow = Candidate(MTP, expected=1.2)
    t, lab = run(Script(smooth), task(DRAFT, slow))
    assert not any(s is not None and s.methods == ("draft-mtp",) for s in lab.launches)
    assert t.dropped[-1].why.startswith("at most 1.20x is expected of it, 2.")


def test_a_combination_with_what_is_slower_alone_is_not_launched() -> None:
    both = replace(DRAFT, methods=("ngram-mod", "draft-simple"), ngram=NgramSizes(12, 48))
    t, lab = run(Script(lambda k, m: 10 + 10 * k), task(DRAFT, NGRAM, both))
    assert both.methods not in [s.methods for s in lab.launches if s]
    assert "hold the copies back" in t.dropped[-1].why
    t, lab = run(Script(smooth), task(DRAFT, NGRAM, both))
    assert both.methods in [s.methods for s in lab.launches if s]


def test_lengths_that_heads_forbid_are_not_tried() -> None:
    _, lab = run(Script(smooth), task(Candidate(MTP, longest=2)))
    assert max(s.n_max for s in lab.launches if s) == 2


def test_only_the_lengths_asked_for() -> None:
    t, lab = run(Script(smooth), task(DRAFT, lengths=(1, 2, 5)))
    assert set(next(iter(t.curves.values()))) <= {1, 2, 5}
    assert {s.n_max for s in lab.launches if s} <= {1, 2, 5}


def test_a_single_length_takes_a_single_launch() -> None:
    t, lab = run(Script(smooth), task(DRAFT, lengths=(2,), p_min=0.5, thorough=True))
    assert [(s.n_max, s.p_min) for s in lab.launches if s] == [(2, 0.5)]
    assert best_k(t) == 2


def test_a_length_that_is_not_possible_is_said() -> None:
    t, lab = run(Script(smooth), task(Candidate(MTP, longest=3), lengths=(4, 6)))
    assert lab.launches == [None]
    assert t.reason == "draft-mtp K=3: its files and memory allow no draft longer than 3"


def test_p_min_is_a_second_axis_when_drafts_are_rejected() -> None:
    def accept(r: Request) -> float:
        return 0.85 if r.speculation and r.speculation.p_min else 0.4

    t, lab = run(Script(smooth, accept=accept), task(DRAFT, thorough=True))
    assert {s.p_min for s in lab.launches if s} == {0.0, 0.5, 0.75}
    assert t.best is not None
    assert t.best.speculation is not None
    assert t.best.speculation.p_min > 0


def test_force_takes_the_fastest_way_even_if_slower() -> None:
    t, _ = run(Script(lambda k, m: 10 * (1 + 0.9 * k)), task(DRAFT, force=True))
    assert t.best is not None
    assert t.reason.endswith("taken by --force")


def test_a_baseline_that_dies_is_an_error() -> None:
    with pytest.raises(TuningError, match="the baseline could not be measured"):
        run(Script(smooth, dies=lambda s: s is None), task(DRAFT))


@pytest.mark.parametrize("launch", [2, 3])
def test_ctrl_c_keeps_what_was_learnt(launch: int) -> None:
    count = 0

    def dies(s: Speculation | None) -> bool:
        nonlocal count
        count += 1
        if count == launch:
            raise KeyboardInterrupt
        return False

    with pytest.raises(Interrupted) as stopped:
        run(Script(smooth, dies=dies), task(DRAFT))
    partial = stopped.value.partial
    assert not partial.complete
    assert len(partial.arms) == launch - 2


def test_degenerate_output_never_wins() -> None:
    t, _ = run(Script(smooth, accept=lambda r: 0.95, text=lambda r: "same"), task(DRAFT))
    assert t.best is None
    assert "degenerate output" in t.reason


def test_one_degenerate_answer_of_many_is_chance() -> None:
    """Seen: sampling made one answer in twelve repeat itself, and the method was thrown away."""
    script = Script(smooth, text=lambda r: "same" if r.prompt == PROMPTS[1] else "word")
    t, _ = run(script, task(DRAFT))
    assert best_k(t) == 3


def test_no_time_is_said() -> None:
    lab = FakeLab(Script(smooth))
    wanted = Task("code", PROMPTS, {}, False, (Candidate(DRAFT),), budget=1e-6)
    t = tune(lab, wanted, Silent())
    assert t.best is None
    assert "no time was left" in t.reason


def test_a_bad_slot_is_named() -> None:
    """Slots above 0 draft at 2.7 % in a fork (buun 110)."""
    script = Script(smooth, slot_accept={0: 0.8, 1: 0.02})
    t, _ = run(script, task(DRAFT, slots=2))
    assert t.best is not None
    assert len(t.best.slots) == 2
    assert any(x.startswith("slot 1 (") for x in t.best.measurement.missing)


def test_a_hybrid_that_accepts_everything_is_doubted() -> None:
    t, _ = run(Script(smooth, accept=lambda r: 1.0), task(MTP, hybrid=True))
    assert t.best is None
    assert "its state is in doubt" in t.reason


def test_hybrids_try_shorter_ngrams_too() -> None:
    script = Script(lambda k, m: 10 + 0.1 * k, accept=lambda r: 0.7)
    _, lab = run(script, task(NGRAM, hybrid=True))
    assert [s.ngram.n for s in lab.launches if s and s.ngram] == [12, 6]


def test_copies_that_are_nearly_all_right_are_made_longer() -> None:
    script = Script(lambda k, m: 10 + 0.1 * k, accept=lambda r: 0.99)
    _, lab = run(script, task(NGRAM, thorough=True))
    assert [s.ngram.m for s in lab.launches if s and s.ngram] == [48, 96]
