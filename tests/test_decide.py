"""Verdicts and trade lines, on headers of real dimensions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.gguf import ModelInfo, read_model
from specllama.memory.decide import (
    FITS,
    PARTLY,
    TOO_BIG,
    FitRequest,
    FitVerdict,
    alternatives,
    best_option,
    longest_context,
    memory_options,
    verdict_of,
)
from specllama.memory.devices import Device, Machine, overcommitted
from specllama.memory.estimate import Drafting, per_device
from specllama.memory.use import ModelUse
from tests.giants import build

GIB = 2**30
NGRAM = Drafting(("ngram-simple",), longest=32)


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("giants")


def model(headers: Path, name: str) -> ModelInfo:
    return read_model(build(headers, name))


def box(*gpus: float, ram: float = 64) -> Machine:
    """A machine with these GPUs (GiB), nothing left free."""
    return Machine(
        tuple(
            Device(f"GPU{i}", "", int(n * GIB), int(n * GIB), "test", margin=0)
            for i, n in enumerate(gpus)
        ),
        Device("RAM", "", int(ram * GIB), int(ram * GIB), "test", True, 0),
    )


@pytest.fixture
def big(headers: Path) -> FitRequest:
    """Llama 3.1 70B with Llama 3.2 1B, 32k tokens, 48 GiB: a little too much."""
    draft = Drafting(("draft-simple",), model(headers, "llama-3.2-1b"), 4)
    return FitRequest(
        model(headers, "llama-3.1-70b"),
        ModelUse(32768, outputs=1),
        box(48),
        draft,
        ngram=NGRAM,
        context_limit=131072,
    )


def test_what_fits_is_taken_as_it_is(big: FitRequest) -> None:
    roomy = replace(big, machine=box(80))
    found = memory_options(roomy)
    assert [o.name for o in found] == ["as requested"]
    assert best_option(found).verdict.kind == FITS


def test_every_line_says_what_it_costs(big: FitRequest) -> None:
    found = memory_options(big)
    assert found[0].verdict.kind == PARTLY
    assert found[0].verdict.missing.endswith(" MiB short")
    assert [(o.name, o.flags, o.automatic) for o in found[1:]] == [
        ("8 of the draft's 17 layers in RAM", ("--draft-layers", "9"), True),
        ("a context of 30,720 tokens with this draft", ("-c", "30720"), False),
        (
            "n-gram only (ngram-simple, no VRAM)",
            ("--method", "ngram-simple"),
            True,
        ),
        ("no speculation", ("--method", "none"), True),
    ]
    assert all(o.verdict.kind == FITS for o in found[1:])
    assert best_option(found) is found[1]


def test_the_numbers_of_a_line_are_the_largest_that_fit(big: FitRequest) -> None:
    longest = longest_context(big, big.drafting)
    assert longest == 30720
    at = replace(big.use, context=longest)
    assert verdict_of(big, at, big.drafting)[0].kind == FITS
    assert verdict_of(big, replace(at, context=longest + 256), big.drafting)[0].kind != FITS
    layers = memory_options(big)[1].drafting
    assert layers is not None
    assert layers.gpu_layers == 9
    more = big.lines(big.use, replace(layers, gpu_layers=10))
    assert overcommitted(per_device(more), big.machine)


def test_a_draft_mostly_in_ram_is_shown_but_not_taken(big: FitRequest) -> None:
    tight = replace(big, machine=box(47.3))
    found = memory_options(tight)
    slow = next(o for o in found if o.flags[:1] == ("--draft-layers",))
    assert not slow.automatic
    assert "too slow to pay" in slow.warning
    assert best_option(found).flags == ("--method", "ngram-simple")


def test_a_quantised_draft_cache_is_never_taken_by_itself(big: FitRequest) -> None:
    found = memory_options(replace(big, machine=box(48.3)))
    q8 = next(o for o in found if o.flags[:1] == ("--draft-cache",))
    assert q8.verdict.kind == FITS
    assert not q8.automatic
    assert "acceptance" in q8.warning


def test_another_draft_comes_before_giving_up(big: FitRequest, headers: Path) -> None:
    fat = Drafting(("draft-simple",), model(headers, "llama-3.1-8b"), 4)
    q = replace(big, drafting=fat, others=(big.drafting,), machine=box(49))  # type: ignore[arg-type]
    chosen = best_option(memory_options(q))
    assert chosen.name == "another draft: llama-3.2-1b.gguf"
    assert chosen.flags[0] == "--draft"


def test_hybrids_keep_fewer_states(headers: Path) -> None:
    q = FitRequest(
        model(headers, "qwen3.6-27b-mtp"),
        ModelUse(32768, outputs=1),
        box(17.3),
        Drafting(("draft-mtp",), longest=6),
        ngram=NGRAM,
        context_limit=131072,
    )
    found = memory_options(q)
    assert found[0].verdict.kind == PARTLY
    assert found[1].name == "draft length 4 instead of 6"
    assert best_option(found) is found[1]
    # a target without recurrent state has none to save
    plain = replace(q, target=model(headers, "glm-4.5-air"), machine=box(70))
    assert not any(o.flags[:1] == ("--n-max",) for o in alternatives(plain))


def test_a_target_that_does_not_fit_alone(big: FitRequest) -> None:
    found = memory_options(replace(big, machine=box(24)))
    assert found[-1].verdict.kind == PARTLY
    chosen = best_option(found)
    assert chosen is found[0]  # the draft drives few layers out
    assert chosen.verdict.detail.endswith("target layers stay in RAM (-ngl 37)")
    fat = replace(big, machine=box(24, ram=40))
    assert memory_options(fat)[0].verdict.kind == PARTLY


def test_a_large_draft_does_not_drive_the_target_out(big: FitRequest, headers: Path) -> None:
    fat = Drafting(("draft-simple",), model(headers, "llama-3.1-8b"), 4)
    chosen = best_option(memory_options(replace(big, machine=box(24), drafting=fat)))
    assert chosen.flags == ("--method", "ngram-simple")


@pytest.mark.parametrize(("layers", "taken"), [(18, True), (17, False)])
def test_a_draft_may_drive_one_in_ten_of_the_targets_layers_out(
    layers: int, taken: bool, big: FitRequest
) -> None:
    asked, *_, plain = memory_options(big)
    partly = FitVerdict(PARTLY, gpu_layers=layers)
    found = (
        replace(asked, verdict=partly),
        replace(plain, verdict=replace(partly, gpu_layers=20)),
    )
    assert best_option(found) is found[0 if taken else 1]


def test_no_context_under_4096_tokens_is_offered(big: FitRequest) -> None:
    """What llama.cpp's --fit does not go below either."""
    offered = {}
    for tenths in (385, 390, 395, 400, 405):
        q = replace(big, machine=box(tenths / 10))
        longest = longest_context(q, q.drafting)
        names = [o.name for o in memory_options(q)[1:] if o.name.startswith("a context of")]
        offered[longest] = bool(names)
    short = [longest for longest in offered if 0 < longest < 4096]
    assert short
    assert len(offered) > len(short)
    assert {longest for longest, shown in offered.items() if shown} == {
        longest for longest in offered if longest >= 4096
    }


