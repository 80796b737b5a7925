"""Measuring real servers: what the steps say, and what the server's own counters say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafts.acceptance import constant_tau
from specllama.engine.client import Client, Timings
from specllama.engine.errors import EngineError
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.memory.observed import saved_residual
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.prompts import as_text
from specllama.serving.trial_servers import TrialServers
from specllama.storage import cache_dir
from specllama.tuning import baseline, ngrams
from specllama.tuning.baseline import baseline_response
from specllama.tuning.measure import (
    Job,
    Measurement,
    Response,
    TokenizedPrompt,
    acceptance_by_slot,
    greedy_texts,
    measurement_of,
    sample_lengths,
    send_request,
    steps_of,
    warm_up,
)
from specllama.tuning.ngrams import KnownText
from specllama.tuning.records import RunningServer
from specllama.tuning.speedup import StepLog
from specllama.tuning.statistics import time_split
from specllama.workloads import load_workload
from tests.fake_runner import FakeRunner, Script
from tests.support import MODELS

TARGET, DRAFT, MTP = (MODELS / f"{n}.gguf" for n in ("target", "draft", "mtp"))
# the short ones: the tiny models are served with a small context
PROMPTS = tuple(p for p in map(as_text, load_workload("code").prompts) if len(p) < 500)[:12]
COLD = {"temperature": 0.0}
JOB = Job(COLD, 48, False)


def runner(
    tmp_path: Path, engine: str, model: Path, *theirs: str, parallel: int = 1
) -> TrialServers:
    settings = Settings(model, "127.0.0.1", 0, context=1024 * parallel, parallel=parallel)
    draft = DRAFT if model == TARGET else None
    plan = prepare(settings, SpeculationOptions("code", draft), ("-t", "1", *theirs), engine)
    return TrialServers(plan, tmp_path / "log")


@contextmanager
def running(here: TrialServers, spec: Speculation | None) -> Iterator[RunningServer]:
    try:
        yield here.start(spec, lambda: None)
    finally:
        here.stop()


@contextmanager
def serving(tmp_path: Path, engine: str, model: Path, n_max: int, *theirs: str) -> Iterator[Client]:
    here = runner(tmp_path, engine, model, *theirs)
    spec = here.plan.choice.speculation
    assert spec is not None
    with running(here, replace(spec, n_max=n_max)) as served:
        yield served.client


def questions(client: Client, prompts: Sequence[str] = PROMPTS) -> list[TokenizedPrompt]:
    return [TokenizedPrompt(p, client.tokenize(p)) for p in prompts]


def answers(client: Client, job: Job = JOB) -> Measurement:
    return measurement_of([send_request(client, q, job) for q in questions(client)])


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_the_steps_are_the_servers_own_counts(tmp_path: Path, engine: str, model: Path) -> None:
    with serving(tmp_path, engine, model, 4) as client:
        m = answers(client)
        counted = client.metrics()
        assert m.missing == ()
        assert counted is not None
        log = m.log
        assert (log.drafted, log.accepted) == (counted.drafted, counted.accepted)
        assert len(log.drafting) == counted.verify_steps
        n = len(log.drafting)
        for i, accepted in enumerate(counted.accepted_by_position, 1):
            assert sum(s.accepted >= i for s in log.steps) == accepted
        assert log.acceptance[0] == pytest.approx(counted.accepted_by_position[0] / n)
        assert log.tokens == sum(a.tokens - 1 for a in m.answers) + sum(
            # the end of a request cuts its last step short
            sum(s.accepted + 1 for s in a.steps) - (a.tokens - 1)
            for a in m.answers
        )
        assert m.first_ms > 0
        assert m.tokens_per_second > 0


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_short_requests_make_short_drafts(tmp_path: Path, engine: str, model: Path) -> None:
    """The cost of every length on one running server: no restart is needed, and the prompt,
    which is in the cache, is not evaluated again."""
    with serving(tmp_path, engine, model, 6) as client:
        question = questions(client)[3]
        whole = send_request(client, question, JOB)
        assert whole.prompt_tokens == len(question.ids)
        steps = sample_lengths(client, question, JOB, range(7), 3)
        assert set(steps.curve()) >= {0, 1, 2, 3, 4, 5, 6}
        assert max(s.drafted for s in steps.steps) == 6
        again = send_request(client, question, JOB, tokens=4, cache=True)
        assert again.prompt_tokens < len(question.ids) / 2


def test_every_length_is_seen_twice_in_up_to_twice_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: time for one round, so that the shortest draft, the best, had no cost."""
    clock = count()
    monkeypatch.setattr(
        "specllama.tuning.measure.time", SimpleNamespace(monotonic=lambda: next(clock) / 3)
    )

    def counts(until: float) -> list[int]:
        served = FakeRunner(Script(lambda b: 10.0 + b, accept=lambda r: 1.0)).start(
            Speculation(("draft-mtp",), n_max=4), lambda: None
        )
        asked = TokenizedPrompt("a prompt", served.client.tokenize("a prompt"))
        job = replace(JOB, until=next(clock) / 3 + until)
        found = sample_lengths(served.client, asked, job, range(1, 5), 9)
        return [sum(s.drafted == k for s in found.steps) for k in (1, 2, 3, 4)]

    assert counts(-1) == [2, 2, 2, 2]
    assert counts(1) == [2, 2, 2, 2]
    assert counts(1e9) == [9, 9, 9, 9]


