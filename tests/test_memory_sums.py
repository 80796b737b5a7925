"""Estimates compared with llama.cpp's: llama-fit-params on headers of real dimensions."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.memory import SETTINGS, Row, ours, rows, theirs
from specllama.engine.embedded_values import EXPERTS
from specllama.gguf import read_model
from specllama.memory import oracle
from specllama.memory.cache import kv_bytes, state_bytes
from specllama.memory.compute import input_bytes
from specllama.memory.errors import MemoryInputError
from specllama.memory.estimate import (
    Drafting,
    GpuSplit,
    draft_use,
    estimate,
    model_lines,
    per_device,
    target_use,
    total,
)
from specllama.memory.overrides import Override, moved_tensors
from specllama.memory.use import CACHE_TYPES, ModelUse
from tests import zoo
from tests.giants import GIANTS, build
from tests.support import write_gguf

MIB = 2**20


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("giants")


@pytest.fixture
def fit_params(native: Path) -> str:
    """llama-fit-params beside the native server (.ci/build-llama makes both)."""
    return str(native.parent / "llama-fit-params")


@pytest.fixture(scope="module")
def compared(native: Path, headers: Path) -> Callable[[str], list[Row]]:
    """A model of tests/giants.py at every setting of benchmarks/memory.py. Each is compared in
    the first test that uses it: all at once take minutes on a busy machine."""

    @cache
    def compare(name: str) -> list[Row]:
        return list(rows(str(native.parent / "llama-fit-params"), headers, [name]))

    return compare


@pytest.mark.parametrize("name", GIANTS)
def test_the_estimate_agrees_with_llama_cpp(
    compared: Callable[[str], list[Row]], name: str
) -> None:
    found = compared(name)
    assert len(found) == len(SETTINGS)
    for r in found:
        assert r.cache_is_exact, (r.use, r.ours, r.theirs)
        assert -0.01 <= r.error <= 0.05, (r.use, r.ours, r.theirs)


def test_the_median_error_of_all_estimates_is_within_1_percent(
    compared: Callable[[str], list[Row]],
) -> None:
    errors = [abs(r.error) for name in GIANTS for r in compared(name)]
    assert len(errors) == len(GIANTS) * len(SETTINGS) >= 240
    assert statistics.median(errors) <= 0.01


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_the_cache_size_is_exact_for_every_cache_type(
    fit_params: str, headers: Path, kind: str
) -> None:
    for name in ("llama-3.1-8b", "gemma-3-1b", "deepseek-v2-lite"):
        use = ModelUse(10_000, cache_k=kind, cache_v=kind)  # padded to 10,240
        assert Row(
            name, use, ours(name, headers, use), theirs(fit_params, headers / f"{name}.gguf", use)
        ).cache_is_exact


def test_the_cache_size_of_several_slots(fit_params: str, headers: Path) -> None:
    path = build(headers, "qwen3.5-0.8b")
    use = ModelUse(8192, parallel=3)
    figures = oracle.ask_oracle(Path(fit_params), read_model(path), use)
    assert figures is not None
    lines = list(model_lines("target", read_model(path), use, GpuSplit()))
    cache = total([x for x in lines if x.what in ("KV cache", "recurrent state")])
    assert 0 <= figures.by_device["RAM"][1] - cache <= MIB


def test_figures_of_llama_fit_params_replace_those_of_the_formulas(
    fit_params: str, headers: Path
) -> None:
    m, use = read_model(build(headers, "llama-3.2-1b")), ModelUse(4096, outputs=1)
    lines = tuple(model_lines("target", m, use, GpuSplit()))
    figures = oracle.ask_oracle(Path(fit_params), m, use)
    assert figures is not None
    corrected = oracle.corrected("target", lines, figures, use)
    assert [(x.what, x.source) for x in corrected] == [
        ("weights", "llama.cpp"),
        ("KV cache", "llama.cpp"),
        ("compute", "formula"),  # a server keeps room for fewer logits than the tool
    ]
    assert [x.bytes for x in corrected] == [x.bytes for x in lines]
    wrong = tuple(replace(x, bytes=x.bytes // 2) for x in lines)
    assert total(oracle.corrected("target", wrong, figures, use)[:2]) == pytest.approx(
        total(lines[:2]), abs=2 * MIB
    )


@pytest.mark.parametrize("text", ["", "Host\n", "Host 1 2\n", "Host 1 2 x\n", "error\nfoo bar\n"])
def test_unexpected_output_of_llama_fit_params_is_ignored(text: str) -> None:
    assert oracle.parse(text) == {}


def test_figures_of_llama_fit_params_for_several_gpus() -> None:
    text = "CUDA0 4000 500 300 \nCUDA1 0 0 0 \nHost 400 0 20 \n"
    assert oracle.parse(text) == {
        "CUDA0": (4001 * MIB, 501 * MIB, 301 * MIB),
        "CUDA1": (0, 0, 0),
        "RAM": (401 * MIB, 0, 21 * MIB),
    }


# ---- calculated by hand -----------------------------------------------------------


def test_kv_cache_by_hand(headers: Path) -> None:
    m = read_model(build(headers, "llama-3.1-8b"))
    # 32 layers, 8 KV heads of 128, K and V, 2 bytes: 128 KiB per token
    assert sum(kv_bytes(m.layout, b, ModelUse(1000)) for b in m.layout.blocks) == 1024 * 128 * 1024
    q8 = ModelUse(1024, cache_k="q8_0", cache_v="q8_0")
    assert sum(kv_bytes(m.layout, b, q8) for b in m.layout.blocks) == 1024 * 128 * 1024 * 17 // 32


def test_a_sliding_window_cache_holds_each_slots_window_and_one_ubatch(headers: Path) -> None:
    layout = read_model(build(headers, "gemma-3-1b")).layout
    assert layout.window == 512
    (sliding,) = {b.k for b in layout.blocks if b.window}
    block = next(b for b in layout.blocks if b.window)

    def cells(context: int, **settings: bool | int) -> int:
        use = ModelUse(context, **settings)  # type: ignore[arg-type]
        return kv_bytes(layout, block, use) // ((sliding + block.v) * 2)

    assert cells(32768) == 512 + 512
    assert cells(32768, ubatch=100) == 768, "612 in steps of 256"
    assert cells(32768, parallel=3, unified=True) == 3 * 512 + 512, "one stream of three slots"
    assert cells(32768, parallel=3) == 3 * (512 + 512), "three streams"
    assert cells(512) == 512, "no more than the context"
    assert cells(32768, swa_full=True) == 32768


def test_a_draft_gets_the_targets_whole_context(headers: Path) -> None:
    target, draft = (read_model(build(headers, n)) for n in ("llama-3.1-8b", "llama-3.2-1b"))
    lines = estimate(
        target, ModelUse(9000, parallel=2), GpuSplit(), Drafting(("draft-simple",), draft)
    )
    cache = next(x for x in lines if (x.who, x.what) == ("draft", "KV cache"))
    # two slots of 4,500 tokens, padded to 4,608; 16 layers, 8 KV heads of 64: 32 KiB per token
    assert cache.bytes == 9216 * 32 * 1024


def test_rollback_copies_grow_with_k(headers: Path) -> None:
    m = read_model(build(headers, "qwen3.6-27b-mtp"))

    def state(longest: int, method: str = "draft-mtp") -> int:
        use = target_use(m, ModelUse(4096), Drafting((method,), longest=longest))
        return sum(state_bytes(b, use) for b in m.layout.blocks)

    # 48 layers; 3 taps of 10,240 and a state of 128 × 6,144 elements, 4 bytes
    once = 48 * (3 * 10240 + 128 * 6144) * 4
    assert state(0) == once
    assert state(4) == 5 * once
    assert state(4, "ngram-simple") == once  # checkpoints, no copies kept
    no_rollback = read_model(build(headers, "qwen3-next-80b"))
    assert (
        target_use(no_rollback, ModelUse(4096), Drafting(("draft-mtp",), longest=4)).rollback == 0
    )


@pytest.mark.parametrize(
    ("arch", "fields", "state"),
    [
        # llama-hparams.cpp, n_embd_r() + n_embd_s()
        ("rwkv6", {"wkv.head_size": 64}, (2 + 64) * 32),
        ("rwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, (1 + 64) * 32),
        ("lfm2", {"shortconv.l_cache": 3, "attention.head_count_kv": 0}, 2 * 32),
        (
            "kimi-linear",
            {"kda.head_dim": 128, "attention.head_count": 16, "attention.head_count_kv": 0},
            16 * (3 * 3 * 128 + 128 * 128),
        ),
        (
            "minimax-01",
            {"attention.key_length": 96, "attention.head_count": 16},
            16 * 96 * 96,
        ),
        (
            "mamba2",
            {
                "ssm.conv_kernel": 4,
                "ssm.inner_size": 64,
                "ssm.state_size": 16,
                "ssm.group_count": 2,
            },
            3 * (64 + 2 * 2 * 16) + 16 * 64,
        ),
    ],
)
def test_recurrent_state_by_hand(
    tmp_path: Path, arch: str, fields: dict[str, int], state: int
) -> None:
    keys = {f"{arch}.{k}": n for k, n in fields.items()}
    m = read_model(write_gguf(tmp_path / "m.gguf", arch=arch, fields=keys))
    (block,) = m.layout.blocks
    assert state_bytes(block, ModelUse(512)) == 4 * state


def test_sliding_windows_by_architecture(headers: Path, tmp_path: Path) -> None:
    """llama.cpp's load_swa_pattern: every n-th layer has full attention."""

    def windows(name: str) -> list[bool]:
        return [b.window for b in read_model(build(headers, name)).layout.blocks]

    assert windows("gemma-3-1b")[:7] == [True] * 5 + [False, True]
    assert windows("llama-3.1-8b") == [False] * 32
    gemma2 = read_model(write_gguf(tmp_path / "m.gguf", arch="gemma2"))  # no key: gemma2.cpp's
    assert gemma2.layout.window == 4096


