"""Measuring real servers: the steps of responses, compared with the server's own counters."""

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
# short prompts only: the tiny models are served with a small context
PROMPTS = tuple(p for p in map(as_text, load_workload("code").prompts) if len(p) < 500)[:12]
COLD = {"temperature": 0.0}
JOB = Job(COLD, 48, False)


def trial_servers(
    tmp_path: Path, engine: str, model: Path, *user_args: str, parallel: int = 1
) -> TrialServers:
    settings = Settings(model, "127.0.0.1", 0, context=1024 * parallel, parallel=parallel)
    draft = DRAFT if model == TARGET else None
    plan = prepare(settings, SpeculationOptions("code", draft), ("-t", "1", *user_args), engine)
    return TrialServers(plan, tmp_path / "log")


@contextmanager
def running(here: TrialServers, spec: Speculation | None) -> Iterator[RunningServer]:
    try:
        yield here.start(spec, lambda: None)
    finally:
        here.stop()


@contextmanager
def serving(
    tmp_path: Path, engine: str, model: Path, n_max: int, *user_args: str
) -> Iterator[Client]:
    here = trial_servers(tmp_path, engine, model, *user_args)
    spec = here.plan.choice.speculation
    assert spec is not None
    with running(here, replace(spec, n_max=n_max)) as served:
        yield served.client


def tokenized_prompts(client: Client, prompts: Sequence[str] = PROMPTS) -> list[TokenizedPrompt]:
    return [TokenizedPrompt(p, client.tokenize(p)) for p in prompts]


def measure_prompts(client: Client, job: Job = JOB) -> Measurement:
    return measurement_of([send_request(client, q, job) for q in tokenized_prompts(client)])


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_the_step_log_agrees_with_the_servers_counters(
    tmp_path: Path, engine: str, model: Path
) -> None:
    with serving(tmp_path, engine, model, 4) as client:
        m = measure_prompts(client)
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
        assert log.tokens == sum(a.tokens - 1 for a in m.responses) + sum(
            # the last step of a request is cut short by its end
            sum(s.accepted + 1 for s in a.steps) - (a.tokens - 1)
            for a in m.responses
        )
        assert m.first_ms > 0
        assert m.tokens_per_second > 0


@pytest.mark.parametrize("model", [TARGET, MTP], ids=["draft-simple", "draft-mtp"])
def test_short_requests_make_short_drafts(tmp_path: Path, engine: str, model: Path) -> None:
    """The cost of every draft length is measured on one running server, without a restart; the
    cached prompt is not evaluated again."""
    with serving(tmp_path, engine, model, 6) as client:
        prompt = tokenized_prompts(client)[3]
        whole = send_request(client, prompt, JOB)
        assert whole.prompt_tokens == len(prompt.ids)
        steps = sample_lengths(client, prompt, JOB, range(7), 3)
        assert set(steps.curve()) >= {0, 1, 2, 3, 4, 5, 6}
        assert max(s.drafted for s in steps.steps) == 6
        again = send_request(client, prompt, JOB, tokens=4, cache=True)
        assert again.prompt_tokens < len(prompt.ids) / 2


