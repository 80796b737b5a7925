"""Verdicts and options of the memory check, on headers of real dimensions."""

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


def machine(*gpus: float, ram: float = 64) -> Machine:
    """A machine with these GPUs (GiB) and no margin."""
    return Machine(
        tuple(
            Device(f"GPU{i}", "", int(n * GIB), int(n * GIB), "test", margin=0)
            for i, n in enumerate(gpus)
        ),
        Device("RAM", "", int(ram * GIB), int(ram * GIB), "test", True, 0),
    )


@pytest.fixture
def large_request(headers: Path) -> FitRequest:
    """Llama 3.1 70B with Llama 3.2 1B, 32k tokens, 48 GiB: slightly too large."""
    draft = Drafting(("draft-simple",), model(headers, "llama-3.2-1b"), 4)
    return FitRequest(
        model(headers, "llama-3.1-70b"),
        ModelUse(32768, outputs=1),
        machine(48),
        draft,
        ngram=NGRAM,
        context_limit=131072,
    )


def test_a_request_that_fits_is_unchanged(large_request: FitRequest) -> None:
    request = replace(large_request, machine=machine(80))
    found = memory_options(request)
    assert [o.name for o in found] == ["as requested"]
    assert best_option(found).verdict.kind == FITS


def test_options_if_the_request_does_not_fit(large_request: FitRequest) -> None:
    found = memory_options(large_request)
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


def test_options_use_the_largest_numbers_that_fit(large_request: FitRequest) -> None:
    longest = longest_context(large_request, large_request.drafting)
    assert longest == 30720
    at = replace(large_request.use, context=longest)
    assert verdict_of(large_request, at, large_request.drafting)[0].kind == FITS
    assert (
        verdict_of(large_request, replace(at, context=longest + 256), large_request.drafting)[
            0
        ].kind
        != FITS
    )
    layers = memory_options(large_request)[1].drafting
    assert layers is not None
    assert layers.gpu_layers == 9
    more = large_request.lines(large_request.use, replace(layers, gpu_layers=10))
    assert overcommitted(per_device(more), large_request.machine)


def test_a_draft_mostly_in_ram_is_offered_but_not_chosen(large_request: FitRequest) -> None:
    request = replace(large_request, machine=machine(47.3))
    found = memory_options(request)
    slow = next(o for o in found if o.flags[:1] == ("--draft-layers",))
    assert not slow.automatic
    assert "too slow to pay" in slow.warning
    assert best_option(found).flags == ("--method", "ngram-simple")
    less_than_half = memory_options(replace(large_request, machine=machine(47.9)))
    eight = next(o for o in less_than_half if o.flags == ("--draft-layers", "8"))  # of 17
    assert not eight.automatic


def test_a_quantised_draft_cache_is_never_chosen_automatically(large_request: FitRequest) -> None:
    found = memory_options(replace(large_request, machine=machine(48.3)))
    q8 = next(o for o in found if o.flags[:1] == ("--draft-cache",))
    assert q8.verdict.kind == FITS
    assert not q8.automatic
    assert "acceptance" in q8.warning


def test_another_draft_is_tried_before_other_methods(
    large_request: FitRequest, headers: Path
) -> None:
    larger_draft = Drafting(("draft-simple",), model(headers, "llama-3.1-8b"), 4)
    others = (large_request.drafting,)
    request = replace(large_request, drafting=larger_draft, others=others, machine=machine(49))  # type: ignore[arg-type]
    chosen = best_option(memory_options(request))
    assert chosen.name == "another draft: llama-3.2-1b.gguf"
    assert chosen.flags[0] == "--draft"


def test_a_shorter_draft_saves_states_of_hybrid_targets(headers: Path) -> None:
    q = FitRequest(
        model(headers, "qwen3.6-27b-mtp"),
        ModelUse(32768, outputs=1),
        machine(17.3),
        Drafting(("draft-mtp",), longest=6),
        ngram=NGRAM,
        context_limit=131072,
    )
    found = memory_options(q)
    assert found[0].verdict.kind == PARTLY
    assert found[1].name == "draft length 4 instead of 6"
    assert best_option(found) is found[1]
    # a target without recurrent state has no states to save
    plain = replace(q, target=model(headers, "glm-4.5-air"), machine=machine(70))
    assert not any(o.flags[:1] == ("--n-max",) for o in alternatives(plain))


