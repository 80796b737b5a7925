"""Acceptance and costs measured in-process: the arithmetic, and against a real server's counters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli.measured_lines import cost_lines
from specllama.drafts.costs import DraftCosts, best
from specllama.drafts.inprocess import Continuation
from specllama.drafts.pick import Candidate, MeasuredAgreement, PickResult
from specllama.drafts.rank import predict
from specllama.drafts.replay import DraftReplay, expected_tau, replay_length, tau_interval
from specllama.drafts.timing import model_batch_times
from specllama.engine.client import Client
from specllama.gguf import read_model
from tests.support import MODELS, Serve, specllama
from tests.test_serve import CODE

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"


def test_replay_of_a_hand_worked_example() -> None:
    # t t f t, K=2: 2 of 2 drafted tokens are accepted and the target adds the third token (f).
    # One token is left, for which nothing can be drafted.
    r = replay_length([[True, True, False, True]], 2)
    assert (r.steps, r.tokens, r.drafted, r.accepted) == (2, 4, 2, 2)
    assert r.by_position == (0.5, 0.5)
    assert r.tau == 2
    one = replay_length([[True, True, False, True]], 1)
    assert (one.steps, one.drafted, one.accepted) == (3, 2, 1)


def test_replay_if_nothing_or_everything_is_accepted() -> None:
    never = replay_length([[False] * 10], 4)
    assert (never.steps, never.accepted, never.tau) == (10, 0, 1)
    always = replay_length([[True] * 100], 4)
    assert always.alpha == 1
    assert always.steps == 20


@given(st.lists(st.lists(st.booleans(), min_size=1), min_size=1), st.integers(1, 8))
def test_replay_counts_add_up(answers: list[list[bool]], k: int) -> None:
    r = replay_length(answers, k)
    assert r.tokens == sum(map(len, answers)) == r.steps + r.accepted
    assert r.accepted <= r.drafted <= k * r.steps
    assert list(r.by_position) == sorted(r.by_position, reverse=True)
    assert r.tau == pytest.approx(r.tokens / r.steps)


def test_expected_tau_with_constant_probability_is_the_closed_form() -> None:
    answers = [[0.6] * 4000]
    for k in (1, 3, 8):
        closed = (1 - 0.6 ** (k + 1)) / (1 - 0.6)
        assert expected_tau(answers, k) == pytest.approx(closed, rel=0.01)


def test_the_interval_contains_the_value() -> None:
    answers = [[(i * j) % 3 != 0 for i in range(1, 60)] for j in range(1, 12)]
    low, high = tau_interval(answers, 4)
    assert low <= replay_length(answers, 4).tau <= high
    assert low < high


def _constant_acceptance(share: float) -> list[DraftReplay]:
    """Replays in which every token is accepted with this probability, K = 1 … 8."""
    return [
        DraftReplay(k, 100, 0, 0, 0, tuple(share**i for i in range(1, k + 1))) for k in range(1, 9)
    ]


def test_a_step_costs_one_target_pass_and_its_draft_passes() -> None:
    costs = DraftCosts(1, target=(100, 120, 150), draft=(10, 12, 15))
    assert costs.drafting(2) == 2 * 10 + 15
    assert costs.step(2) == 150 + 35
    assert costs.speedup(1.85, 2) == pytest.approx(1.0)


def test_the_best_k_depends_on_the_costs() -> None:
    replays = _constant_acceptance(0.8)
    flat = DraftCosts(1, target=(100,) * 9, draft=(1,) * 9)
    assert best(replays, flat.speedup).k == 8
    steep = replace(flat, target=tuple(100 + 60 * b for b in range(9)))
    assert best(replays, steep.speedup).k < 4
    # a batch of 5 takes a slower matrix kernel: no draft longer than 3
    cliff = replace(flat, target=(100, 102, 104, 106, 300, 300, 300, 300, 300))
    assert best(replays, cliff.speedup).k == 3


def test_a_draft_as_slow_as_the_target_never_pays_off() -> None:
    for target in ((100.0,) * 9, tuple(100.0 + 20 * b for b in range(9))):
        costs = DraftCosts(1, target=target, draft=target)
        for share in (0.0, 0.5, 1.0):
            run = best(_constant_acceptance(share), costs.speedup)
            assert costs.speedup(run.tau, run.k) < 1


class _TimedModel:
    """A model whose passes take b ms and whose calls must name the right position."""

    def __init__(self, cannot_roll_back: bool = False, seconds: float = 0.0) -> None:
        self.at, self.now, self.passes = 0, 0.0, 0
        self._cannot_roll_back, self._seconds = cannot_roll_back, seconds

    def evaluate(self, ids: Sequence[int], at: int, outputs: int) -> float:
        assert at == self.at
        assert 1 <= outputs <= len(ids)
        self.at += len(ids)
        self.passes += 1
        self.now += self._seconds
        return float(len(ids))

    def roll_back(self, at: int) -> bool:
        if self._cannot_roll_back:
            return False
        self.at = at
        return True

    def clear(self) -> None:
        self.at = 0


@pytest.mark.parametrize("tokens", [0, 1, 40, 2000])
def test_every_size_is_timed_from_the_same_prefix(tokens: int) -> None:
    model = _TimedModel()
    answers = [Continuation((1, 2), ()), Continuation((1,), (7,) * tokens)]
    assert model_batch_times(model, answers, 9, all_rows=True) == tuple(range(1, 10))
    assert model.at == 0


def test_a_slow_model_is_timed_with_a_limited_number_of_passes() -> None:
    model = _TimedModel(seconds=10)
    assert (
        model_batch_times(model, [Continuation((1,), (2,) * 20)], 9, True, lambda: model.now)
        is not None
    )
    assert model.passes == 1 + 2 + 2 * 10  # the prefix, the warm-up, two rounds


def test_costs_are_estimated_if_tokens_cannot_be_rolled_back() -> None:
    assert (
        model_batch_times(
            _TimedModel(cannot_roll_back=True), [Continuation((1,), (2, 3))], 9, all_rows=True
        )
        is None
    )
    target, draft = read_model(TARGET), read_model(DRAFT)
    m = MeasuredAgreement(
        k=2, alpha=0.5, tau=1.7, tau_low=1.6, tau_high=1.8, by_position=(0.5, 0.2),
        tau_by_temperature={}, speedup=1.2, speedup_low=1.1, speedup_high=1.3, costs=None,
        uncosted="target.gguf cannot roll back single tokens", source="",
    )  # fmt: skip
    c = Candidate("draft-simple", draft, predict(target, "draft-simple", draft, "code"), (), m)
    (line,) = cost_lines(PickResult((c,), ()))
    assert "draft.gguf: estimated from file sizes, not measured (target.gguf cannot" in line


@pytest.mark.usefixtures("llama_cpp")
def test_predicted_acceptance_matches_the_servers_counters(native: Path, tmp_path: Path) -> None:
    from specllama.drafts.agreement import measure

    answers, found = measure(TARGET, [DRAFT], CODE, threads=1)
    for k in (1, 2, 4, 8):
        predicted = replay_length(found[DRAFT].agrees, k)
        (tmp_path / str(k)).mkdir()
        args = (TARGET, "--draft", DRAFT, "--n-max", str(k), "--llama-server", native)
        with Serve(tmp_path / str(k), *args) as s, Client(s.url) as client:
            before = client.metrics()
            for prompt, answer in zip(CODE, answers, strict=True):
                client.chat(prompt, len(answer.tokens), {"temperature": 0.0})
            after = client.metrics()
        assert before is not None
        assert after is not None
        steps = (after.verify_steps or 0) - (before.verify_steps or 0)
        accepted = (after.accepted or 0) - (before.accepted or 0)
        pairs = zip(after.accepted_by_position, before.accepted_by_position, strict=True)
        counted = [(a - b) / steps for a, b in pairs]
        assert predicted.tau == pytest.approx(1 + accepted / steps, abs=0.05)
        assert list(predicted.by_position) == pytest.approx(counted, abs=0.05)


@pytest.mark.usefixtures("llama_cpp")
def test_the_target_always_agrees_with_itself() -> None:
    from specllama.drafts.agreement import measure

    _, found = measure(TARGET, [TARGET], CODE[:2], threads=1)
    agreement = found[TARGET]
    assert all(all(bits) for bits in agreement.agrees)
    cold, hot = (sum(map(sum, agreement.probability[t])) for t in (0.4, 1.2))
    assert cold > hot > 0


@pytest.mark.usefixtures("llama_cpp")
def test_pick_draft_measure_prints_agreement_and_costs(tmp_path: Path) -> None:
    args = ("pick-draft", TARGET, "--llama-server", "embedded", "--threads", "1")
    data = json.loads(specllama(*args, "--measure", "-w", "code", "--json").stdout)
    plain = {Path(c["draft"]).name: c for c in data["candidates"]}
    best = plain["draft.gguf"]
    speeds = [c["measured"]["speedup"] for c in data["candidates"] if c["measured"]]
    assert speeds == sorted(speeds, reverse=True)
    assert 0 < best["measured"]["alpha"] < 1
    low, high = best["measured"]["tau_interval"]
    assert low <= best["measured"]["tau"] <= high
    slow, fast = best["measured"]["speedup_interval"]
    assert slow <= best["measured"]["speedup"] <= fast
    costs = best["measured"]["costs"]
    assert costs["threads"] == 1
    for times in (costs["target_batch_ms"], costs["draft_batch_ms"]):
        assert len(times) == 9
        assert min(times) > 0
    assert best["measured"]["costs_guessed_because"] is None
    human = specllama(*args, "--measure", "-w", "code")
    assert "measured on the target's responses to 12 code prompts" in human.stdout
    assert "cost     measured in process, 1 thread: a plain step takes" in human.stdout
    assert "cost     draft.gguf at K=" in human.stdout
    text = tmp_path / "text.py"
    text.write_text("\n".join(CODE) * 3)
    given = specllama(*args, "--measure", "--text", text)
    assert "measured on text.py" in given.stdout


def test_measure_without_llama_cpp_python_names_the_package() -> None:
    blocker = str(Path(__file__).parent / "without_llama_cpp")
    args = ("pick-draft", TARGET, "--measure", "--llama-server", "embedded")
    done = specllama(*args, PYTHONPATH=blocker)
    assert done.returncode == 2
    assert "pip install llama-cpp-python" in done.stderr


def test_measure_without_drafts_is_an_error(tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "t.gguf"
    alone.parent.mkdir()
    alone.write_bytes(TARGET.read_bytes())
    done = specllama("pick-draft", alone, "--measure", "--llama-server", "embedded")
    assert done.returncode == 1
    assert "nothing to measure" in done.stderr


@pytest.mark.usefixtures("llama_cpp")
def test_a_token_outside_the_targets_vocabulary_has_probability_0() -> None:
    import numpy as np

    from specllama.drafts.agreement import _probability

    row = np.zeros(4, dtype=np.float32)
    assert _probability(row, 3, 1.0) == pytest.approx(0.25)
    assert _probability(row, 4, 1.0) == 0.0
