"""Drafts that are almost never accepted: speculation that is on but only costs time."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli.serve_lines import engagement_line
from specllama.engine.settings import Speculation
from specllama.serving.verify import Engagement
from specllama.tuning.dead_draft import accepts_nothing, advice_for
from tests import untrained
from tests.support import MODELS, Serve, specllama

TARGET = MODELS / "target.gguf"


@pytest.mark.parametrize(
    ("drafted", "accepted", "steps", "useless"),
    [
        (270, 0, 90, True),
        (270, 4, 90, True),  # almost none: 1.04 tokens per step
        (270, 5, 90, False),
        (1440, 9, 90, False),  # α=0.006 with blocks of 16, but τ=1.10
        (57, 0, 19, False),  # too few steps to know
        (0, 0, 90, False),
    ],
)
def test_a_useless_draft_is_detected_by_accepted_tokens_per_step(
    drafted: int, accepted: int, steps: int, useless: bool
) -> None:
    assert accepts_nothing(drafted, accepted, steps) is useless


def test_steps_are_estimated_for_builds_without_a_counter() -> None:
    """Each token that was not accepted from a draft is a step."""
    assert Engagement(True, "", 270, 2, tokens=96, ms=960.0).only_costs
    assert not Engagement(True, "", 270, 40, tokens=96, ms=960.0).only_costs


def test_n_grams_are_not_called_useless_after_two_texts() -> None:
    assert not Engagement(True, "", 270, 0, tokens=96, ms=960.0, ngrams_only=True).only_costs


def test_counted_steps_are_used_where_the_build_counts_them() -> None:
    counted = Engagement(True, "", 270, 0, tokens=96, ms=960.0, verify_steps=19)
    assert not counted.only_costs, "19 steps are too few to know"
    assert Engagement(True, "", 270, 0, tokens=96, ms=960.0, verify_steps=90).only_costs


@pytest.mark.parametrize(("ngrams_only", "doubt"), [(False, True), (True, False)])
def test_speculative_slots_that_draft_nothing_are_odd_unless_they_wait_for_repeats(
    ngrams_only: bool, doubt: bool
) -> None:
    found = Engagement(False, "", slots=True, ngrams_only=ngrams_only)
    assert bool(found.doubt) is doubt


def test_impossible_counters_do_not_make_a_draft_useless() -> None:
    assert not Engagement(True, "", 10, -3, tokens=96, ms=960.0).only_costs


@pytest.mark.parametrize(
    ("accepted", "tokens", "message"),
    [
        (
            0,
            90,
            "ON, but it only costs time: 0 of 270 drafted tokens accepted (α=0.00, 100.0 tok/s)",
        ),
        (0, 12, "ON, but none of 270 drafted tokens was accepted (100.0 tok/s)"),
        (90, 180, "ON: α=0.33 (90 of 270 drafted tokens accepted), 100.0 tok/s"),
    ],
)
def test_the_line_of_a_useless_draft_is_not_just_on(
    accepted: int, tokens: int, message: str
) -> None:
    engagement = Engagement(True, "", 270, accepted, tokens=tokens, ms=tokens * 10.0)
    assert engagement_line(engagement) == f"speculation {message}"


def test_the_advice_depends_on_the_method() -> None:
    draft = Path("d.gguf")
    advice = [
        advice_for(Speculation(("ngram-simple",))),
        advice_for(Speculation(("draft-simple",), draft)),
        advice_for(Speculation(("draft-mtp",))),
        advice_for(Speculation(("ngram-mod", "draft-eagle3"), draft)),
    ]
    words = ["does not repeat", "does not match the target", "its MTP head", "d.gguf is untrained"]
    assert all(w in s and "--method none" in s for w, s in zip(words, advice, strict=True))


@pytest.mark.parametrize("kind", untrained.ALL)
def test_an_untrained_drafter_is_useless_on_a_real_server(
    kind: str, engine: str, tmp_path: Path
) -> None:
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    args = (TARGET, "--workload", "code", "--draft", draft, "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert s.info["methods"] == [f"draft-{kind}"]
        assert s.info["drafted"] > 200
        assert s.info["speculation"] == "useless"
        assert "it only costs time: " in s.info["only_costs"]
        assert (
            f"{kind}.gguf is untrained, converted incorrectly or made for another model"
            in s.info["remedy"]
        )
        assert "speculation ON, but it only costs time" in s.err
        assert f"do       {s.info['remedy']}" in s.err


def test_strict_does_not_serve_with_a_useless_draft(tmp_path: Path) -> None:
    draft = untrained.eagle3(tmp_path / "eagle3.gguf")
    args = ("--draft", draft, "--workload", "code", "--tune", "off", "--strict", "--port", "0")
    done = specllama("serve", TARGET, *args, "-c", "1024", "--", "-t", "1")
    assert done.returncode == 3
    assert "speculation is on, but it only costs time: " in done.stderr
    assert "use --method none" in done.stderr