def test_ngram_drafts_are_seen_as_steps_too(tmp_path: Path, engine: str) -> None:
    """And the replay over the plain server's tokens says the same, step by step."""
    here = runner(tmp_path, engine, TARGET)
    sizes = NgramSizes(3, 6)
    with running(here, None) as served:
        asked = questions(served.client)[:6]
        texts = [baseline_response(served.client, q, JOB) for q in asked]
    with running(here, Speculation(("ngram-simple",), ngram=sizes)) as served:
        warm_up(served.client, JOB)
        found = [send_request(served.client, q, JOB) for q in asked]
        counted = served.client.metrics()
    assert counted is not None
    m = measurement_of(found)
    assert m.log.drafted
    assert m.log.drafted == pytest.approx(counted.drafted, rel=0.1)
    same = [(a, b) for a, b in zip(texts, found, strict=True) if a.text == b.text]
    assert len(same) >= len(texts) / 2  # batch shapes round differently
    known = [KnownText(a.prompt_ids, a.ids, JOB.tokens) for a, _ in same]
    replayed = ngrams.replay("ngram-simple", sizes, known)
    for text, (_, b) in zip(replayed, same, strict=True):
        assert [d for d, _ in text.steps if d] == [s.drafted for s in b.steps if s.drafted]
        assert text.accepted == pytest.approx(b.accepted, abs=6)


def test_a_plain_server_drafts_nothing(tmp_path: Path, engine: str) -> None:
    with running(runner(tmp_path, engine, TARGET), None) as served:
        m = answers(served.client)
        assert (m.drafted, m.alpha) == (0, None)
        assert m.cost is not None
        assert m.cost.ms == pytest.approx(1000 / m.tokens_per_second, rel=0.5)
        assert len(greedy_texts(served.client, questions(served.client)[:2], JOB)) == 2


def test_batches_behind_a_cached_prompt_are_as_long_as_sent(tmp_path: Path, engine: str) -> None:
    """What verifying costs is learnt from a plain server: `prompt_n` is what was added."""
    with running(runner(tmp_path, engine, TARGET), None) as served:
        found = baseline.server_batch_times(
            served.client, questions(served.client), JOB, largest=17
        )
    assert set(found) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17}
    assert all(len(times) >= 2 for b, times in found.items() if b <= 9)
    assert all(ms > 0 for times in found.values() for ms in times)


