"""The table of settings that probe did not confirm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.cli.compared import LAUNCHED, PREDICTED, UNMEASURED, unconfirmed, unconfirmed_data
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.run import Task
from tests.fake_runner import Script, tuned

DRAFT = Speculation(("draft-simple",), Path("draft.gguf"), n_max=4)
EAGLE3 = Speculation(("draft-eagle3",), Path("eagle3.gguf"), n_max=4)
NGRAM = Speculation(("ngram-simple",), ngram=NgramSizes(12, 48))


def task(*drafts: Speculation, **more: object) -> Task:
    from specllama.tuning.run import TrialCandidate

    defaults = {
        "workload": "code",
        "prompts": tuple(f"prompt number {i}" for i in range(24)),
        "sampling": {},
        "chat": False,
        "candidates": tuple(TrialCandidate(d, cost=0.05) for d in drafts),
        "budget": 300.0,
        "loads": 12,
    }
    return Task(**{**defaults, **more})  # type: ignore[arg-type]


def costly(b: int) -> float:
    """Verifying b tokens takes as long as b steps, so nothing can pay off."""
    return 10.0 * b


def test_a_draft_that_cannot_pay_off_is_measured_only_with_all() -> None:
    script = Script(costly, accept=lambda r: 0.6)
    default_result, runner = tuned(script, task(DRAFT, EAGLE3))
    assert runner.launches == [None]
    (one, two) = unconfirmed(default_result, task(DRAFT, EAGLE3))
    assert {one.state, two.state} == {UNMEASURED}
    assert "no draft can pay off here" in one.reason

    all_drafts = task(DRAFT, EAGLE3, everything=True)
    t, runner = tuned(script, all_drafts)
    assert t.best is None
    assert [s.methods for s in runner.launches if s] == [("draft-simple",), ("draft-eagle3",)]
    rows = unconfirmed(t, all_drafts)
    assert [(r.label.split(" K=")[0], r.state) for r in rows] == [
        ("draft-simple draft.gguf", LAUNCHED),
        ("draft-eagle3 eagle3.gguf", LAUNCHED),
    ]
    for r in rows:
        assert r.measurement is not None
        assert r.measurement.alpha == pytest.approx((0.6 + 0.36) / 2, abs=0.05)
        assert r.speedup is not None
        assert r.speedup.value < 1
        assert "x predicted" in r.reason


def test_a_confirmed_setting_is_not_listed_as_unconfirmed() -> None:
    request = task(DRAFT, ngrams=(NGRAM,))
    t, _ = tuned(Script(lambda b: 10 + 0.2 * b, accept=lambda r: 0.9), request)
    assert [a.speculation.methods for a in t.confirmations] == [("draft-simple",)]
    rows = unconfirmed(t, request)
    assert [r.label.split()[0] for r in rows] == ["ngram-simple"]
    assert rows[0].state == UNMEASURED, "nothing came back to be copied"
    assert unconfirmed_data(rows[0])["alpha"] is None


def test_predicted_combinations_are_listed_and_n_grams_alone_only_if_measured() -> None:
    """With --draft, n-grams are only combined with it: alone they were listed as not measured."""
    script = Script(costly, accept=lambda r: 0.5, copies=lambda r: 0.6)
    alone = task(DRAFT, ngrams=(NGRAM,), everything=True)
    with_draft = replace(alone, ngrams_alone=False)
    names = {}
    for request in (alone, with_draft):
        t, _ = tuned(script, request)
        rows = unconfirmed(t, request)
        names[request.ngrams_alone] = {"+".join(r.speculation.methods): r for r in rows}
        assert all(r.reason for r in rows)
    assert "ngram-simple" in names[True]
    assert "ngram-simple" not in names[False]
    assert names[False]["ngram-simple+draft-simple"].state == PREDICTED


def test_a_draft_that_is_never_accepted_is_described() -> None:
    request = task(DRAFT, EAGLE3, everything=True)
    t, _ = tuned(Script(lambda b: 10 + b, accept=lambda r: 0.0), request)
    rows = unconfirmed(t, request)
    assert ["it only costs time: 0 of " in r.reason for r in rows] == [True, True]
    assert (
        "eagle3.gguf is untrained, converted incorrectly or made for another model"
        in rows[1].reason
    )


def test_every_draft_gets_a_share_of_the_budget() -> None:
    """Four drafts on a machine with 5 tokens per second: the last one is measured too."""
    drafts = [Speculation(("draft-simple",), Path(f"{i}.gguf"), n_max=4) for i in range(4)]
    request = task(*drafts, everything=True, thorough=True, budget=200.0)
    machine = Script(lambda b: 200.0 + 20.0 * b, accept=lambda r: 0.6, load_s=lambda s: 2.0)
    t, _ = tuned(machine, request)
    assert [x.speculation.draft for x in t.trials] == [d.draft for d in drafts]
    assert max(len(x.measurement.responses) for x in t.trials) <= 6
