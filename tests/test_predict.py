"""Predictions: the best of many settings, without selection bias."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.confidence import Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Measurement, Response
from specllama.tuning.ngrams import KnownText, TextReplay, grid
from specllama.tuning.predict import (
    best_setting,
    beyond,
    cautious,
    combined_rows,
    draft_rows,
    known_texts,
    near_sizes,
    ngram_rows,
)
from specllama.tuning.predict import ratios_of as step_ratios
from specllama.tuning.records import Trial
from specllama.tuning.speedup import Step, StepCost, StepLog

SPEC = Speculation(("draft-simple",), Path("d.gguf"), n_max=4)
COSTS = VerifyCosts(StepCost(10.0, 0.1, 9), {b: 10.0 + (b - 1) for b in range(1, 66)})


def no_neighbours(k: int) -> list[int]:
    return []


def ratios_of(logs: dict[int, list[float]]) -> dict[int, Ratios]:
    return {k: Ratios(tuple(x), (1.0,) * len(x)) for k, x in logs.items()}


def test_the_setting_with_the_highest_mean_is_chosen() -> None:
    found = best_setting(
        ratios_of({1: [0.1, 0.12, 0.1], 2: [0.2, 0.22, 0.2], 3: [0.0, 0.0, 0.1]}), no_neighbours
    )
    assert found is not None
    assert found[0] == 2
    assert found[1].logs == (0.2, 0.22, 0.2)


def test_no_setting_is_chosen_without_data() -> None:
    assert best_setting({}, no_neighbours) is None
    assert best_setting({1: Ratios()}, no_neighbours) is None
    one = best_setting(ratios_of({1: [0.3], 2: [0.5]}), no_neighbours)
    assert one is not None
    assert one == (2, Ratios((0.5,), (1.0,)))


def test_a_gain_on_all_texts_wins_over_a_large_gain_on_one() -> None:
    found = best_setting(
        ratios_of({1: [0.2, 0.2, 0.2, 0.2], 2: [1.0, 0.0, 0.0, 0.0]}), no_neighbours
    )
    assert found is not None
    assert found[0] == 1


def test_neighbouring_sizes_count_in_the_score() -> None:
    """A single size that is better than its neighbours by chance does not win."""
    sizes = grid("ngram-simple")
    near = near_sizes(sizes)
    peak, hill = NgramSizes(12, 24), NgramSizes(4, 8)
    logs_by_size = {s: [0.0, 0.01, -0.01] for s in sizes}
    logs_by_size[peak] = [0.32, 0.3, 0.31]
    for s in (hill, *near(hill)):
        logs_by_size[s] = [0.29, 0.27, 0.28]
    found = best_setting({s: Ratios(tuple(x), (1.0,) * 3) for s, x in logs_by_size.items()}, near)
    assert found is not None
    assert found[0] == hill
    assert set(near(hill)) == {
        NgramSizes(3, 8),
        NgramSizes(5, 8),
        NgramSizes(4, 6),
        NgramSizes(4, 10),
    }


def test_half_of_a_score_comes_from_the_neighbours() -> None:
    """A peak without neighbours loses against a plateau of more than half its height."""
    means = {1: 0.0, 2: 0.2, 3: 0.0, 9: 0.0, 10: 0.0, 11: 0.0}
    for height, first in ((0.09, 2), (0.11, 9)):
        heights = means | {9: height, 10: height, 11: height}
        rows = ratios_of({k: [x] * 3 for k, x in heights.items()})
        found = best_setting(rows, lambda k: [k - 1, k + 1])
        assert found is not None
        assert found[0] == first


def test_a_cautious_gain_is_one_and_a_quarter_standard_errors_below_the_mean() -> None:
    one, two = Ratios((0.1, 0.3, 0.2), (1.0,) * 3), Ratios((0.2, 0.3, 0.4), (1.0,) * 3)
    assert cautious(one) == pytest.approx(0.2 - 1.25 * one.error)
    gained = Ratios((0.1, 0.0, 0.2), (1.0,) * 3)
    assert beyond(two, one) == pytest.approx(0.1 - 2.0 * gained.error)


def test_the_reported_gain_of_the_best_of_many_is_unbiased() -> None:
    """No setting has a gain: the best one seems to have one, but the reported value has not."""
    best, reported, rounds = 0.0, 0.0, 60
    for seed in range(rounds):
        rng = random.Random(seed)
        data = ratios_of({k: [rng.gauss(0, 0.1) for _ in range(6)] for k in range(100)})
        found = best_setting(data, no_neighbours)
        assert found is not None
        best += data[found[0]].mean / rounds
        reported += found[1].mean / rounds
    assert best > 0.06
    assert abs(reported) < 0.02


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.dictionaries(
            st.integers(0, 30),
            st.lists(st.floats(-2, 2), min_size=n, max_size=n),
            min_size=1,
            max_size=8,
        )
    )
)
def test_any_data_gives_one_of_the_settings(logs: dict[int, list[float]]) -> None:
    found = best_setting(ratios_of(logs), lambda k: [k - 1, k + 1])
    assert found is not None
    assert found[0] in logs
    assert len(found[1]) == len(next(iter(logs.values())))
    assert cautious(found[1]) <= found[1].mean


# ---- n-grams ----------------------------------------------------------------------


def test_predicted_gain_of_a_copied_response_by_hand() -> None:
    """The response repeats 20 tokens of the prompt: after two of them the rest is drafted."""
    prompt = tuple(range(100, 130))
    text = KnownText(prompt, (1, *prompt[5:25], 2, 3, 4), 0)
    found = ngram_rows("ngram-simple", [NgramSizes(2, 16)], [text], COSTS)
    (row,) = found.values()
    # first token given; 2 plain steps, 16 drafted and one more, 5 plain ones or drafts cut short
    assert row.weights == (23.0,)
    assert row.value > 1.5


def test_sizes_without_a_cost_are_left_out() -> None:
    short = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 9: 20.0})
    text = KnownText(tuple(range(50)), tuple(range(20, 40)))
    found = ngram_rows("ngram-simple", grid("ngram-simple"), [text], short)
    assert found
    assert max(s.m for s in found) == 8
    assert ngram_rows("ngram-simple", [NgramSizes(2, 9)], [text], short) == {}, "9 and one more"


def test_short_responses_and_those_without_ids_are_not_replayed() -> None:
    ids = tuple(range(9))

    def response(ids: tuple[int, ...], prompt_ids: tuple[int, ...]) -> Response:
        return Response(5, 1.0, 1.0, len(ids), 90.0, 0, 0, "", (), prompt_ids, ids)

    good = response(ids, (1, 2))
    texts = known_texts([good, response((), (1, 2)), response(ids, ()), response((1, 2), ids)], 40)
    assert texts == (KnownText((1, 2), ids, 40),)


# ---- drafts ----------------------------------------------------------------------


def simulated_steps(
    k: int, p: float, seed: int, decline: float = 0.0, tokens: int = 120
) -> tuple[Step, ...]:
    """The steps of one response; the seed stands for its text, which sets how predictable it is."""
    rng = random.Random(seed)
    u = [rng.random() for _ in range(tokens + 40)]
    out, at = [], 0
    while at < tokens:
        accepted = 0
        while accepted < k and u[at + accepted] < p - decline * accepted:
            accepted += 1
        out.append(Step(k, accepted, 10.0 + 3.0 * k))
        at += accepted + 1
    return tuple(out)


def trial_at(k: int, p: float, n: int = 20, decline: float = 0.0) -> Trial:
    responses = []
    for seed in range(n):
        steps = simulated_steps(k, p, seed, decline)
        tokens = 1 + sum(s.accepted + 1 for s in steps)
        ids = tuple(10_000 * (seed + 1) + i for i in range(tokens))
        responses.append(Response(9, 9.0, 9.0, tokens, 1.0, 9, 9, "", steps, tuple(range(40)), ids))
    lengths = tuple(Step(j, 0, 10.0 + 3.0 * j) for j in range(k + 1) for _ in range(3))
    spec = Speculation(SPEC.methods, SPEC.draft, n_max=k)
    return Trial(spec, Measurement(tuple(responses)), StepLog(lengths), 1.0, StepCost(9.5, 0.1, 9))


def true_gain(k: int, p: float, decline: float, plain: float = 9.5) -> float:
    logs = []
    for seed in range(20):
        steps = simulated_steps(k, p, seed, decline)
        logs.append(math.log(sum(s.accepted + 1 for s in steps) / sum(s.ms for s in steps) * plain))
    return sum(logs) / len(logs)


@pytest.mark.parametrize("decline", [0.0, 0.07])
def test_every_shorter_draft_length_is_predicted_from_the_longest(decline: float) -> None:
    found = draft_rows(trial_at(6, 0.75, decline=decline))
    assert set(found) == {1, 2, 3, 4, 5, 6}
    for k, row in found.items():
        assert row.mean == pytest.approx(true_gain(k, 0.75, decline), abs=0.03), k
        assert len(row) == 20


def test_lengths_without_a_cost_have_no_prediction() -> None:
    trial = trial_at(4, 0.7)
    only = StepLog(tuple(s for s in trial.lengths.steps if s.drafted in (0, 2)))
    found = draft_rows(Trial(SPEC, trial.measurement, only, 1.0, trial.plain_step))
    assert set(found) == {2, 4}


def test_responses_of_old_builds_give_no_predictions() -> None:
    without_ids = Measurement((Response(9, 9.0, 9.0, 40, 1.0, 9, 9, "", ()),))
    assert draft_rows(Trial(SPEC, without_ids, StepLog(()), 0.0, StepCost(10, 0, 2))) == {}


def test_a_combination_without_n_gram_matches_equals_the_draft() -> None:
    trial = trial_at(4, 0.7)
    sizes = [NgramSizes(4, 8)]
    both = combined_rows("ngram-simple", sizes, trial, 4, COSTS)[sizes[0]]
    # the same steps, except for the tokens after fully accepted drafts
    assert both.mean == pytest.approx(draft_rows(trial)[4].mean, abs=0.05)


def test_a_slower_machine_in_the_trial_does_not_change_a_combination() -> None:
    """The cost of n-gram steps was measured in another launch."""

    def row(slower: float) -> Ratios:
        steps = tuple(Step(4, 0, 22.0 * slower) for _ in range(23))
        prompt = tuple(range(100, 130))
        ids = (1, *prompt[5:25], 2, 3, 4)
        a = Response(9, 9.0, 9.0, len(ids), 1.0, 92, 0, "", steps, prompt, ids)
        plain = StepCost(10.0 * slower, 0.1, 9)
        trial = Trial(SPEC, Measurement((a,)), StepLog(()), 1.0 * slower, plain)
        return combined_rows("ngram-simple", [NgramSizes(2, 16)], trial, 4, COSTS)[
            NgramSizes(2, 16)
        ]

    # Three drafts of 22 ms, n-gram drafts of 16 and 3 tokens, a last step without a draft; each of
    # these includes the draft's pass of 1 ms.
    assert row(1.0).value == pytest.approx(23 * 10 / (3 * 22 + (26 + 1) + (13 + 1) + (10 + 1)))
    assert row(2.0).mean == pytest.approx(row(1.0).mean)


def test_a_text_with_a_step_of_unknown_cost_is_left_out() -> None:
    known = TextReplay(((0, 0), (2, 1)), (False, True), 3)
    unknown = TextReplay(((0, 0), (9, 1)), (False, True), 3)

    def cost(d: int, copied: bool) -> float | None:
        return None if d > 8 else 10.0 + d

    found = step_ratios([known, unknown], cost, 10.0)
    assert found.value == pytest.approx(3 * 10 / 22)
    assert found.weights == (3.0,)


def test_a_combination_needs_ids_and_costs() -> None:
    trial = trial_at(4, 0.7)
    sizes = [NgramSizes(4, 8)]
    assert combined_rows("ngram-simple", sizes, trial, 4, VerifyCosts(StepCost(10, 0, 9))) == {}
    assert combined_rows("ngram-simple", sizes, trial, 9, COSTS) == {}
    bare = Measurement(
        tuple(
            Response(9, 9.0, 9.0, a.tokens, 1.0, 9, 9, "", a.steps)
            for a in trial.measurement.responses
        )
    )
    without = Trial(trial.speculation, bare, trial.lengths, 1.0, trial.plain_step)
    assert combined_rows("ngram-simple", sizes, without, 4, COSTS) == {}


def test_a_combination_must_beat_its_draft_on_most_texts() -> None:
    """A single text that repeats itself is not enough, however different the texts are."""
    draft = Ratios((0.1, 0.4, -0.1, 0.3), (1.0,) * 4)
    in_all = Ratios(tuple(x + 0.1 for x in draft.logs), draft.weights)
    in_one = Ratios((0.1, 0.4, 0.5, 0.3), draft.weights)
    assert 0.08 < beyond(in_all, draft) < 0.1
    assert beyond(in_one, draft) < 0 < in_one.mean - draft.mean
