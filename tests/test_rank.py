"""Families, priors and the predicted range."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specllama import workloads
from specllama.cli.app import run
from specllama.drafts import families
from specllama.drafts.acceptance import constant_tau
from specllama.drafts.rank import draft_cost, predict, verify_cost
from specllama.drafts.warnings import warnings
from specllama.gguf import ModelInfo, read_model
from specllama.workloads import METHODS
from tests import zoo
from tests.support import MODELS


@pytest.fixture(scope="module")
def target() -> ModelInfo:
    return read_model(MODELS / "target.gguf")


@pytest.fixture(scope="module")
def draft() -> ModelInfo:
    return read_model(MODELS / "draft.gguf")


def test_tau_agrees_with_a_simulation() -> None:
    rng = random.Random(0)
    for p, k in ((0.3, 2), (0.6, 4), (0.9, 8)):
        total = 0
        for _ in range(20_000):
            run = 0
            while run < k and rng.random() < p:
                run += 1
            total += run + 1
        assert constant_tau(p, k) == pytest.approx(total / 20_000, rel=0.02)
    assert constant_tau(1.0, 5) == 6
    assert constant_tau(0.0, 5) == 1


def test_the_prediction_agrees_with_a_reported_pair(target: ModelInfo, draft: ModelInfo) -> None:
    """Llama 3.1 8B + 3.2 1B, both Q8: 32.5 → 55.5 tok/s at α 0.72 and n = 5 (llama.cpp 5877)."""
    bytes_8b, bytes_1b = 8.5e9, 1.3e9
    t = replace(target, active_bytes=int(bytes_8b))
    d = replace(draft, active_bytes=int(bytes_1b))
    cost = 5 * draft_cost(t, "draft-simple", d) + verify_cost(t, 5)
    assert constant_tau(0.72, 5) / cost == pytest.approx(55.5 / 32.5, rel=0.15)


def test_a_cheaper_draft_is_predicted_faster(target: ModelInfo, draft: ModelInfo) -> None:
    half = replace(draft, active_bytes=draft.active_bytes // 2)
    expensive = predict(target, "draft-simple", draft, "code")
    cheap = predict(target, "draft-simple", half, "code")
    assert cheap.speedup > expensive.speedup
    for p in (cheap, expensive):
        assert p.low < p.speedup < p.high
        assert 1 <= p.k <= 8


def test_experts_make_verification_expensive(target: ModelInfo, draft: ModelInfo) -> None:
    moe = replace(target, experts=128, experts_used=8)
    assert verify_cost(target, 4) < 1.2
    assert verify_cost(moe, 4) > 3
    assert verify_cost(moe, 0) == pytest.approx(1)
    assert verify_cost(moe, 500) < 1 + 16 + 0.03 * 500  # never more than all of them
    dense, sparse = (predict(t, "draft-simple", draft, "code") for t in (target, moe))
    assert sparse.speedup < dense.speedup


def test_the_cost_of_verifying_two_tokens_by_hand(target: ModelInfo) -> None:
    moe = replace(target, experts=8, experts_used=2)
    assert verify_cost(target, 1) == pytest.approx(1.03)
    # of the experts 1 − (3/4)² are read, 1.75 times as many: 80 % of the bytes are experts
    assert verify_cost(moe, 1) == pytest.approx(1 + 0.8 * 0.75 + 0.03)


def test_a_block_costs_one_pass_of_the_drafter(target: ModelInfo) -> None:
    drafter = replace(target, kind="dflash", active_bytes=target.active_bytes // 10, output_bytes=1)
    found = predict(target, "draft-dflash", drafter, "code")
    expected = constant_tau(found.prior.alpha, found.k) / (0.1 + verify_cost(target, found.k))
    assert found.speedup == pytest.approx(expected, rel=1e-3)


def test_a_drafter_without_an_output_matrix_reads_the_targets(target: ModelInfo) -> None:
    own = replace(target, active_bytes=1000, output_bytes=200)
    small = replace(target, kind="eagle3", active_bytes=100, output_bytes=0)
    assert draft_cost(own, "draft-eagle3", small) == pytest.approx(0.3)
    assert draft_cost(own, "draft-eagle3", replace(small, output_bytes=50)) == pytest.approx(0.1)
    model = replace(small, kind="model")  # here the token table is the output matrix
    assert draft_cost(own, "draft-simple", model) == pytest.approx(0.1)


def test_each_pass_reads_one_of_several_mtp_heads(target: ModelInfo) -> None:
    two = replace(target, active_bytes=1000, mtp_bytes=300, mtp_heads=2, output_bytes=100)
    assert draft_cost(two, "draft-mtp", None) == pytest.approx((150 + 100) / 1000)


def test_an_mtp_head_costs_its_block_and_the_output_matrix(target: ModelInfo) -> None:
    m = read_model(MODELS / "mtp.gguf")
    assert draft_cost(m, "draft-mtp", None) == (m.mtp_bytes + m.output_bytes) / m.active_bytes
    head = read_model(MODELS / "mtp-head.gguf")
    assert draft_cost(m, "draft-mtp", head) == draft_cost(m, "draft-mtp", None)
    assert predict(m, "draft-mtp", None, "code", longest=1).k == 1


def test_active_bytes_exclude_weights_that_a_token_does_not_read() -> None:
    whole, trunk = read_model(MODELS / "mtp.gguf"), read_model(MODELS / "mtp-trunk.gguf")
    assert whole.active_bytes == trunk.active_bytes  # the head is not run by a plain step
    assert whole.tensor_bytes - whole.mtp_bytes == trunk.tensor_bytes
    t = read_model(MODELS / "target.gguf")
    assert t.active_bytes == t.tensor_bytes  # its token table is its output matrix


@pytest.mark.parametrize(
    ("name", "vocab", "family", "suggests"),
    [
        ("Llama-3.3-70B-Instruct", zoo.LLAMA31, "Llama 3.1 / 3.2 / 3.3", "Llama-3.2-1B-Instruct"),
        ("Meta-Llama-3-70B-Instruct", zoo.LLAMA30, "Llama 3.0", "Meta-Llama-3-8B"),
        ("Qwen2.5-Coder-32B", zoo.QWEN25_LARGE, "Qwen2.5 Coder", "Qwen2.5-Coder-0.5B"),
        ("Qwen2.5-32B", zoo.QWEN25_LARGE, "Qwen2.5", "Qwen2.5-0.5B-Instruct"),
        (
            "DeepSeek-R1-Distill-Qwen-32B",
            zoo.R1_QWEN_LARGE,
            "DeepSeek R1 Distill Qwen",
            "Qwen-1.5B",
        ),
        ("Qwen3-32B", zoo.QWEN3, "Qwen3", "Qwen3-0.6B"),
        ("Qwen3.6-35B-A3B", zoo.QWEN35, "Qwen3.5 / 3.6 / 3.8", "Qwen3.5-0.8B"),
        ("Qwen3-Next-80B", zoo.QWEN3, "Qwen3 Next", "Qwen3-0.6B"),
        ("gemma-3-27b-it", zoo.GEMMA3_LARGE, "Gemma 3", "gemma-3-1b-it"),
        ("Qwen3-impostor", zoo.LLAMA2, None, None),  # named Qwen3, but with other tokens
    ],
)
def test_the_family_is_found_by_name_and_vocabulary_size(
    tmp_path: Path, name: str, vocab: zoo.Vocab, family: str | None, suggests: str | None
) -> None:
    found = families.family_of(read_model(zoo.llama(tmp_path / f"{name}.gguf", name, vocab, 16)))
    assert (found.name if found else None) == family
    if found and suggests:
        assert any(suggests in s.name for s in found.suggestions)


@pytest.mark.parametrize(
    ("name", "vocab", "repos"),
    [
        ("Qwen3-32B", zoo.QWEN3, ["RedHatAI/Qwen3-32B-speculator.eagle3"]),
        ("Qwen3-235B-A22B", zoo.QWEN3, ["RedHatAI/Qwen3-235B-A22B-speculator.eagle3"]),
        ("Qwen3-1.8B", zoo.QWEN3, []),
        ("Qwen3.5-27B", zoo.QWEN35, []),
        ("Qwen3.8-27B", zoo.QWEN35, ["ggml-org/Qwen3.8-27B-GGUF"]),
        (
            "Qwen3.6-27B",
            zoo.QWEN35,
            ["unsloth/Qwen3.6-27B-MTP-GGUF", "Radamanthys11/Qwen3.6-27B-DFlash-GGUF"],
        ),
    ],
)
def test_trained_drafters_are_suggested_only_for_their_target_size(
    tmp_path: Path, name: str, vocab: zoo.Vocab, repos: list[str]
) -> None:
    found = families.family_of(read_model(zoo.llama(tmp_path / f"{name}.gguf", name, vocab, 16)))
    assert found is not None
    first, *trained = found.suggestions
    assert first.method == "draft-simple"
    assert [s.repo for s in trained] == repos


@pytest.mark.parametrize(
    ("name", "vocab"),
    [
        ("Qwen3-0.6B", zoo.QWEN3),
        ("Meta-Llama-3-8B-Instruct", zoo.LLAMA30),
        ("gemma-3-270m-it", zoo.GEMMA3_LARGE),
        ("Qwen3-1.0B", zoo.QWEN3),  # 0.6B is more than half of it
    ],
)
def test_no_draft_is_suggested_for_a_target_of_its_own_size(
    tmp_path: Path, name: str, vocab: zoo.Vocab, capsys: pytest.CaptureFixture[str]
) -> None:
    file = zoo.llama(tmp_path / f"{name}.gguf", name, vocab, 16)
    found = families.family_of(read_model(file))
    assert found is not None
    assert [s for s in found.suggestions if s.method == "draft-simple"] == []
    assert run(["pick-draft", str(file), "--vram", "8GiB", "--llama-server", "embedded"]) == 1
    out = capsys.readouterr().out
    assert "get " not in out
    assert "270m-it" not in out.replace(file.name, "")
    assert out.endswith(f"run      specllama serve {file} --method ngram-simple\n")
    assert f"no draft for this model is known in the {found.name} family" in out


def test_a_target_without_a_size_label_is_matched_by_parameters(tmp_path: Path) -> None:
    tiny = read_model(zoo.llama(tmp_path / "qwen3-mine.gguf", "qwen3 mine", zoo.QWEN3, 16))
    names = replace(tiny.names, size_label="")
    for parameters, n in ((8_200_000_000, 3), (235_000_000_000, 1), (20_000_000_000, 0)):
        found = families.family_of(replace(tiny, names=names, parameters=parameters))
        assert found is not None
        assert len(found.suggestions) == 1 + n


def test_the_data_of_families_is_well_formed() -> None:
    data = families._data()
    for row in data["family"]:
        assert row["source"] in tuple("SDILPK")
        assert all(re.compile(p) for p in row["match"])
        assert all(isinstance(n, int) for n in row["n_tokens"])
        for s in row.get("sidecars", []):
            assert s["method"] in METHODS
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", s["repo"])
            assert s["source"] in tuple("SDILPK")
        if draft := row.get("draft"):  # used unchanged in a search on the Hub
            assert re.fullmatch(r"[\w.-]+", draft["name"])
    for prior in data["prior"]:
        assert prior["low"] <= prior["alpha"] <= prior["high"]
        assert prior["source"][0] in "SDILPK"
    drafting = [m for m in METHODS if m.startswith("draft-")]
    for method in drafting:
        for name in workloads.names():
            assert 0 < families.prior(method, name).alpha < 1


@pytest.mark.parametrize(
    ("target_names", "draft_names", "templates", "differ"),
    [  # each: general.name, general.finetune, file name
        (("Big", "Instruct", "a"), ("Small", "instruct", "b-base"), True, False),
        (("Big", "Instruct", "a"), ("Small", "base", "b-instruct"), True, True),
        (("Big", "", "big-it"), ("Small", "", "small"), True, False),
        (("Big", "", "big-it"), ("Small", "", "small"), False, True),
        (("Big Instruct", "", "a"), ("Small", "", "small-chat"), False, False),
        (("Big Instruct", "", "a"), ("Small", "", "small"), False, True),
        (("Big", "", "a"), ("Small", "", "b"), False, False),
    ],
)
def test_fine_tune_fields_take_precedence_over_the_file_name(
    target: ModelInfo,
    draft: ModelInfo,
    target_names: tuple[str, str, str],
    draft_names: tuple[str, str, str],
    templates: bool,
    differ: bool,
) -> None:
    def renamed(m: ModelInfo, name: str, finetune: str, file: str) -> ModelInfo:
        names = replace(m.names, name=name, basename="", finetune=finetune)
        path = m.path.with_name(f"{file}.gguf")
        return replace(m, names=names, path=path, template_hash="x" if templates else "")

    lines = warnings(renamed(target, *target_names), "draft-simple", renamed(draft, *draft_names))
    assert any("instruct-tuned" in line for line in lines) is differ


def test_warnings_about_a_compatible_draft(target: ModelInfo, draft: ModelInfo) -> None:
    def all_warnings(t: ModelInfo, method: str, d: ModelInfo | None) -> str:
        return " | ".join(warnings(t, method, d))

    named = replace(target.names, name="Big Instruct"), replace(draft.names, name="Small Base")
    mixed = (replace(target, names=named[0]), replace(draft, names=named[1]))
    assert "instruct-tuned" in all_warnings(mixed[0], "draft-simple", mixed[1])
    other = replace(draft, template_hash="x")
    assert "different chat templates" in all_warnings(target, "draft-simple", other)
    assert "over 10%" in all_warnings(target, "draft-simple", draft)
    swapped = all_warnings(draft, "draft-simple", target)
    assert "it cannot pay off; are target and draft swapped?" in swapped
    assert "over 10%" not in swapped
    small = replace(draft, active_bytes=1)
    assert all_warnings(target, "draft-simple", small) == ""
    mtp = read_model(MODELS / "mtp.gguf")
    assert all_warnings(mtp, "draft-mtp", None) == ""
    assert "2.5 bits" in all_warnings(replace(mtp, mtp_bits=2.5), "draft-mtp", None)
    hybrid = replace(mtp, architecture="qwen35", memory="hybrid")
    assert "grows with K" in all_warnings(hybrid, "draft-mtp", None)
    assert "restored and replayed" in all_warnings(hybrid, "ngram-simple", None)
    no_rollback = replace(mtp, architecture="qwen3next", memory="hybrid")
    assert "restored and replayed" in all_warnings(no_rollback, "draft-mtp", None)
