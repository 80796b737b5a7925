"""Measuring real servers: what the steps say, and what the server's own counters say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.client import Client, Timings
from specllama.engine.errors import EngineError
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.planning.prepare import Wish, prepare
from specllama.serving.lab import Lab
from specllama.tuning.measure import (
    Job,
    by_slot,
    greedy_texts,
    measure,
    measure_beside,
    sample_lengths,
    steps_of,
)
from specllama.tuning.speedup import StepLog, tau_constant
from specllama.workloads import load
from tests.fake_lab import FakeLab, Request, Script
from tests.support import MODELS

TARGET, DRAFT, MTP = (MODELS / f"{n}.gguf" for n in ("target", "draft", "mtp"))
# the short ones: the tiny models are served with a small context
PROMPTS = tuple(p for p in load("code").prompts if len(p) < 500)
COLD = {"temperature": 0.0}


def lab(tmp_path: Path, engine: str, model: Path, *theirs: str, parallel: int = 1) -> Lab:
    settings = Settings(model, "127.0.0.1", 0, context=1024 * parallel, parallel=parallel)
    draft = DRAFT if model == TARGET else None
    plan = prepare(settings, Wish("code", draft), ("-t", "1", *theirs), engine)
    return Lab(plan, tmp_path / "log")


@contextmanager
def serving(tmp_path: Path, engine: str, model: Path, n_max: int, *theirs: str) -> Iterator[Client]:
    here = lab(tmp_path, engine, model, *theirs)
    spec = here.plan.choice.speculation
    assert spec is not None
    with here.serve(replace(spec, n_max=n_max)) as served:
        yield served.client


def job(**more: object) -> Job:
    return Job(PROMPTS, COLD, 48, False, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_the_steps_are_the_servers_own_counts(tmp_path: Path, engine: str, model: Path) -> None:
    with serving(tmp_path, engine, model, 4) as client:
        m = measure(client, job())
        assert m.missing == ()
        assert m.metrics is not None
        log = m.log
        assert (log.drafted, log.accepted) == (m.metrics.drafted, m.metrics.accepted)
        assert len(log.drafting) == m.metrics.verify_steps
        n = len(log.drafting)
        for i, accepted in enumerate(m.metrics.accepted_by_position, 1):
            assert sum(s.accepted >= i for s in log.steps) == accepted
        assert log.acceptance[0] == pytest.approx(m.metrics.accepted_by_position[0] / n)
        assert log.tokens == sum(a.tokens - 1 for a in m.answers) + sum(
            # the end of a request cuts its last step short
            sum(s.accepted + 1 for s in a.steps) - (a.tokens - 1)
            for a in m.answers
        )
        assert m.first_ms > 0
        assert m.tokens_per_second > 0


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_short_requests_make_short_drafts(tmp_path: Path, engine: str, model: Path) -> None:
    """The cost of every length on one running server: no restart is needed."""
    with serving(tmp_path, engine, model, 6) as client:
        steps, plain = sample_lengths(client, job(), range(7), 3)
        curve = StepLog(steps.steps).curve()
        assert set(curve) >= {0, 1, 2, 3, 4, 5, 6}
        longest = [s.drafted for s in steps.steps]
        assert max(longest) == 6
        assert not plain.steps


def test_a_plain_server_is_asked_in_between(tmp_path: Path, engine: str) -> None:
    here = lab(tmp_path, engine, TARGET)
    spec = here.plan.choice.speculation
    assert spec is not None
    beside = replace(here, log=tmp_path / "beside")
    with here.serve(spec) as served, beside.serve(None) as other:
        steps, plain = sample_lengths(served.client, job(), (1, 2), 3, other.client)
    assert len(plain.steps) == 3 * 5
    assert {s.drafted for s in plain.steps} == {0}
    assert steps.drafted


def test_every_length_is_seen_twice_in_up_to_twice_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: time for one round, so that the shortest draft, the best, had no cost."""
    clock = 0.0  # a second for each request
    monkeypatch.setattr("specllama.tuning.measure.time", SimpleNamespace(monotonic=lambda: clock))

    def accept(request: Request) -> float:
        nonlocal clock
        clock += 1
        return 1.0

    def counts(seconds: float) -> list[int]:
        script = Script(lambda k, m: 10.0 + k, accept=accept)
        with FakeLab(script).serve(Speculation(("draft-mtp",), n_max=4)) as served:
            found, _ = sample_lengths(served.client, job(until=clock + seconds), range(1, 5), 9)
        return [sum(s.drafted == k for s in found.steps) for k in (1, 2, 3, 4)]

    assert counts(1.5) == [1, 1, 1, 1]
    assert counts(4.5) == [2, 2, 2, 2]
    assert counts(7.5) == [2, 2, 2, 2]
    assert counts(8.5) == [3, 2, 2, 2]


def test_ngram_drafts_are_seen_as_steps_too(tmp_path: Path, engine: str) -> None:
    here = lab(tmp_path, engine, TARGET)
    spec = Speculation(("ngram-simple",), ngram=NgramSizes(3, 6))
    with here.serve(spec) as served:
        m = measure(served.client, job())
        assert m.metrics is not None
        assert m.metrics.drafted
        assert m.log.drafted == pytest.approx(m.metrics.drafted, rel=0.1)


