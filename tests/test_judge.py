"""From measurements to an answer: each rule at its edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specllama.tuning.arms import Arm, Prediction
from specllama.tuning.confidence import Ratios
from specllama.tuning.judge import MIN_SPEEDUP, decide, is_sure_gain, may_gain
from specllama.tuning.measure import Measurement
from specllama.tuning.speedup import Step
from tests import made


def decided(arm: Arm, stop_reason: str = "", force: bool = False) -> str:
    """The reason for a decision from this arm alone."""
    return decide((arm,), (), stop_reason, force).reason


def drafting(accepted: int, value: float) -> Arm:
    """Of ten drafted tokens so many accepted."""
    answers = (made.answer((Step(10, accepted, 300.0),) * 12),) * 9
    return replace(made.arm(value=value), measurement=Measurement(answers))


@pytest.mark.parametrize(("accepted", "surprises"), [(6, False), (7, True)])
def test_it_is_said_where_many_accepted_drafts_do_not_pay(accepted: int, surprises: bool) -> None:
    reason = decided(drafting(accepted, 0.9))
    assert (f"although {accepted}0% of drafted tokens are accepted" in reason) == surprises
    assert "below the required" in reason


@pytest.mark.parametrize(
    ("texts", "launched"), [((0.0, 0.04), False), ((0.02, 0.06), True), ((0.0, 0.02, 0.04), True)]
)
def test_of_two_texts_the_value_decides_and_of_three_the_chance(
    texts: tuple[float, ...], launched: bool
) -> None:
    known = Ratios(texts, (1.0,) * len(texts))
    assert (known.value >= MIN_SPEEDUP) == (launched and len(texts) == 2)
    assert may_gain(Prediction(made.DRAFTED, known, "x")) == launched


def test_nothing_known_is_worth_a_launch() -> None:
    assert may_gain(Prediction(made.DRAFTED, Ratios(), "x"))


@pytest.mark.parametrize(
    ("pooled", "own", "sure"),
    [
        (made.ratios(1.2, 5), 1.0, True),
        (made.ratios(1.2, 4), 1.0, False),  # too few texts
        (made.ratios(1.2, 5), 0.99, False),  # its own prompts speak against it
        (made.ratios(1.02, 8, 0.001), 1.0, False),  # surely faster, but by too little
        (made.ratios(1.05, 5, 0.2), 1.0, False),  # by chance, perhaps
    ],
)
def test_speculation_goes_on_where_three_things_hold(
    pooled: Ratios, own: float, sure: bool
) -> None:
    assert is_sure_gain(pooled, made.ratios(own, 1, 0.0)) == sure
