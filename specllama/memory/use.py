"""How a model is run: everything besides the file that its memory depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specllama.engine.settings import MAX_CONTEXT
from specllama.memory.errors import MemoryInputError
from specllama.memory.overrides import MovedTensors

# Cache types of llama-server (common/arg.cpp, kv_cache_types): elements and bytes of a block.
CACHE_TYPES: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


@dataclass(frozen=True)
class ModelUse:
    """One context of llama.cpp. `context`: tokens of all slots together. `outputs`: allocated rows
    of logits, None = one for each token of the ubatch. `rollback`: states stored in addition to
    the current one (recurrent blocks). `mtp`: the MTP blocks are loaded. `exposed_inputs`: number
    of layers whose input is stored for a drafter; `sampled`: tokens are sampled on the device,
    over a second copy of the logits. `gpu_layers` None = all. `moved`: tensors on another device
    than their block. `mapped`: weights in RAM are pages of the file, not all of which need to be
    in memory."""

    context: int
    parallel: int = 1
    unified: bool = False
    batch: int = 2048
    ubatch: int = 512
    cache_k: str = "f16"
    cache_v: str = "f16"
    flash: bool = True
    swa_full: bool = False
    outputs: int | None = None
    rollback: int = 0
    mtp: bool = False
    exposed_inputs: int = 0
    sampled: bool = False
    gpu_layers: int | None = None
    moved: tuple[MovedTensors, ...] = ()
    mapped: bool = True
    kv_on_gpu: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.context <= MAX_CONTEXT:
            raise MemoryInputError(
                f"a context of {self.context} tokens is out of range",
                f"Use -c N between 1 and {MAX_CONTEXT}, or 0 for the model's own.",
            )
        for kind in (self.cache_k, self.cache_v):
            if kind not in CACHE_TYPES:
                raise MemoryInputError(
                    f"unknown cache type {kind!r}", f"Types: {', '.join(CACHE_TYPES)}."
                )
        if not self.flash and CACHE_TYPES[self.cache_v][0] > 1:
            raise MemoryInputError(
                f"a {self.cache_v} V cache needs flash attention (llama-context.cpp)",
                "Keep -fa on, or use -ctv f16.",
            )

    @property
    def cells(self) -> int:
        """Tokens per stream of the KV cache: n_ctx_seq (llama-context.cpp)."""
        total = pad(self.context, 256)
        return total if self.unified else pad(total // self.parallel, 256)

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.parallel

    @property
    def total_cells(self) -> int:
        """n_ctx after padding, which is also the draft's context."""
        return self.cells * self.streams

    @property
    def tokens(self) -> int:
        """Tokens of one pass: n_ubatch."""
        return min(self.ubatch, self.batch, self.total_cells)


def pad(n: int, to: int) -> int:
    return -(-n // to) * to