def test_a_target_that_does_not_fit_without_a_draft(large_request: FitRequest) -> None:
    found = memory_options(replace(large_request, machine=machine(24)))
    assert found[-1].verdict.kind == PARTLY
    chosen = best_option(found)
    assert chosen is found[0]  # the draft pushes only a few target layers to RAM
    assert chosen.verdict.detail.endswith("target layers stay in RAM (-ngl 37)")
    with_less_ram = replace(large_request, machine=machine(24, ram=40))
    assert memory_options(with_less_ram)[0].verdict.kind == PARTLY


def test_a_large_draft_is_not_chosen_at_the_cost_of_target_layers(
    large_request: FitRequest, headers: Path
) -> None:
    larger_draft = Drafting(("draft-simple",), model(headers, "llama-3.1-8b"), 4)
    chosen = best_option(
        memory_options(replace(large_request, machine=machine(24), drafting=larger_draft))
    )
    assert chosen.flags == ("--method", "ngram-simple")


@pytest.mark.parametrize(("layers", "chosen"), [(18, True), (17, False)])
def test_a_draft_may_move_a_tenth_of_the_targets_gpu_layers_to_ram(
    layers: int, chosen: bool, large_request: FitRequest
) -> None:
    requested, *_, plain = memory_options(large_request)
    partly = FitVerdict(PARTLY, gpu_layers=layers)
    found = (
        replace(requested, verdict=partly),
        replace(plain, verdict=replace(partly, gpu_layers=20)),
    )
    assert best_option(found) is found[0 if chosen else 1]


def test_no_context_below_4096_tokens_is_offered(large_request: FitRequest) -> None:
    """llama.cpp's --fit has the same minimum."""
    offered = {}
    for tenths in (385, 390, 395, 400, 405):
        q = replace(large_request, machine=machine(tenths / 10))
        longest = longest_context(q, q.drafting)
        names = [o.name for o in memory_options(q)[1:] if o.name.startswith("a context of")]
        offered[longest] = bool(names)
    short = [longest for longest in offered if 0 < longest < 4096]
    assert short
    assert len(offered) > len(short)
    assert {longest for longest, shown in offered.items() if shown} == {
        longest for longest in offered if longest >= 4096
    }


def test_no_speculation_if_nothing_fits(large_request: FitRequest) -> None:
    found = memory_options(replace(large_request, machine=machine(8, ram=8)))
    assert {o.verdict.kind for o in found} == {TOO_BIG}
    assert best_option(found).name == "no speculation"
    assert longest_context(replace(large_request, machine=machine(8, ram=8)), None) == 0


def test_without_gpus_the_request_must_fit_in_ram(large_request: FitRequest) -> None:
    assert (
        verdict_of(
            replace(large_request, machine=machine(ram=64)),
            large_request.use,
            large_request.drafting,
        )[0].kind
        == FITS
    )
    verdict, _ = verdict_of(
        replace(large_request, machine=machine(ram=40)), large_request.use, large_request.drafting
    )
    assert (verdict.kind, verdict.detail[:7]) == (TOO_BIG, "RAM is ")


def test_gpu_layers_set_by_the_user_are_not_changed(large_request: FitRequest) -> None:
    use = replace(large_request.use, gpu_layers=200)  # -ngl 200 after --
    verdict, _ = verdict_of(replace(large_request, machine=machine(40)), use, None)
    assert verdict.kind == TOO_BIG


def test_the_device_that_lacks_most_memory_is_named(large_request: FitRequest) -> None:
    use = replace(large_request.use, gpu_layers=200)
    small = replace(large_request, machine=machine(8, 20))
    missing = dict(overcommitted(per_device(small.lines(use, None)), small.machine))
    assert len(missing) == 2
    verdict, _ = verdict_of(small, use, None)
    assert verdict.missing.startswith(f"{max(missing, key=lambda d: missing[d]).name} is ")


def test_layers_are_split_by_free_memory_of_two_gpus(large_request: FitRequest) -> None:
    _, lines = verdict_of(replace(large_request, machine=machine(24, 32)), large_request.use, None)
    sums = per_device([x for x in lines if x.what == "weights"])
    assert sums["GPU0"] / sums["GPU1"] == pytest.approx(24 / 32, rel=0.05)


def test_alternatives_after_running_out_of_memory(large_request: FitRequest) -> None:
    names = [o.name for o in alternatives(replace(large_request, machine=machine(80)))]
    assert names[-2:] == ["n-gram only (ngram-simple, no VRAM)", "no speculation"]
    ngrams = replace(large_request, drafting=NGRAM, machine=machine(80))
    assert [o.name for o in alternatives(ngrams)] == ["no speculation"], "n-grams did not fit"