def test_nothing_fits(big: FitRequest) -> None:
    found = memory_options(replace(big, machine=box(8, ram=8)))
    assert {o.verdict.kind for o in found} == {TOO_BIG}
    assert best_option(found).name == "no speculation"
    assert longest_context(replace(big, machine=box(8, ram=8)), None) == 0


def test_without_gpus_the_ram_decides(big: FitRequest) -> None:
    assert verdict_of(replace(big, machine=box(ram=64)), big.use, big.drafting)[0].kind == FITS
    verdict, _ = verdict_of(replace(big, machine=box(ram=40)), big.use, big.drafting)
    assert (verdict.kind, verdict.detail[:7]) == (TOO_BIG, "RAM is ")


def test_layers_the_user_fixed_stay(big: FitRequest) -> None:
    use = replace(big.use, gpu_layers=200)  # -ngl 200 after --
    verdict, _ = verdict_of(replace(big, machine=box(40)), use, None)
    assert verdict.kind == TOO_BIG


def test_two_gpus_share_by_free_memory(big: FitRequest) -> None:
    _, lines = verdict_of(replace(big, machine=box(24, 32)), big.use, None)
    sums = per_device([x for x in lines if x.what == "weights"])
    assert sums["GPU0"] / sums["GPU1"] == pytest.approx(24 / 32, rel=0.05)


def test_what_is_asked_after_running_out(big: FitRequest) -> None:
    names = [o.name for o in alternatives(replace(big, machine=box(80)))]
    assert names[-2:] == ["n-gram only (ngram-simple, no VRAM)", "no speculation"]
