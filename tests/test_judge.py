"""From measurements to a decision: each rule at its limit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specllama.tuning.confidence import Ratios, student_quantile
from specllama.tuning.judge import (
    MIN_SPEEDUP,
    decide,
    is_clear,
    is_sure_gain,
    may_gain,
    may_turn_on,
)
from specllama.tuning.measure import Measurement
from specllama.tuning.records import Confirmation, DroppedSetting, Prediction
from specllama.tuning.speedup import Step
from tests import made


def reason_for(confirmation: Confirmation, stop_reason: str = "", force: bool = False) -> str:
    """The reason for a decision from this confirmation alone."""
    return decide((confirmation,), (), stop_reason, force).reason


def confirmation_with_acceptance(accepted: int, value: float) -> Confirmation:
    """A confirmation whose steps accept `accepted` of ten drafted tokens."""
    responses = (made.answer((Step(10, accepted, 300.0),) * 12),) * 9
    return replace(made.confirmation(value=value), measurement=Measurement(responses))


@pytest.mark.parametrize(("accepted", "mentioned"), [(6, False), (7, True)])
def test_reason_mentions_a_high_acceptance_that_gives_no_gain(
    accepted: int, mentioned: bool
) -> None:
    reason = reason_for(confirmation_with_acceptance(accepted, 0.9))
    assert (f"although {accepted}0% of drafted tokens are accepted" in reason) == mentioned
    assert "below the required" in reason


def test_of_several_predictions_the_reason_names_the_highest() -> None:
    """They are dropped in the order of the cautious estimate, which is another one."""
    dropped = tuple(
        DroppedSetting(name, f"{value:.2f}x predicted (source)", predicted=value)
        for name, value in (("a", 0.80), ("b", 0.81), ("c", 0.76))
    )
    assert decide((), dropped).reason == "b: 0.81x predicted (source), the best of 3 predictions"
    other = DroppedSetting("d", "its server died")
    assert (
        decide((), (*dropped[:1], other)).reason
        == "a: 0.80x predicted (source); d: its server died"
    )


@pytest.mark.parametrize(
    ("texts", "launched"), [((0.0, 0.04), False), ((0.02, 0.06), True), ((0.0, 0.02, 0.04), True)]
)
def test_two_texts_are_judged_by_their_mean_and_three_by_the_probability(
    texts: tuple[float, ...], launched: bool
) -> None:
    known = Ratios(texts, (1.0,) * len(texts))
    assert (known.value >= MIN_SPEEDUP) == (launched and len(texts) == 2)
    assert may_gain(Prediction(made.DRAFTED, known, "x")) == launched


def ratios_with_chance_below(ratio: float, chance: float, prompts: int = 8) -> Ratios:
    """Prompts after which the true speed-up is below `ratio` with this probability."""
    logs = tuple(0.2 * (-1) ** i for i in range(prompts))
    found = Ratios(logs, (1.0,) * prompts)
    to = math.log(ratio) - student_quantile(chance, prompts - 1) * found.error - found.mean
    assert found.shifted(to).chance_below(ratio) == pytest.approx(chance, abs=1e-6)
    return found.shifted(to)


def test_the_chances_at_which_it_is_decided() -> None:
    """The constants of docs/architecture.md, and of the simulations in test_confidence.py."""
    for chance, on in ((0.059, True), (0.061, False)):
        found = ratios_with_chance_below(1.0, chance)
        assert is_sure_gain(found, found) is on
    for chance, clear in ((0.0149, True), (0.0151, False)):
        found = ratios_with_chance_below(1.0, chance)
        assert is_clear(found, found) is clear
    for reached, launched in ((0.049, False), (0.051, True)):
        found = ratios_with_chance_below(MIN_SPEEDUP, 1 - reached)
        assert may_gain(Prediction(made.DRAFTED, found, "x")) is launched


def test_a_prediction_without_data_is_still_launched() -> None:
    assert may_gain(Prediction(made.DRAFTED, Ratios(), "x"))


@pytest.mark.parametrize(
    ("pooled", "own", "sure"),
    [
        (made.ratios(1.2, 5), 1.0, True),
        (made.ratios(1.2, 4), 1.0, False),  # too few texts
        (made.ratios(1.2, 5), 0.99, False),  # slower on its own prompts
        (made.ratios(1.02, 8, 0.001), 1.0, False),  # certainly faster, but by too little
        (made.ratios(1.05, 5, 0.2), 1.0, False),  # perhaps by chance
    ],
)
def test_a_gain_is_certain_if_all_three_conditions_hold(
    pooled: Ratios, own: float, sure: bool
) -> None:
    assert is_sure_gain(pooled, made.ratios(own, 1, 0.0)) == sure


@pytest.mark.parametrize(
    ("value", "prompts", "spread", "may"),
    [
        (1.1, 6, 0.2, True),
        (1.01, 6, 0.2, False),  # one that stays below would be measured forever
        (1.01, 4, 0.2, True),  # too few prompts to say so
        (0.7, 4, 0.01, False),
    ],
)
def test_more_prompts_may_turn_it_on(value: float, prompts: int, spread: float, may: bool) -> None:
    found = made.ratios(value, prompts, spread)
    assert may_turn_on(found, found) == may
