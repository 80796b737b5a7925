"""Tensor placement by -ot, --cpu-moe and similar options, and its effect on the estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine.embedded_values import EXPERTS
from specllama.gguf import read_model
from specllama.memory.decide import FITS, FitRequest, experts_in_ram, size_text, verdict_of
from specllama.memory.devices import Device, Machine
from specllama.memory.errors import MemoryInputError
from specllama.memory.estimate import GpuSplit, estimate, needed, per_device
from specllama.memory.overrides import (
    Override,
    first_layers,
    moved_tensors,
    named_device,
    parse_overrides,
)
from specllama.memory.use import ModelUse
from tests.giants import build

GPU = GpuSplit(("CUDA0",), (1.0,))
GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("giants")


def weights(path: Path, *overrides: Override, mapped: bool = True) -> dict[str, int]:
    m = read_model(path)
    lines = estimate(m, ModelUse(4096, moved=moved_tensors(m, overrides), mapped=mapped), GPU)
    return per_device([x for x in lines if x.what == "weights"])


def test_the_usual_expert_pattern_equals_cpu_moe(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    by_hand = weights(path, *parse_overrides("exps=CPU", ("CUDA0",)))
    assert by_hand == weights(path, Override(EXPERTS, "RAM"))
    blocks = read_model(path).layout.blocks
    some = weights(path, *first_layers(10, EXPERTS))
    assert some["RAM"] - weights(path)["RAM"] == sum(b.experts for b in blocks[:10])


def test_a_layer_number_does_not_match_longer_numbers(folder: Path) -> None:
    r"""blk\.1\.ffn is not found in blk.11.ffn."""
    path = build(folder, "qwen3-30b-a3b")
    blocks = read_model(path).layout.blocks
    one = weights(path, *first_layers(2, EXPERTS))
    assert one["RAM"] - weights(path)["RAM"] == blocks[0].experts + blocks[1].experts


def test_the_first_matching_pattern_wins(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    stays = weights(path, *parse_overrides(r"blk\.0\..*=CUDA0,exps=CPU", ("CUDA0",)))
    goes = weights(path, *parse_overrides(r"exps=CPU,blk\.0\..*=CUDA0", ("CUDA0",)))
    assert goes["RAM"] - stays["RAM"] == read_model(path).layout.blocks[0].experts


def test_output_and_embedding_can_be_moved(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    layout = read_model(path).layout
    before = weights(path)
    after = weights(path, *parse_overrides(r"^output\.weight=CPU,token_embd=CUDA0", ("CUDA0",)))
    assert after["RAM"] - before["RAM"] == layout.output - layout.embedding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exps", "<tensor name pattern>=<buffer type>"),
        ("(=CPU", "not a valid pattern"),
        ("exps=CUDA7", "unknown buffer type 'CUDA7'"),
        ("", "<tensor name pattern>=<buffer type>"),
        ("exps=RPC0", "unknown buffer type 'RPC0'"),
    ],
)
def test_patterns_that_llama_server_refuses_are_errors(text: str, message: str) -> None:
    with pytest.raises(MemoryInputError, match=message):
        list(parse_overrides(text, ("CUDA0",)))


def test_gpu_names_are_matched_by_number_if_vram_was_given() -> None:
    assert [o.device for o in parse_overrides("a=CUDA1,b=CPU", ("GPU0", "GPU1"))] == ["GPU1", "RAM"]


def test_buffer_names_may_have_an_address_and_any_case() -> None:
    devices = ("RPC0", "CUDA0")
    text = "a=RPC0[127.0.0.1:50052],b=cuda0"
    assert [o.device for o in parse_overrides(text, devices)] == ["RPC0", "CUDA0"]
    assert named_device("rpc0", devices) == "RPC0"
    assert named_device("CUDA1", devices) is None


def test_posix_classes_in_patterns_are_supported(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    by_class = weights(path, *parse_overrides(r"blk\.[[:digit:]]+\.ffn_.*exps=CPU", ("CUDA0",)))
    assert by_class == weights(path, Override(EXPERTS, "RAM"))


def test_experts_in_ram_may_stay_on_disk_if_memory_mapped(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-235b-a22b"))
    use = ModelUse(4096, moved=moved_tensors(m, [Override(EXPERTS, "RAM")]))
    ram = Device("RAM", "", 16 * GIB, 16 * GIB, "", shared=True, margin=0)
    gpu = Device("CUDA0", "", 24 * GIB, 24 * GIB, "", margin=0)
    q = FitRequest(m, use, Machine((gpu,), ram), None)
    verdict, lines = verdict_of(q, use, None)
    assert verdict.kind == FITS
    assert "read from disk" in verdict.detail
    over = per_device(lines)["RAM"] - ram.usable
    assert verdict.detail.startswith(f"{size_text(over)} of the experts are read from disk")
    assert needed(lines)["RAM"] < 2 * GIB < 100 * GIB < per_device(lines)["RAM"]
    large = replace(q, machine=Machine((gpu,), replace(ram, total=200 * GIB, free=200 * GIB)))
    assert verdict_of(large, use, None)[0].detail == ""
    locked, _ = verdict_of(q, replace(use, mapped=False), None)
    assert locked.kind != FITS


def test_the_fewest_layers_whose_experts_must_be_in_ram(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-235b-a22b"))
    ram = Device("RAM", "", 200 * GIB, 200 * GIB, "", shared=True, margin=0)
    gpu = Device("CUDA0", "", 24 * GIB, 24 * GIB, "", margin=0)
    use = ModelUse(4096)
    q = FitRequest(m, use, Machine((gpu,), ram), None)
    layers = experts_in_ram(q, None)
    assert 0 < layers < 94

    def kind(n: int) -> str:
        return verdict_of(
            q, replace(use, moved=moved_tensors(m, list(first_layers(n, EXPERTS)))), None
        )[0].kind

    assert kind(layers) == FITS
    assert kind(layers - 1) != FITS


def test_moved_tensors_of_a_head_that_is_not_loaded_need_no_memory(folder: Path) -> None:
    m = read_model(build(folder, "qwen3.6-27b-mtp"))
    moved = moved_tensors(m, [Override(r"^blk\.", "RAM")])
    lines = estimate(m, ModelUse(4096, moved=moved), GpuSplit(("CUDA0",), (1.0,)))
    sums = per_device([x for x in lines if x.what == "weights"])
    blocks = sum(b.weights for b in m.layout.blocks[: m.layers])
    assert sums["RAM"] == m.layout.embedding + blocks


def test_tensors_moved_by_the_user_stay_where_they_are(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-235b-a22b"))
    ram = Device("RAM", "", 200 * GIB, 200 * GIB, "", shared=True, margin=0)
    gpu = Device("CUDA0", "", 24 * GIB, 24 * GIB, "", margin=0)
    moved = moved_tensors(m, list(first_layers(2, EXPERTS)))
    q = FitRequest(m, ModelUse(4096, moved=moved), Machine((gpu,), ram), None)
    assert experts_in_ram(q, None) == 0


def test_no_experts_are_moved_if_that_does_not_help(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-32b"))
    ram = Device("RAM", "", 200 * GIB, 200 * GIB, "", shared=True, margin=0)
    assert experts_in_ram(FitRequest(m, ModelUse(4096), Machine((), ram), None), None) == 0
