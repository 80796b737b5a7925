"""The chosen method, and the rule that rejects each other one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specllama import workloads
from specllama.drafts.discover import DiscoveredDrafts
from specllama.drafts.pick import rank_drafts
from specllama.errors import UsageError
from specllama.gguf import read_model
from specllama.planning.choose import Choice, MethodRequest, choose, parse_methods
from tests import help_render
from tests.support import MODELS

CAPS = help_render.capabilities("b11434")
CODE = workloads.load_workload("code")


def folder(tmp: Path, *names: str) -> Path:
    for name in names:
        shutil.copy(MODELS / f"{name}.gguf", tmp)
    return tmp


def request(tmp: Path, target: str = "target", **changes: object) -> MethodRequest:
    return replace(MethodRequest(read_model(tmp / f"{target}.gguf"), CODE), **changes)  # type: ignore[arg-type]


def rules(choice: Choice) -> dict[str, str]:
    return {r.what: r.rule for r in choice.rejected}


def test_the_head_in_the_target_comes_first(tmp_path: Path) -> None:
    folder(tmp_path, "mtp", "mtp-head", "draft")
    spec = choose(request(tmp_path, "mtp"), CAPS).speculation
    assert spec is not None
    assert (spec.methods, spec.draft) == (("draft-mtp",), None)


def test_a_head_beside_the_target_comes_second(tmp_path: Path) -> None:
    folder(tmp_path, "mtp-trunk", "mtp-head")
    choice = choose(request(tmp_path, "mtp-trunk"), CAPS)
    assert choice.speculation is not None
    assert choice.speculation.draft == tmp_path / "mtp-head.gguf"
    assert rules(choice)["mtp-trunk.gguf"] == "MTP tensors"


def test_the_smallest_compatible_draft_beside_the_target_comes_third(tmp_path: Path) -> None:
    folder(tmp_path, "target", "draft", "other-vocab", "mtp-head")
    (tmp_path / "broken.gguf").write_bytes(b"<html>")
    choice = choose(request(tmp_path), CAPS)
    assert choice.speculation is not None
    assert choice.speculation.draft == tmp_path / "draft.gguf"
    assert rules(choice) == {
        "other-vocab.gguf": "token text",
        "mtp-head.gguf": "architecture",
        "broken.gguf": "unreadable",
    }
    (why,) = (r.detail for r in choice.rejected if r.what == "broken.gguf")
    assert "broken.gguf" not in why
    assert "over 10%" in choice.warnings[0]


@pytest.mark.parametrize(("share", "rule"), [(0.4, None), (0.6, "size")])
def test_a_draft_of_over_half_the_targets_bytes_is_rejected(share: float, rule: str | None) -> None:
    target, draft = read_model(MODELS / "target.gguf"), read_model(MODELS / "draft.gguf")
    draft = replace(draft, active_bytes=int(share * target.active_bytes))
    picked = rank_drafts(target, CODE, CAPS, DiscoveredDrafts((draft,)))
    assert [r.rule for r in picked.rejected] == ([rule] if rule else [])
    assert len(picked.candidates) == (0 if rule else 1)


def test_the_workloads_n_gram_method_comes_last(tmp_path: Path) -> None:
    folder(tmp_path, "target")
    choice = choose(request(tmp_path), CAPS)
    assert choice.speculation is not None
    assert choice.speculation.methods == ("ngram-simple",)
    assert choice.speculation.ngram is not None
    assert (choice.speculation.ngram.n, choice.speculation.ngram.m) == (12, 48)


def test_the_creative_workload_has_no_n_gram_method(tmp_path: Path) -> None:
    folder(tmp_path, "target")
    choice = choose(request(tmp_path, workload=workloads.load_workload("creative")), CAPS)
    assert choice.speculation is None
    assert "no usable draft" in choice.reason


def test_a_head_that_needs_a_newer_build_is_rejected_with_that_build(tmp_path: Path) -> None:
    folder(tmp_path, "mtp")
    choice = choose(request(tmp_path, "mtp"), help_render.capabilities("b9464"))
    assert choice.speculation is not None
    assert choice.speculation.methods == ("ngram-simple",)
    assert "≥ b10218" in next(r.detail for r in choice.rejected if r.rule == "MTP graph")


def test_an_incompatible_named_draft_turns_speculation_off(tmp_path: Path) -> None:
    folder(tmp_path, "target", "draft", "other-vocab")
    draft = read_model(tmp_path / "other-vocab.gguf")
    choice = choose(request(tmp_path, draft=draft), CAPS)
    assert choice.speculation is None
    assert "token 258" in choice.reason
    assert "(token text)" in choice.reason


def test_methods_named_by_the_user(tmp_path: Path) -> None:
    folder(tmp_path, "target", "draft")
    both = choose(request(tmp_path, methods=("draft-simple", "ngram-simple")), CAPS).speculation
    assert both is not None
    assert both.methods == ("draft-simple", "ngram-simple")
    assert both.draft == tmp_path / "draft.gguf"
    assert both.ngram == CODE.ngram
    off = choose(request(tmp_path, methods=("none",)), CAPS)
    assert (off.speculation, off.reason) == (None, "--method none is set")
    missing = choose(request(tmp_path, methods=("draft-mtp",)), CAPS)
    assert missing.speculation is None
    assert "no MTP head" in missing.reason
    too_old = choose(request(tmp_path, methods=("draft-mtp",)), help_render.capabilities("b9113"))
    assert "≥ b9180" in too_old.reason
    no_file = choose(request(tmp_path, methods=("draft-eagle3",)), CAPS)
    assert "no EAGLE-3 head" in no_file.reason


def test_contradictory_options_are_errors(tmp_path: Path) -> None:
    folder(tmp_path, "target", "draft")
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "target.gguf")
    with pytest.raises(UsageError, match="target itself"):
        choose(request(tmp_path, draft=replace(read_model(link), path=link)), CAPS)
    draft = read_model(tmp_path / "draft.gguf")
    with pytest.raises(UsageError, match="cannot be combined with"):
        choose(request(tmp_path, draft=draft, methods=("ngram-simple",)), CAPS)


def test_draft_length_is_limited_by_the_number_of_trained_heads(tmp_path: Path) -> None:
    folder(tmp_path, "mtp")
    r = request(tmp_path, "mtp", n_max=8)
    one = choose(r, CAPS).speculation
    three = choose(replace(r, target=replace(r.target, mtp_heads=3)), CAPS).speculation
    assert one is not None
    assert three is not None
    assert (one.n_max, three.n_max) == (8, 3)


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("mtp", ("draft-mtp",)),
        ("draft,ngram-mod", ("draft-simple", "ngram-mod")),
        ("draft-mtp, draft-mtp", ("draft-mtp",)),
        ("off", ("none",)),
    ],
)
def test_method_names(text: str, methods: tuple[str, ...]) -> None:
    assert parse_methods(text) == methods


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft-self", "n-gram methods"),
        ("medusa", "no method called"),
        ("none,mtp", "cannot be combined"),
    ],
)
def test_invalid_method_names_are_errors(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_methods(text)


@pytest.mark.parametrize(
    ("target", "draft", "longest"),
    [("target", "draft", 40), ("target", "dflash", 7), ("mtp-3", None, 3)],
)
def test_draft_length_is_limited_by_the_drafters_training(
    target: str, draft: str | None, longest: int, tmp_path: Path
) -> None:
    folder(tmp_path, target, *([draft] if draft else []))
    named = request(tmp_path, target, n_max=40, p_min=0.5, draft_layers="7")
    spec = choose(named, CAPS).speculation
    assert spec is not None
    assert (spec.n_max, spec.p_min) == (longest, 0.5)
    assert spec.draft_layers == ("7" if draft else None), "the target's own head has no file"


@pytest.mark.parametrize(("head", "p_min"), [(True, 0.5), (False, 0.0)])
def test_p_min_is_0_for_a_drafter_without_a_confidence_head(
    head: bool, p_min: float, tmp_path: Path
) -> None:
    folder(tmp_path, "target", "dspark")
    drafter = read_model(tmp_path / "dspark.gguf")
    drafter = replace(drafter, sidecar=replace(drafter.sidecar, has_confidence_head=head))
    spec = choose(request(tmp_path, draft=drafter, p_min=0.5), CAPS).speculation
    assert spec is not None
    assert spec.p_min == p_min


def test_the_chosen_draft_is_not_among_the_alternatives(tmp_path: Path) -> None:
    folder(tmp_path, "target", "draft", "eagle3")
    choice = choose(request(tmp_path), CAPS)
    drafts = [choice.draft, *(a.draft for a in choice.all_alternatives)]
    assert sorted(d.path.name for d in drafts if d) == ["draft.gguf", "eagle3.gguf"]


def test_a_method_named_twice_counts_once() -> None:
    assert parse_methods("mtp, draft-mtp,ngram-simple") == ("draft-mtp", "ngram-simple")