def test_all_token_ids_come_back(tmp_path: Path, engine: str) -> None:
    """Streamed or not: the same ids, which the prompt's are not among."""
    with running(runner(tmp_path, engine, TARGET), None) as served:
        for question in questions(served.client)[:4]:
            streamed = send_request(served.client, question, JOB)
            whole = baseline_response(served.client, question, JOB)
            assert len(whole.ids) == whole.tokens
            assert whole.prompt_ids == streamed.prompt_ids == question.ids
            assert whole.text == streamed.text
            assert streamed.ids in (whole.ids, whole.ids[:-1])
            assert whole.ms_per_token > 0


def test_the_log_tells_what_drafting_took(tmp_path: Path, engine: str) -> None:
    here = runner(tmp_path, engine, TARGET)
    with running(here, here.plan.choice.speculation) as served:
        for q in questions(served.client)[:4]:
            send_request(served.client, q, JOB)
        split = time_split(served.log())
    assert split.methods["draft-simple"].drafted > 0
    assert split.methods["draft-simple"].ms > 0
    assert split.draft_share is not None
    assert 0 < split.draft_share < 1


def test_measured_acceptance_is_the_teacher_forced_one(
    tmp_path: Path, engine: str, llama_cpp: object
) -> None:
    """Agreement over the target's own greedy text, in process, against the real server."""
    from specllama.drafts import agreement
    from specllama.drafts.replay import replay_length

    _, forced = agreement.measure(TARGET, [DRAFT], PROMPTS, 1)
    expected = replay_length(forced[DRAFT].agrees, 4)
    with serving(tmp_path, engine, TARGET, 4) as client:
        log = answers(client).log
    n = len(log.drafting)
    for ours, theirs in zip(log.acceptance, expected.by_position, strict=False):
        assert ours == pytest.approx(theirs, abs=3 * (0.25 / n) ** 0.5 + 0.05)


def test_synthetic_rates_give_the_formulas_lengths(tmp_path: Path, native: Path) -> None:
    """llama-server itself as a fixture: --spec-synth-rates accepts at given rates."""
    rates = tuple(0.7**i for i in (1, 2, 3, 4))
    text = ",".join(map(str, rates))
    with serving(tmp_path, str(native), TARGET, 4, "--spec-synth-rates", text) as client:
        log = answers(client).log
        full = [s for s in log.steps if s.drafted == 4]
        assert len(full) > 100
        for i, rate in enumerate(rates, 1):
            seen = sum(s.accepted >= i for s in full) / len(full)
            assert seen == pytest.approx(rate, abs=3 * (rate * (1 - rate) / len(full)) ** 0.5)
        tau = 1 + sum(s.accepted for s in full) / len(full)
        assert tau == pytest.approx(constant_tau(0.7, 4), abs=0.35)


def test_each_slot_is_asked(tmp_path: Path, engine: str) -> None:
    here = runner(tmp_path, engine, TARGET, parallel=2)
    with running(here, here.plan.choice.speculation) as served:
        found = acceptance_by_slot(served.client, questions(served.client), JOB, 2)
        assert len(found) == 2
        assert all(a is not None and a > 0 for a in found)


def test_one_server_at_a_time(tmp_path: Path) -> None:
    here = runner(tmp_path, "embedded", TARGET)
    ticks: list[None] = []
    try:
        first = here.start(None, lambda: ticks.append(None))
        assert here.running is not None
        server = here.running.server
        assert first.client.healthy()
        here.start(here.plan.choice.speculation, lambda: None)
        assert server.exit_code(5) is not None
    finally:
        here.stop()
    assert here.running is None


def test_a_traced_server_does_not_go_on_to_serve(tmp_path: Path, engine: str) -> None:
    """It tells what it takes in memory, though."""
    here = replace(runner(tmp_path, engine, TARGET), final=True)
    spec = here.plan.choice.speculation
    try:
        for trace in (True, False):
            here.start(spec, lambda: None, trace)
            assert here.running is not None
            argv = psutil.Process(here.running.server.pid).cmdline()
            assert ("-lv" in argv) == trace
            kept = saved_residual(here.plan.files, here.plan.engine.identity)
            assert (kept is not None) == trace
            shutil.rmtree(cache_dir() / "memory", ignore_errors=True)
            going_on = here.hand_over(here.plan)
            assert (going_on is None) == trace
            if going_on is not None:
                going_on.stop()
    finally:
        here.stop()


