"""Acceptance without a server: the replay's arithmetic, and the real server's counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafts.replay import expected_tau, interval, replay
from specllama.engine.client import Client
from tests.support import MODELS, Serve, specllama
from tests.test_serve import CODE

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"


def test_a_hand_worked_replay() -> None:
    # t t f t | steps with K=2: 2 of 2 accepted (+1), then f-position consumed by that +1;
    # what is left is one token, for which nothing can be drafted.
    r = replay([[True, True, False, True]], 2)
    assert (r.steps, r.tokens, r.drafted, r.accepted) == (2, 4, 2, 2)
    assert r.by_position == (0.5, 0.5)
    assert r.tau == 2
    one = replay([[True, True, False, True]], 1)
    assert (one.steps, one.drafted, one.accepted) == (3, 2, 1)


def test_nothing_and_everything_accepted() -> None:
    never = replay([[False] * 10], 4)
    assert (never.steps, never.accepted, never.tau) == (10, 0, 1)
    always = replay([[True] * 100], 4)
    assert always.alpha == 1
    assert always.steps == 20


@given(st.lists(st.lists(st.booleans(), min_size=1), min_size=1), st.integers(1, 8))
def test_replay_keeps_the_books(answers: list[list[bool]], k: int) -> None:
    r = replay(answers, k)
    assert r.tokens == sum(map(len, answers)) == r.steps + r.accepted
    assert r.accepted <= r.drafted <= k * r.steps
    assert list(r.by_position) == sorted(r.by_position, reverse=True)
    assert r.tau == pytest.approx(r.tokens / r.steps)


def test_expected_tau_with_constant_probability_is_the_closed_form() -> None:
    answers = [[0.6] * 4000]
    for k in (1, 3, 8):
        closed = (1 - 0.6 ** (k + 1)) / (1 - 0.6)
        assert expected_tau(answers, k) == pytest.approx(closed, rel=0.01)


def test_the_interval_holds_the_value() -> None:
    answers = [[(i * j) % 3 != 0 for i in range(1, 60)] for j in range(1, 12)]
    low, high = interval(answers, 4)
    assert low <= replay(answers, 4).tau <= high
    assert low < high


@pytest.mark.usefixtures("llama_cpp")
def test_it_agrees_with_what_the_server_counts(native: Path, tmp_path: Path) -> None:
    from specllama.drafts.agreement import measure

    answers, found = measure(TARGET, [DRAFT], CODE, threads=1)
    for k in (1, 2, 4, 8):
        ours = replay(found[DRAFT].agrees, k)
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
        theirs = [(a - b) / steps for a, b in pairs]
        assert ours.tau == pytest.approx(1 + accepted / steps, abs=0.05)
        assert list(ours.by_position) == pytest.approx(theirs, abs=0.05)


@pytest.mark.usefixtures("llama_cpp")
def test_the_target_agrees_with_itself() -> None:
    from specllama.drafts.agreement import measure

    _, found = measure(TARGET, [TARGET], CODE[:2], threads=1)
    agreement = found[TARGET]
    assert all(all(bits) for bits in agreement.agrees)
    cold, hot = (sum(map(sum, agreement.probability[t])) for t in (0.4, 1.2))
    assert cold > hot > 0


@pytest.mark.usefixtures("llama_cpp")
def test_pick_draft_measures(tmp_path: Path) -> None:
    args = ("pick-draft", TARGET, "--llama-server", "embedded", "--threads", "1")
    data = json.loads(specllama(*args, "--measure", "-w", "code", "--json").stdout)
    plain = {Path(c["draft"]).name: c for c in data["candidates"]}
    best = plain["draft.gguf"]
    speeds = [c["measured"]["speedup"] for c in data["candidates"]]
    assert speeds == sorted(speeds, reverse=True)
    assert 0 < best["measured"]["alpha"] < 1
    low, high = best["measured"]["tau_interval"]
    assert low <= best["measured"]["tau"] <= high
    human = specllama(*args, "--measure", "-w", "code")
    assert "measured on the target's own answers" in human.stdout
    text = tmp_path / "text.py"
    text.write_text("\n".join(CODE) * 3)
    given = specllama(*args, "--measure", "--text", text)
    assert "measured on text.py" in given.stdout


def test_without_the_extra_it_says_how_to_get_it() -> None:
    blocker = str(Path(__file__).parent / "without_llama_cpp")
    args = ("pick-draft", TARGET, "--measure", "--llama-server", "embedded")
    done = specllama(*args, PYTHONPATH=blocker)
    assert done.returncode == 1
    assert "pip install 'specllama[llama-cpp-python]'" in done.stderr


def test_nothing_to_measure_is_said(tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "t.gguf"
    alone.parent.mkdir()
    alone.write_bytes(TARGET.read_bytes())
    done = specllama("pick-draft", alone, "--measure", "--llama-server", "embedded")
    assert done.returncode == 1
    assert "nothing to measure" in done.stderr


@pytest.mark.usefixtures("llama_cpp")
def test_a_token_the_target_does_not_have_has_no_chance() -> None:
    import numpy as np

    from specllama.drafts.agreement import _probability

    row = np.zeros(4, dtype=np.float32)
    assert _probability(row, 3, 1.0) == pytest.approx(0.25)
    assert _probability(row, 4, 1.0) == 0.0
