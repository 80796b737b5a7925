"""Replay of the verify loop over known agreements: acceptance for every K, no server. Pure.

At temperature 0 a draft that agrees with the target at a position is accepted there, and
one that disagrees ends the step; after accepted tokens the draft sees the target's own
text, so one teacher-forced agreement bit per position decides every step for every K
(llama.cpp drafts greedily: common/speculative.cpp).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DraftReplay:
    """`steps` verify steps yielded `tokens`; `drafted`/`accepted` tokens; `by_position[i-1]`
    = a_i, the share of steps in which the first i drafted tokens were all accepted."""

    k: int
    steps: int
    tokens: int
    drafted: int
    accepted: int
    by_position: tuple[float, ...]

    @property
    def alpha(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tau(self) -> float:
        """Tokens per verify step, 1 + Σ a_i."""
        return 1 + sum(self.by_position)


def replay_length(responses: Sequence[Sequence[bool]], k: int) -> DraftReplay:
    """Replays draft length `k`. Each response: one bit per generated token except the first, which
    comes from the prompt. As in the server, a draft is never longer than the remaining tokens
    minus the one that verification adds (server-context.cpp)."""
    steps = tokens = drafted = accepted = 0
    hits = [0] * k
    for bits in responses:
        at = 0
        while at < len(bits):
            length = min(k, len(bits) - at - 1)
            run = 0
            while run < length and bits[at + run]:
                run += 1
            steps += 1
            drafted += length
            accepted += run
            for i in range(run):
                hits[i] += 1
            at += run + 1
            tokens += run + 1
    by_position = tuple(h / steps if steps else 0.0 for h in hits)
    return DraftReplay(k, steps, tokens, drafted, accepted, by_position)


def expected_tau(responses: Sequence[Sequence[float]], k: int) -> float:
    """τ at a temperature above 0: each entry is the target's probability of the draft's
    token at that position; 1 + Σ_i mean over positions of the product of the first i."""
    total, count = [0.0] * k, 0
    for probabilities in responses:
        for at in range(len(probabilities) - 1):
            count += 1
            product = 1.0
            for i in range(min(k, len(probabilities) - at - 1)):
                product *= probabilities[at + i]
                total[i] += product
    return 1 + sum(t / count for t in total) if count else 1.0


def tau_interval(
    responses: Sequence[Sequence[bool]], k: int, draws: int = 400
) -> tuple[float, float]:
    """95 % bootstrap interval of τ over the responses (seeded, so deterministic)."""
    if not responses:
        return 1.0, 1.0
    rng = random.Random(0)
    taus = sorted(
        replay_length([rng.choice(responses) for _ in responses], k).tau for _ in range(draws)
    )
    return taus[int(0.025 * draws)], taus[int(0.975 * draws) - 1]
