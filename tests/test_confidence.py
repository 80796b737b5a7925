"""Confidence intervals and probabilities: against tables, by simulation, and for whole searches."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafts.acceptance import constant_tau
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.confidence import (
    Interval,
    Ratios,
    ratios,
    shrunk,
    student_cdf,
    student_quantile,
)
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.judge import MIN_SPEEDUP, is_clear
from specllama.tuning.ngrams import KnownText, grid
from specllama.tuning.predict import ngram_rows
from specllama.tuning.records import TuningResult
from specllama.tuning.run import Task, TrialCandidate
from specllama.tuning.speedup import StepCost
from tests.fake_runner import Script, World, tuned

# Student's t, upper quantiles as printed in tables (e.g. NIST handbook 1.3.6.7.2)
TABLE = {
    (1, 0.90): 3.078,
    (1, 0.95): 6.314,
    (1, 0.975): 12.706,
    (2, 0.975): 4.303,
    (3, 0.95): 2.353,
    (4, 0.975): 2.776,
    (5, 0.995): 4.032,
    (7, 0.975): 2.365,
    (10, 0.90): 1.372,
    (10, 0.975): 2.228,
    (11, 0.975): 2.201,
    (20, 0.95): 1.725,
    (30, 0.975): 2.042,
    (100, 0.975): 1.984,
    (1000, 0.975): 1.962,
}


@pytest.mark.parametrize(("at", "value"), TABLE.items())
def test_students_t_matches_the_tables(at: tuple[int, float], value: float) -> None:
    freedom, p = at
    assert student_quantile(p, freedom) == pytest.approx(value, abs=0.0006)
    assert student_quantile(1 - p, freedom) == pytest.approx(-value, abs=0.0006)
    assert student_cdf(value, freedom) == pytest.approx(p, abs=1e-4)


def test_students_t_in_closed_form() -> None:
    for t in (-7.0, -1.0, -0.1, 0.0, 0.5, 3.0, 40.0):
        assert student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-9)
        assert student_cdf(t, 2) == pytest.approx(0.5 + t / 2 / math.sqrt(2 + t * t), abs=1e-9)


@given(st.floats(-50, 50), st.floats(0.05, 500))
def test_students_t_is_a_distribution(t: float, freedom: float) -> None:
    p = student_cdf(t, freedom)
    assert 0 <= p <= 1
    assert student_cdf(-t, freedom) == pytest.approx(1 - p, abs=1e-9)
    assert student_cdf(t + 0.1, freedom) >= p - 1e-12


@pytest.mark.parametrize("n", [5, 8, 12])
@pytest.mark.parametrize("uneven", [False, True], ids=["alike", "uneven"])
def test_95_percent_of_the_intervals_contain_the_true_value(n: int, uneven: bool) -> None:
    """Log-normal speed-ups per prompt; `uneven`: responses of 20 to 60 tokens."""
    rng, hits, rounds = random.Random(n), 0, 1500
    for _ in range(rounds):
        weights = tuple(rng.uniform(20, 60) if uneven else 40.0 for _ in range(n))
        sample = Ratios(tuple(math.log(1.1) + rng.gauss(0, 0.12) for _ in range(n)), weights)
        i = sample.interval()
        hits += i.low <= 1.1 <= i.high
    assert 0.93 <= hits / rounds <= 0.97


def test_chance_below_is_calibrated() -> None:
    rng, below, rounds = random.Random(3), 0, 2000
    for _ in range(rounds):
        sample = Ratios(tuple(rng.gauss(0, 0.12) for _ in range(7)), (1.0,) * 7)
        below += sample.chance_below(1.0) < 0.1
    assert below / rounds == pytest.approx(0.1, abs=0.02)


def test_ratios_of_a_hand_worked_example() -> None:
    r = ratios([(10, 5, 40), (10, 10, 40), (0, 5, 40), (10, 0, 40), (10, 5, 0)])
    assert r.logs == pytest.approx((math.log(2), 0))
    assert r.value == pytest.approx(math.sqrt(2))
    assert r.freedom == pytest.approx(1)
    # standard deviation of log 2 / √2 over two prompts
    assert r.error == pytest.approx(math.log(2) / 2)
    half = 12.706 * math.log(2) / 2
    assert r.interval().high == pytest.approx(math.exp(math.log(2) / 2 + half), rel=1e-3)
    assert Ratios((0.0, 1.0), (1.0, 3.0)).mean == pytest.approx(0.75)
    assert Ratios((0.1, 0.3), (1.0, 1.0)).shifted(-0.1).logs == pytest.approx((0.0, 0.2))


def test_one_prompt_gives_an_unbounded_interval() -> None:
    one = Ratios((0.5,), (40.0,))
    assert one.interval() == Interval(math.exp(0.5), 0.0, math.inf)
    assert one.chance_below(1.0) == 0.5
    assert (Ratios().value, Ratios().mean, Ratios().chance_below(1.0)) == (1.0, 0.0, 0.5)


def test_equal_results_still_have_an_interval() -> None:
    same = Ratios((0.02,) * 5, (40.0,) * 5)
    assert same.interval().low < 1.02
    assert same.interval(4).low < same.interval().low


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(0.1, 1e4)), max_size=20), st.integers(1, 9))
def test_intervals_and_chances_are_valid_for_any_prompts(
    seen: list[tuple[float, float]], comparisons: int
) -> None:
    r = Ratios(tuple(x for x, _ in seen), tuple(w for _, w in seen))
    i = r.interval(comparisons)
    assert i.low <= i.value <= i.high
    assert 0 <= r.chance_below(1.03) <= 1
    assert r.chance_below(1.0) <= r.chance_below(1.03) + 1e-12
    assert -1 <= r.freedom <= len(seen)


# ---- whole searches ---------------------------------------------------------

PROMPTS = tuple(f"prompt number {i}" for i in range(24))
DRAFT = Speculation(("draft-simple",), Path("draft.gguf"), n_max=4)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))
PLAIN, DRAFT_MS = 90.0, 9.0  # ms, typical of a CPU
ACCEPTANCE, ACCEPTANCE_SPREAD = (
    0.6,
    0.09,
)  # acceptance; at K=2 the speed differs by a tenth between prompts
GAINS = {1: 1.02, 2: 1.12, 3: 1.09, 4: 1.09, 5: 1.03, 6: 0.98, 7: 0.94, 8: 0.90}  # tuner.md


@functools.cache
def mean_tau(k: int) -> float:
    """The geometric mean of τ(k) over prompts."""
    rng = random.Random(5)
    logs = (math.log(constant_tau(prompt_acceptance(rng), k)) for _ in range(4000))
    return math.exp(sum(logs) / 4000)


def prompt_acceptance(rng: random.Random) -> float:
    return min(0.95, max(0.05, rng.gauss(ACCEPTANCE, ACCEPTANCE_SPREAD)))


def search_with_draft(seed: int, gains: dict[int, float], budget: float) -> TuningResult:
    """A search with a draft whose speed-up at each K is `gains`, on a machine that is a few percent
    faster or slower at each launch."""

    def verify(b: int) -> float:
        if b == 1:
            return PLAIN
        return mean_tau(b - 1) * PLAIN / gains.get(b - 1, 0.5) - b * DRAFT_MS

    script = Script(
        verify,
        own=lambda m: DRAFT_MS,
        accept=lambda r: prompt_acceptance(random.Random(f"{seed}/{r.prompt}")),
        noise=0.04,
        drift=lambda n: math.exp(random.Random(f"{seed}/launch {n}").gauss(0, 0.05)),
    )
    draft = TrialCandidate(DRAFT, longest=8, cost=0.1)
    request = Task("code", PROMPTS, {"temperature": 0.2}, False, (draft,), budget=budget)
    return tuned(script, request, seed)[0]


def search_with_ngrams(
    seed: int, per_token: float, copies: float, budget: float, fixed: bool = False
) -> TuningResult:
    """A search with responses partly copied from the prompt; `per_token`: ms to verify one more."""
    script = Script(
        lambda b: PLAIN + per_token * (b - 1),
        copies=lambda r: copies,
        length=lambda p: 150,
        noise=0.04,
        drift=lambda n: math.exp(random.Random(f"{seed}/launch {n}").gauss(0, 0.05)),
    )
    request = Task(
        "edit", PROMPTS, {"temperature": 0.2}, False, ngrams=(NGRAM,), budget=budget, fixed=fixed
    )
    return tuned(script, request, seed)[0]


def share_turned_on(found: Iterable[TuningResult]) -> float:
    on = [t.best is not None for t in found]
    return sum(on) / len(on)


def true_ngram_speedup(per_token: float, copies: float, sizes: Sequence[NgramSizes]) -> float:
    """The true speed-up with the best of these sizes, over many texts."""
    world = World(Script(lambda b: PLAIN, length=lambda p: 150), 12345)
    texts = []
    for i in range(200):
        ids = world.ids(f"text {i}")
        texts.append(KnownText(ids, tuple(world.answer(ids, copies, 64, 1)), 64))
    costs = VerifyCosts(
        StepCost(PLAIN, 1.0, 9), {b: PLAIN + per_token * (b - 1) for b in range(1, 66)}
    )
    return max(r.value for r in ngram_rows("ngram-simple", sizes, texts, costs).values())


# Seeds are fixed, so each share is a constant; the limits leave room for one or two more runs. The
# goals are 5% false positives and 80 to 90% found. 400 runs gave 5.0% and 87% for the draft.


def test_drafts_without_a_gain_are_rarely_turned_on() -> None:
    """Every K has a true speed-up of exactly 1."""
    equal = dict.fromkeys(range(1, 9), 1.0)
    assert share_turned_on(search_with_draft(seed, equal, 100.0) for seed in range(150)) <= 0.07


def test_a_draft_with_a_12_percent_gain_is_turned_on() -> None:
    found = [search_with_draft(seed, GAINS, 100.0) for seed in range(100)]
    assert share_turned_on(found) >= 0.87
    confirmed = [len(a.measurement.responses) for t in found for a in t.confirmations]
    assert 5 <= sum(confirmed) / len(confirmed) <= 8
    served = [GAINS[t.best.speculation.n_max] for t in found if t.best]
    assert sum(served) / len(served) > 1.09, "and at one of its best lengths"


def test_a_shared_error_does_not_shrink_with_more_prompts() -> None:
    independent = Ratios((0.05, 0.06) * 50, (1.0,) * 100)
    with_shared_error = replace(independent, shared=0.05)
    assert independent.chance_below(1.0) < 1e-6
    assert with_shared_error.chance_below(1.0) == pytest.approx(0.136, abs=0.01)  # 0.055 at 0.05
    assert (with_shared_error + independent).error == pytest.approx(0.025, rel=0.01), (
        "half of it counts"
    )
    assert (with_shared_error + with_shared_error).shared == pytest.approx(0.05 / math.sqrt(2)), (
        "two that are apart"
    )
    assert with_shared_error.shifted(1.0).shared == 0.05


def test_a_result_is_clear_if_more_prompts_would_hardly_change_it() -> None:
    def ratios_with_chance(chance: float) -> Ratios:
        """Eight prompts after which the speed-up reaches MIN_SPEEDUP with this probability."""
        logs = (0.05, -0.05) * 4
        error = Ratios(logs, (1.0,) * 8).error
        to = math.log(MIN_SPEEDUP) - student_quantile(1 - chance, 7) * error
        found = Ratios(logs, (1.0,) * 8).shifted(to)
        assert 1 - found.chance_below(MIN_SPEEDUP) == pytest.approx(chance, abs=1e-6)
        return found

    assert is_clear(ratios_with_chance(0.04), ratios_with_chance(0.04)), "surely not worth it"
    assert not is_clear(ratios_with_chance(0.06), ratios_with_chance(0.06))
    assert not is_clear(ratios_with_chance(0.5), ratios_with_chance(0.5))
    few = ratios_with_chance(0.04)
    assert not is_clear(Ratios(few.logs[:4], few.weights[:4]), few)


@pytest.mark.parametrize(
    ("logs", "expected"), [((0.1, -0.09, 0.05), 1.0), ((0.1, 0.11, 0.09), 1.1)]
)
def test_gains_are_shrunk_by_their_uncertainty(logs: tuple[float, ...], expected: float) -> None:
    assert shrunk(Ratios(logs, (1.0,) * 3)) == pytest.approx(expected, abs=0.01)
    assert shrunk(Ratios(logs[:2], (1.0,) * 2)) == 1.0


def test_ngrams_without_a_gain_are_rarely_turned_on() -> None:
    assert true_ngram_speedup(80.0, 0.3, grid("ngram-simple")) == pytest.approx(1.0, abs=0.01)
    assert (
        share_turned_on(search_with_ngrams(seed, 80.0, 0.3, 120.0) for seed in range(100)) <= 0.02
    )
    assert true_ngram_speedup(43.0, 0.3, [NgramSizes(12, 48)]) == pytest.approx(1.0, abs=0.01)
    equal = (search_with_ngrams(seed, 43.0, 0.3, 120.0, fixed=True) for seed in range(100))
    assert share_turned_on(equal) <= 0.02


def test_ngrams_with_a_35_percent_gain_are_turned_on() -> None:
    assert true_ngram_speedup(17.0, 0.33, grid("ngram-simple")) == pytest.approx(1.35, abs=0.02)
    assert (
        share_turned_on(search_with_ngrams(seed, 17.0, 0.33, 120.0) for seed in range(100)) >= 0.96
    )


@pytest.mark.parametrize(("assumed_share", "correction"), [(0.5, 0.0), (0.0, 0.10)])
def test_a_wrong_predicted_cost_is_corrected_by_the_confirmation(
    assumed_share: float, correction: float
) -> None:
    """Only one row of a batch goes through the output matrix. If that matrix's share is unknown,
    V(b) is too low and the prediction too high; the confirmation corrects it by as much."""
    script = Script(
        lambda b: PLAIN + 17.0 * (b - 1),
        copies=lambda r: 0.4,
        length=lambda p: 150,
        output_share=0.5,
    )
    ngram = replace(NGRAM, ngram=NgramSizes(4, 12))
    request = Task("edit", PROMPTS, {}, False, ngrams=(ngram,), fixed=True, budget=300.0)
    t, _ = tuned(script, replace(request, output_share=assumed_share), 3)
    (confirmation,) = t.confirmations
    known = t.predictions[0].ratios
    corrected = Ratios(confirmation.pooled_ratios.logs[len(confirmation.ratios) :], known.weights)
    assert len(corrected) == len(known)
    assert known.mean - corrected.mean == pytest.approx(correction, abs=0.02)