def test_a_server_that_does_not_start_is_explained(tmp_path: Path) -> None:
    here = runner(tmp_path, "embedded", TARGET)
    with pytest.raises(EngineError, match="did not start"):
        here.start(Speculation(("draft-simple",), tmp_path / "none.gguf"), lambda: None)
    assert here.running is None


def test_a_server_that_ends_meanwhile_is_blamed(tmp_path: Path) -> None:
    here = runner(tmp_path, "embedded", TARGET)
    with running(here, None) as served:
        assert here.running is not None
        question = questions(served.client)[0]
        here.running.server.kill()
        with pytest.raises(EngineError) as broken:
            send_request(served.client, question, JOB)
        assert here.blame(broken.value).message.startswith("llama-server exited: ")


def test_a_real_model(tmp_path: Path, native: Path, smollm2: Path) -> None:
    """SmolLM2-135M as its own draft: V(b), ids, and steps with every guess right."""
    settings = Settings(smollm2, "127.0.0.1", 0, context=1024)
    plan = prepare(settings, SpeculationOptions("code"), ("-t", "1"), str(native))
    here = TrialServers(plan, tmp_path / "log")
    job = replace(JOB, tokens=24)
    with running(here, None) as served:
        asked = questions(served.client, PROMPTS[:2])
        found = baseline.server_batch_times(served.client, asked, job, largest=9)
        assert set(found) == set(range(1, 10))
        texts = [baseline_response(served.client, q, job) for q in asked]
        assert all(len(a.ids) == a.tokens for a in texts)
    spec = Speculation(("draft-simple",), smollm2, n_max=3)
    with running(here, spec) as served:
        m = measurement_of([send_request(served.client, q, job) for q in asked])
        assert m.alpha is not None
        assert m.alpha > 0.9
        same = sum(a.text == b.text for a, b in zip(m.answers, texts, strict=True))
        assert same >= 1


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


# ---- what is wrong with a server, in a user's words -------------------------------


def answered(
    text: str = "a b c", drafted: int = 0, accepted: int = 0, ms: float = 90.0
) -> Response:
    return Response(9, 9.0, 9.0, 10, ms, drafted, accepted, text, ())


@pytest.mark.parametrize(
    ("found", "hybrid", "finding"),
    [
        ([answered("no " * 30)] * 3, False, "degenerate output: one word repeated over and over"),
        ([answered("no " * 30), answered(), answered()], False, ""),
        ([answered("", 5, 7)], False, "inconsistent counters: 7 of 5 drafted"),
        ([answered("", 50, 0)] * 3, False, "it only costs time: 0 of 150 drafted tokens accepted"),
        ([answered("", 50, 1)] * 3, False, ""),  # one token in eight steps: τ = 1.12
        ([answered("", 50, 0)], False, ""),  # nine steps
        ([answered("", 150, 150)], True, "all 150 drafted tokens were accepted on a hybrid target"),
        ([answered("", 150, 150)], False, ""),
    ],
)
def test_findings(found: list[Response], hybrid: bool, finding: str) -> None:
    said = measurement_of(found, hybrid).findings
    assert (len(said) == 1 and said[0].startswith(finding)) if finding else said == ()


def test_without_steps_the_cost_comes_from_whole_answers() -> None:
    m = measurement_of(
        [answered(ms=90.0), answered(ms=99.0), replace(answered(), tokens=2, ms=1.0)]
    )
    assert m.missing == ("no per-token timings: α by position and step costs are unknown",)
    assert m.cost is not None
    assert m.cost.ms == pytest.approx(10.5)
    assert measurement_of([answered()]).cost is None
    assert StepLog(()).cost(0) is None