def test_layers_that_share_a_cache_have_none_of_their_own(headers: Path, tmp_path: Path) -> None:
    m = read_model(build(headers, "gemma-4-e4b"))
    shared = 18  # of 42
    assert [bool(b.k) for b in m.layout.blocks] == [True] * (42 - shared) + [False] * shared
    fields = {"gemma3n.block_count": 30, "gemma3n.attention.head_count": 1}
    nano = zoo.write(tmp_path / "n.gguf", "gemma3n", fields | {"gemma3n.embedding_length": 32}, {})
    # gemma3n.cpp: n_layer_kv_from_start
    assert [bool(b.k) for b in read_model(nano).layout.blocks] == [True] * 20 + [False] * 10


def test_a_feed_forward_block_of_a_hybrid_has_no_state(tmp_path: Path) -> None:
    """nemotron_h: blocks without KV heads are recurrent, or a feed-forward network."""
    keys: dict[str, zoo.Value] = {
        "block_count": 3, "embedding_length": 32, "attention.head_count": 2,
        "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 64, 0],
        "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.group_count": 2,
    }  # fmt: skip
    fields = {f"nemotron_h.{k}": v for k, v in keys.items()}
    m = read_model(zoo.write(tmp_path / "m.gguf", "nemotron_h", fields, {}))
    assert [(b.state > 0, b.k > 0) for b in m.layout.blocks] == [
        (True, False),
        (False, False),
        (False, True),
    ]


