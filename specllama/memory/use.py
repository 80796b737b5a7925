"""How a model is going to be run: what its memory depends on besides the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specllama.memory.errors import MemoryInputError
from specllama.memory.overrides import Moved

# Cache types llama-server takes (common/arg.cpp, kv_cache_types): elements and bytes of a block.
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
MOST_CONTEXT = 2**28  # tokens; no model is trained on a tenth of it


@dataclass(frozen=True)
class ModelUse:
    """One context of llama.cpp. `context`: tokens of all slots together. `outputs`: rows of
    logits kept room for, None = one for each token of the ubatch. `rollback`: states kept
    beside the current one (recurrent blocks). `mtp`: the MTP blocks are loaded.
    `kept_inputs`: layers whose input is kept for a drafter; `sampled`: tokens are picked on the
    device, over a second copy of the logits. `gpu_layers` None = all. `moved`: tensors that lie elsewhere than their block. `mapped`:
    weights in RAM are pages of the file, which need not all be in memory."""

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
    kept_inputs: int = 0
    sampled: bool = False
    gpu_layers: int | None = None
    moved: tuple[Moved, ...] = ()
    mapped: bool = True
    kv_on_gpu: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.context <= MOST_CONTEXT:
            raise MemoryInputError(
                f"a context of {self.context} tokens cannot be",
                f"Give -c N between 1 and {MOST_CONTEXT}, or 0 for the model's own.",
            )
        for kind in (self.cache_k, self.cache_v):
            if kind not in CACHE_TYPES:
                raise MemoryInputError(
                    f"no cache type called {kind!r}", f"Types: {', '.join(CACHE_TYPES)}."
                )
        if not self.flash and CACHE_TYPES[self.cache_v][0] > 1:
            raise MemoryInputError(
                f"a {self.cache_v} V cache needs flash attention (llama-context.cpp)",
                "Leave -fa on, or give -ctv f16.",
            )

    @property
    def cells(self) -> int:
        """Tokens one stream of the KV cache holds: n_ctx_seq (llama-context.cpp)."""
        total = pad(self.context, 256)
        return total if self.unified else pad(total // self.parallel, 256)

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.parallel

    @property
    def total_cells(self) -> int:
        """n_ctx after padding: what a draft's context is given."""
        return self.cells * self.streams

    @property
    def tokens(self) -> int:
        """Tokens of one pass: n_ubatch."""
        return min(self.ubatch, self.batch, self.total_cells)


def pad(n: int, to: int) -> int:
    return -(-n // to) * to
