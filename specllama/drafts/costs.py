"""Draft cost from measured passes of target and draft, and the speed-up for every K. Pure.

A step of llama.cpp's server with K drafted tokens (common/speculative.cpp, draft-simple):
K passes of one token through the draft (draft), one batch of K+1 through the target, all
rows output (server-context.cpp), the same batch through the draft, the last row output
(process). Sampling is ignored: it is small compared with the passes of a real model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specllama.drafts.replay import DraftReplay


@dataclass(frozen=True)
class DraftCosts:
    """Medians in ms on `threads` threads; entry b-1 is for a batch of b tokens. `target`:
    logits for every row; `draft`: for the last one. The first entries: one plain step, and
    one drafting pass."""

    threads: int
    target: tuple[float, ...]
    draft: tuple[float, ...]

    def drafting(self, k: int) -> float:
        """ms that the draft adds to a step with `k` drafted tokens."""
        return k * self.draft[0] + self.draft[k]

    def step(self, k: int) -> float:
        """ms of a whole step with `k` drafted tokens."""
        return self.target[k] + self.drafting(k)

    def speedup(self, tau: float, k: int) -> float:
        """Speed-up over plain decoding at `tau` tokens per step with `k` drafted tokens."""
        return tau * self.target[0] / self.step(k)


def best(runs: Iterable[DraftReplay], speedup: Callable[[float, int], float]) -> DraftReplay:
    """The run with the highest `speedup` by its τ and K."""
    return max(runs, key=lambda r: speedup(r.tau, r.k))