def test_mtp_blocks_are_loaded_only_for_draft_mtp(headers: Path) -> None:
    m = read_model(build(headers, "qwen3.6-27b-mtp"))

    def weights(drafting: Drafting | None) -> int:
        return total(
            [x for x in estimate(m, ModelUse(4096), GpuSplit(), drafting) if x.what == "weights"]
        )

    head = weights(Drafting(("draft-mtp",))) - weights(None)
    assert head == m.mtp_bytes > 0
    lines = estimate(m, ModelUse(4096), GpuSplit(), Drafting(("draft-mtp",)))
    cache = next(x for x in lines if (x.who, x.what) == ("MTP head", "KV cache"))
    assert cache.bytes == 4096 * 2 * 4 * 256 * 2  # one block, 4 KV heads of 256, K and V


def test_the_last_layers_are_the_first_on_a_gpu(headers: Path) -> None:
    m = read_model(build(headers, "llama-3.1-8b"))
    two = GpuSplit(("CUDA0", "CUDA1"), (3.0, 1.0))

    def weights(gpu_layers: int | None) -> dict[str, int]:
        lines = estimate(m, ModelUse(4096, gpu_layers=gpu_layers), two)
        return per_device([x for x in lines if x.what == "weights"])

    block, output = m.layout.blocks[0].weights, m.layout.output + m.layout.rest
    assert weights(0) == {"RAM": m.tensor_bytes}
    assert weights(1)["CUDA0"] == output
    # 33 layers in all, three quarters of them on the first
    assert weights(None) == {
        "RAM": m.layout.embedding,
        "CUDA0": 25 * block,
        "CUDA1": 7 * block + output,
    }


def test_experts_kept_on_the_cpu(headers: Path) -> None:
    m = read_model(build(headers, "qwen3-30b-a3b"))
    gpu = GpuSplit(("CUDA0",), (1.0,))
    all_on_cpu = estimate(
        m, ModelUse(4096, moved=moved_tensors(m, [Override(EXPERTS, "RAM")])), gpu
    )
    weights = per_device([x for x in all_on_cpu if x.what == "weights"])
    experts = sum(b.experts for b in m.layout.blocks)
    assert weights["RAM"] == m.layout.embedding + experts
    assert experts > 0.9 * m.layout.blocks[0].weights * 48