def test_every_draft_length_is_sampled_twice_even_over_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With time for one round only, the shortest draft, which was the best, once had no cost."""
    clock = count()
    monkeypatch.setattr(
        "specllama.tuning.measure.time", SimpleNamespace(monotonic=lambda: next(clock) / 3)
    )

    def counts(until: float) -> list[int]:
        served = FakeRunner(Script(lambda b: 10.0 + b, accept=lambda r: 1.0)).start(
            Speculation(("draft-mtp",), n_max=4), lambda: None
        )
        prompt = TokenizedPrompt("a prompt", served.client.tokenize("a prompt"))
        job = replace(JOB, until=next(clock) / 3 + until)
        found = sample_lengths(served.client, prompt, job, range(1, 5), 9)
        return [sum(s.drafted == k for s in found.steps) for k in (1, 2, 3, 4)]

    assert counts(-1) == [2, 2, 2, 2]
    assert counts(1) == [2, 2, 2, 2]
    assert counts(1e9) == [9, 9, 9, 9]


def test_replayed_ngram_drafts_agree_with_a_real_servers_steps(tmp_path: Path, engine: str) -> None:
    """The replay over the responses of a server without speculation gives the same steps."""
    here = trial_servers(tmp_path, engine, TARGET)
    sizes = NgramSizes(3, 6)
    with running(here, None) as served:
        prompts = tokenized_prompts(served.client)[:6]
        texts = [baseline_response(served.client, q, JOB) for q in prompts]
    with running(here, Speculation(("ngram-simple",), ngram=sizes)) as served:
        warm_up(served.client, JOB)
        found = [send_request(served.client, q, JOB) for q in prompts]
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
    with running(trial_servers(tmp_path, engine, TARGET), None) as served:
        m = measure_prompts(served.client)
        assert (m.drafted, m.alpha) == (0, None)
        assert m.cost is not None
        assert m.cost.ms == pytest.approx(1000 / m.tokens_per_second, rel=0.5)
        assert len(greedy_texts(served.client, tokenized_prompts(served.client)[:2], JOB)) == 2


def test_batches_after_a_cached_prompt_have_the_requested_sizes(
    tmp_path: Path, engine: str
) -> None:
    """The verification cost comes from a server without speculation: `prompt_n` is the batch size."""
    with running(trial_servers(tmp_path, engine, TARGET), None) as served:
        found = baseline.server_batch_times(
            served.client, tokenized_prompts(served.client), JOB, largest=17
        )
    assert set(found) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17}
    assert all(len(times) >= 2 for b, times in found.items() if b <= 9)
    assert all(ms > 0 for times in found.values() for ms in times)


def test_responses_contain_all_token_ids(tmp_path: Path, engine: str) -> None:
    """The same ids, streamed or not, without those of the prompt."""
    with running(trial_servers(tmp_path, engine, TARGET), None) as served:
        for prompt in tokenized_prompts(served.client)[:4]:
            streamed = send_request(served.client, prompt, JOB)
            whole = baseline_response(served.client, prompt, JOB)
            assert len(whole.ids) == whole.tokens
            assert whole.prompt_ids == streamed.prompt_ids == prompt.ids
            assert whole.text == streamed.text
            assert streamed.ids in (whole.ids, whole.ids[:-1])
            assert whole.ms_per_token > 0


def test_draft_time_is_read_from_the_servers_log(tmp_path: Path, engine: str) -> None:
    here = trial_servers(tmp_path, engine, TARGET)
    with running(here, here.plan.choice.speculation) as served:
        for q in tokenized_prompts(served.client)[:4]:
            send_request(served.client, q, JOB)
        split = time_split(served.log())
    assert split.methods["draft-simple"].drafted > 0
    assert split.methods["draft-simple"].ms > 0
    assert split.draft_share is not None
    assert 0 < split.draft_share < 1


def test_measured_acceptance_agrees_with_teacher_forcing(
    tmp_path: Path, engine: str, llama_cpp: object
) -> None:
    """Agreement over the target's own greedy text, in process, against the real server."""
    from specllama.drafts import agreement
    from specllama.drafts.replay import replay_length

    _, forced = agreement.measure(TARGET, [DRAFT], PROMPTS, 1)
    expected = replay_length(forced[DRAFT].agrees, 4)
    with serving(tmp_path, engine, TARGET, 4) as client:
        log = measure_prompts(client).log
    n = len(log.drafting)
    for measured, predicted in zip(log.acceptance, expected.by_position, strict=False):
        assert measured == pytest.approx(predicted, abs=3 * (0.25 / n) ** 0.5 + 0.05)


def test_synthetic_acceptance_rates_give_the_predicted_mean_length(
    tmp_path: Path, native: Path
) -> None:
    """llama-server itself as a fixture: --spec-synth-rates accepts at given rates."""
    rates = tuple(0.7**i for i in (1, 2, 3, 4))
    text = ",".join(map(str, rates))
    with serving(tmp_path, str(native), TARGET, 4, "--spec-synth-rates", text) as client:
        log = measure_prompts(client).log
        full = [s for s in log.steps if s.drafted == 4]
        assert len(full) > 100
        for i, rate in enumerate(rates, 1):
            seen = sum(s.accepted >= i for s in full) / len(full)
            assert seen == pytest.approx(rate, abs=3 * (rate * (1 - rate) / len(full)) ** 0.5)
        tau = 1 + sum(s.accepted for s in full) / len(full)
        assert tau == pytest.approx(constant_tau(0.7, 4), abs=0.35)


def test_acceptance_is_measured_for_every_slot(tmp_path: Path, engine: str) -> None:
    here = trial_servers(tmp_path, engine, TARGET, parallel=2)
    with running(here, here.plan.choice.speculation) as served:
        found = acceptance_by_slot(served.client, tokenized_prompts(served.client), JOB, 2)
        assert len(found) == 2
        assert all(a is not None and a > 0 for a in found)


def test_starting_a_server_stops_the_previous_one(tmp_path: Path) -> None:
    here = trial_servers(tmp_path, "embedded", TARGET)
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


def test_a_traced_server_is_not_handed_over_to_serve(tmp_path: Path, engine: str) -> None:
    """Its log still shows the memory it uses."""
    here = replace(trial_servers(tmp_path, engine, TARGET), final=True)
    spec = here.plan.choice.speculation
    try:
        for trace in (True, False):
            here.start(spec, lambda: None, trace)
            assert here.running is not None
            argv = psutil.Process(here.running.server.pid).cmdline()
            assert ("-lv" in argv) == trace
            residual = saved_residual(here.plan.files, here.plan.engine.identity)
            assert (residual is not None) == trace
            shutil.rmtree(cache_dir() / "memory", ignore_errors=True)
            handed_over = here.hand_over(here.plan)
            assert (handed_over is None) == trace
            if handed_over is not None:
                handed_over.stop()
    finally:
        here.stop()


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    here = trial_servers(tmp_path, "embedded", TARGET)
    with pytest.raises(EngineError, match="did not start"):
        here.start(Speculation(("draft-simple",), tmp_path / "none.gguf"), lambda: None)
    assert here.running is None


