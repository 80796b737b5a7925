"""Tensors kept elsewhere: what -ot, --cpu-moe and their like do to the sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.engine.embedded_values import EXPERTS
from specllama.gguf import read_model
from specllama.memory.decide import FITS, FitRequest, experts_in_ram, verdict_of
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


def test_the_usual_pattern_is_cpu_moe(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    by_hand = weights(path, *parse_overrides("exps=CPU", ("CUDA0",)))
    assert by_hand == weights(path, Override(EXPERTS, "RAM"))
    blocks = read_model(path).layout.blocks
    some = weights(path, *first_layers(10, EXPERTS))
    assert some["RAM"] - weights(path)["RAM"] == sum(b.experts for b in blocks[:10])


def test_a_layers_number_is_not_the_beginning_of_another(folder: Path) -> None:
    r"""blk\.1\.ffn is not found in blk.11.ffn."""
    path = build(folder, "qwen3-30b-a3b")
    blocks = read_model(path).layout.blocks
    one = weights(path, *first_layers(2, EXPERTS))
    assert one["RAM"] - weights(path)["RAM"] == blocks[0].experts + blocks[1].experts


def test_the_first_pattern_that_is_found_decides(folder: Path) -> None:
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
    ("text", "says"),
    [
        ("exps", "<tensor name pattern>=<buffer type>"),
        ("(=CPU", "not a valid pattern"),
        ("exps=CUDA7", "unknown buffer type 'CUDA7'"),
        ("", "<tensor name pattern>=<buffer type>"),
        ("exps=RPC0", "unknown buffer type 'RPC0'"),
    ],
)
def test_what_llama_server_would_refuse(text: str, says: str) -> None:
    with pytest.raises(MemoryInputError, match=says):
        list(parse_overrides(text, ("CUDA0",)))


def test_any_gpus_name_goes_by_its_number_where_sizes_were_given() -> None:
    assert [o.device for o in parse_overrides("a=CUDA1,b=CPU", ("GPU0", "GPU1"))] == ["GPU1", "RAM"]


def test_rpc_buffers_have_addresses_and_names_any_case() -> None:
    devices = ("RPC0", "CUDA0")
    text = "a=RPC0[127.0.0.1:50052],b=cuda0"
    assert [o.device for o in parse_overrides(text, devices)] == ["RPC0", "CUDA0"]
    assert named_device("rpc0", devices) == "RPC0"
    assert named_device("CUDA1", devices) is None


def test_posix_classes_are_patterns_of_llama_cpp(folder: Path) -> None:
    path = build(folder, "qwen3-30b-a3b")
    by_class = weights(path, *parse_overrides(r"blk\.[[:digit:]]+\.ffn_.*exps=CPU", ("CUDA0",)))
    assert by_class == weights(path, Override(EXPERTS, "RAM"))


def test_experts_in_ram_may_stay_on_disk_unless_memory_is_locked(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-235b-a22b"))
    use = ModelUse(4096, moved=moved_tensors(m, [Override(EXPERTS, "RAM")]))
    ram = Device("RAM", "", 16 * GIB, 16 * GIB, "", shared=True, margin=0)
    gpu = Device("CUDA0", "", 24 * GIB, 24 * GIB, "", margin=0)
    q = FitRequest(m, use, Machine((gpu,), ram), None)
    verdict, lines = verdict_of(q, use, None)
    assert verdict.kind == FITS
    assert "read from disk" in verdict.detail
    assert needed(lines)["RAM"] < 2 * GIB < 100 * GIB < per_device(lines)["RAM"]
    locked, _ = verdict_of(q, replace(use, mapped=False), None)
    assert locked.kind != FITS


def test_how_many_layers_experts_must_lie_in_ram(folder: Path) -> None:
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


def test_no_advice_where_it_does_not_help(folder: Path) -> None:
    m = read_model(build(folder, "qwen3-32b"))
    ram = Device("RAM", "", 200 * GIB, 200 * GIB, "", shared=True, margin=0)
    assert experts_in_ram(FitRequest(m, ModelUse(4096), Machine((), ram), None), None) == 0