def test_shared_experts_are_not_counted_as_routed_ones(headers: Path) -> None:
    m = read_model(build(headers, "glm-4.5-air"))
    moved = moved_tensors(m, [Override(r"^blk\.", "RAM")])
    assert sum(x.experts for x in moved) == sum(b.experts for b in m.layout.blocks)


def test_several_gpus_hold_the_inputs_of_four_batches(headers: Path) -> None:
    """llama-context.cpp, pipeline_parallel: if all layers are on them."""
    m, use = read_model(build(headers, "llama-3.1-8b")), ModelUse(4096)

    def compute(use: ModelUse, *gpus: str) -> dict[str, int]:
        lines = model_lines("target", m, use, GpuSplit(gpus, (1.0,) * len(gpus)))
        return per_device([x for x in lines if x.what == "compute"])

    one, two = compute(use, "A"), compute(use, "A", "B")
    assert two["RAM"] == one["RAM"] == input_bytes(m, use)
    assert two["A"] == two["B"] == one["A"] + 3 * input_bytes(m, use)
    assert compute(replace(use, gpu_layers=30), "A", "B")["A"] == one["A"], "some in RAM"


def test_tied_embeddings_are_copied_to_the_gpu(headers: Path) -> None:
    m = read_model(build(headers, "llama-3.2-1b"))
    weights = per_device(
        [x for x in estimate(m, ModelUse(4096), GpuSplit(("GPU0",), (1.0,))) if x.what == "weights"]
    )
    assert weights["RAM"] == m.layout.embedding
    assert weights["GPU0"] == m.tensor_bytes  # the whole model, embedding included


def test_the_number_of_logits_depends_on_the_method(headers: Path) -> None:
    use = ModelUse(4096, parallel=2, outputs=2)
    m = read_model(build(headers, "llama-3.1-8b"))
    assert target_use(m, use, Drafting(("draft-simple",), longest=4)).outputs == 10
    assert draft_use(use, Drafting(("draft-simple",), m)).outputs == 2
    # server-context.cpp, server_output_limits: no more rows than a batch has tokens
    assert target_use(m, replace(use, batch=6), Drafting(("draft-simple",), longest=4)).outputs == 6
    assert draft_use(use, Drafting(("draft-dflash",), m, 7)).outputs == 512  # it has an encoder
    assert target_use(m, replace(use, outputs=None), Drafting(("ngram-mod",))).outputs is None


def test_estimates_of_an_unknown_architecture_are_upper_bounds(tmp_path: Path) -> None:
    path = zoo.llama(tmp_path / "new.gguf", "new", zoo.LLAMA2, 64, arch="brandnew")
    lines = list(model_lines("target", read_model(path), ModelUse(512), GpuSplit()))
    assert all(x.upper for x in lines if x.what != "weights")
    assert {x.what: x.bytes for x in lines}["KV cache"] == 512 * (64 + 64) * 2


# ---- bad input ------------------------------------------------------------------


@pytest.mark.parametrize("context", [0, -1, 2**40])
def test_impossible_contexts_are_errors(context: int) -> None:
    with pytest.raises(MemoryInputError, match="out of range"):
        ModelUse(context)


def test_impossible_cache_types_are_errors() -> None:
    with pytest.raises(MemoryInputError, match="unknown cache type 'q3_9'"):
        ModelUse(512, cache_k="q3_9")
    with pytest.raises(MemoryInputError, match="needs flash attention"):
        ModelUse(512, cache_v="q8_0", flash=False)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.embedding_length", 128, "token_embd.weight has 64 columns"),
        ("llama.block_count", 3, "block 1 has no tensors"),
        ("llama.attention.head_count_kv", 2, "attn_k has 64"),
    ],
)
def test_a_header_that_contradicts_its_tensors_is_an_error(
    tmp_path: Path, key: str, value: int, message: str
) -> None:
    path = zoo.llama(tmp_path / "odd.gguf", "odd", zoo.LLAMA2, 64)
    patched = tmp_path / "patched.gguf"
    fields = zoo.shape("llama", "odd", 64, 1) | zoo.LLAMA2.fields() | {key: value}
    if key.endswith("head_count_kv"):
        fields["llama.attention.key_length"] = 64
    tensors = zoo.llama_tensors(zoo.LLAMA2, 64)
    zoo.write(patched, "llama", fields, tensors)
    assert not read_model(path).layout.problem
    with pytest.raises(MemoryInputError, match=message):
        list(model_lines("target", read_model(patched), ModelUse(512), GpuSplit()))