def test_a_server_that_exits_during_a_request_is_named_as_the_cause(tmp_path: Path) -> None:
    here = trial_servers(tmp_path, "embedded", TARGET)
    with running(here, None) as served:
        assert here.running is not None
        prompt = tokenized_prompts(served.client)[0]
        here.running.server.kill()
        with pytest.raises(EngineError) as broken:
            send_request(served.client, prompt, JOB)
        assert here.blame(broken.value).message.startswith("llama-server exited: ")


def test_a_real_model_as_its_own_draft_is_accepted_almost_always(
    tmp_path: Path, native: Path, smollm2: Path
) -> None:
    """SmolLM2-135M as its own draft: V(b), ids, and steps with every guess right."""
    settings = Settings(smollm2, "127.0.0.1", 0, context=1024)
    plan = prepare(settings, SpeculationOptions("code"), ("-t", "1"), str(native))
    here = TrialServers(plan, tmp_path / "log")
    job = replace(JOB, tokens=24)
    with running(here, None) as served:
        prompts = tokenized_prompts(served.client, PROMPTS[:2])
        found = baseline.server_batch_times(served.client, prompts, job, largest=9)
        assert set(found) == set(range(1, 10))
        texts = [baseline_response(served.client, q, job) for q in prompts]
        assert all(len(a.ids) == a.tokens for a in texts)
    spec = Speculation(("draft-simple",), smollm2, n_max=3)
    with running(here, spec) as served:
        m = measurement_of([send_request(served.client, q, job) for q in prompts])
        assert m.alpha is not None
        assert m.alpha > 0.9
        same = sum(a.text == b.text for a, b in zip(m.responses, texts, strict=True))
        assert same >= 1


# ---- steps from timings ------------------------------------------------------------


def timings(*rows: tuple[int, float, int, int]) -> list[Timings]:
    return [Timings(5, 1.0, n, ms, d, a) for n, ms, d, a in rows]


def test_steps_are_derived_from_a_recorded_stream() -> None:
    """As sent by b11434: a step's numbers appear from its second token on, or with the next step."""
    found = list(
        steps_of(
            timings(
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


def test_inconsistent_counts_give_no_steps() -> None:
    assert list(steps_of(timings((40, 80.0, 30, 12)))) == []  # only the last timings arrived
    assert list(steps_of(timings((1, 0.0, 0, 0), (9, 5.0, 2, 7)))) == []
    assert list(steps_of(timings((1, 0.0, 0, 0), (50, 5.0, 2, 1)))) == []


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
def test_any_timings_give_possible_steps(found: list[Timings]) -> None:
    for s in steps_of(found):
        assert 0 <= s.accepted <= s.drafted


# ---- findings about a server -------------------------------


def timed_response(
    text: str = "a b c", drafted: int = 0, accepted: int = 0, ms: float = 90.0
) -> Response:
    return Response(9, 9.0, 9.0, 10, ms, drafted, accepted, text, ())


@pytest.mark.parametrize(
    ("found", "hybrid", "finding"),
    [
        (
            [timed_response("no " * 30)] * 3,
            False,
            "degenerate output: one word repeated over and over",
        ),
        ([timed_response("no " * 30), timed_response(), timed_response()], False, ""),
        ([timed_response("", 5, 7)], False, "inconsistent counters: 7 of 5 drafted"),
        (
            [timed_response("", 50, 0)] * 3,
            False,
            "it only costs time: 0 of 150 drafted tokens accepted",
        ),
        ([timed_response("", 50, 1)] * 3, False, ""),  # one token in eight steps: τ = 1.12
        ([timed_response("", 50, 0)], False, ""),  # nine steps
        (
            [timed_response("", 150, 150)],
            True,
            "all 150 drafted tokens were accepted on a hybrid target",
        ),
        ([timed_response("", 150, 150)], False, ""),
    ],
)
def test_suspicious_responses_are_findings(
    found: list[Response], hybrid: bool, finding: str
) -> None:
    findings = measurement_of(found, hybrid).findings
    assert (len(findings) == 1 and findings[0].startswith(finding)) if finding else findings == ()


def test_without_steps_the_cost_comes_from_whole_responses() -> None:
    m = measurement_of(
        [
            timed_response(ms=90.0),
            timed_response(ms=99.0),
            replace(timed_response(), tokens=2, ms=1.0),
        ]
    )
    assert m.missing == ("no per-token timings: α by position and step costs are unknown",)
    assert m.cost is not None
    assert m.cost.ms == pytest.approx(10.5)
    assert measurement_of([timed_response()]).cost is None
    assert StepLog(()).cost(0) is None