def test_a_plain_server_drafts_nothing(tmp_path: Path, engine: str) -> None:
    here = lab(tmp_path, engine, TARGET)
    with here.serve(None) as served:
        m = measure(served.client, job())
        assert (m.drafted, m.alpha) == (0, None)
        assert m.cost is not None
        assert m.cost.ms == pytest.approx(1000 / m.tokens_per_second, rel=0.5)


def test_two_servers_in_turn_say_the_same_when_cold(tmp_path: Path, engine: str) -> None:
    here = lab(tmp_path, engine, TARGET)
    assert here.room_for_two
    with here.serve(None) as plain, here.serve(here.plan.choice.speculation) as drafting:
        a, b = measure_beside(plain.client, drafting.client, job())
        assert len(a.answers) == len(b.answers) == len(PROMPTS)
        assert (a.drafted, b.drafted > 0) == (0, True)
        same = sum(x.text == y.text for x, y in zip(a.answers, b.answers, strict=True))
        assert same >= len(a.answers) // 2  # batch shapes round differently
        assert len(greedy_texts(plain.client, job())) == 2


def test_measured_acceptance_is_the_teacher_forced_one(
    tmp_path: Path, engine: str, llama_cpp: object
) -> None:
    """Agreement over the target's own greedy text, in process, against the real server."""
    from specllama.drafts import agreement
    from specllama.drafts.replay import replay

    _, forced = agreement.measure(TARGET, [DRAFT], PROMPTS, 1)
    expected = replay(forced[DRAFT].agrees, 4)
    with serving(tmp_path, engine, TARGET, 4) as client:
        log = measure(client, job()).log
    n = len(log.drafting)
    for ours, theirs in zip(log.acceptance, expected.by_position, strict=False):
        assert ours == pytest.approx(theirs, abs=3 * (0.25 / n) ** 0.5 + 0.05)


def test_synthetic_rates_give_the_formulas_lengths(tmp_path: Path, native: Path) -> None:
    """llama-server itself as a fixture: --spec-synth-rates accepts at given rates."""
    rates = tuple(0.7**i for i in (1, 2, 3, 4))
    text = ",".join(map(str, rates))
    with serving(tmp_path, str(native), TARGET, 4, "--spec-synth-rates", text) as client:
        log = measure(client, job()).log
        full = [s for s in log.steps if s.drafted == 4]
        assert len(full) > 100
        for i, rate in enumerate(rates, 1):
            seen = sum(s.accepted >= i for s in full) / len(full)
            assert seen == pytest.approx(rate, abs=3 * (rate * (1 - rate) / len(full)) ** 0.5)
        tau = 1 + sum(s.accepted for s in full) / len(full)
        assert tau == pytest.approx(tau_constant(0.7, 4), abs=0.35)


def test_each_slot_is_asked(tmp_path: Path, engine: str) -> None:
    here = lab(tmp_path, engine, TARGET, parallel=2)
    with here.serve(here.plan.choice.speculation) as served:
        found = by_slot(served.client, job(), 2)
        assert len(found) == 2
        assert all(a is not None and a > 0 for a in found)


def test_time_that_is_over_still_gives_the_least(tmp_path: Path) -> None:
    here = lab(tmp_path, "embedded", TARGET)
    with here.serve(None) as served:
        m = measure(served.client, job(until=time.monotonic() - 1), least=3)
        assert len(m.answers) == 3


def test_a_server_that_does_not_start_is_explained(tmp_path: Path) -> None:
    here = lab(tmp_path, "embedded", TARGET)
    with (
        pytest.raises(EngineError, match="did not start"),
        here.serve(Speculation(("draft-simple",), tmp_path / "none.gguf")),
    ):
        pass


# ---- reading the marks ------------------------------------------------------------


def marks(*rows: tuple[int, float, int, int]) -> list[Timings]:
    return [Timings(5, 1.0, n, ms, d, a) for n, ms, d, a in rows]


def test_steps_from_a_recorded_stream() -> None:
    """As b11434 sent it: a step's numbers show from its second token on, or with the next's."""
    found = list(
        steps_of(
            marks(
                (1, 0.001, 0, 0),
                *((n, 11.66, 6, 5) for n in range(2, 9)),
                (9, 19.462, 10, 6),
                (10, 19.462, 10, 6),
                (11, 24.767, 12, 8),
                (12, 24.767, 12, 8),
            )
        )
    )
    assert [(s.drafted, s.accepted) for s in found] == [(6, 5), (4, 1), (2, 2)]
    assert sum(s.ms for s in found) == pytest.approx(24.766)


def test_counts_that_do_not_add_up_give_no_steps() -> None:
    assert list(steps_of(marks((40, 80.0, 30, 12)))) == []  # only the last mark came
    assert list(steps_of(marks((1, 0.0, 0, 0), (9, 5.0, 2, 7)))) == []
    assert list(steps_of(marks((1, 0.0, 0, 0), (50, 5.0, 2, 1)))) == []


@given(
    st.lists(
        st.builds(
            Timings,
            st.integers(0, 9),
            st.floats(0, 9),
            st.integers(-5, 99),
            st.floats(-9, 1e6),
            st.integers(-9, 99),
            st.integers(-9, 99),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_marks(found: list[Timings]) -> None:
    for s in steps_of(found):
        assert 0 <= s.accepted <= s.drafted
