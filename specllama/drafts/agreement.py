"""How often a draft agrees with the target, and the cost of both, in-process.

The target responds to the prompts (or a text is given); then each draft and the target run over
that text once, one model in memory at a time, are compared token by token, and timed. Requires
the extra `llama-cpp-python`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.drafts.acceptance import LONGEST_K
from specllama.drafts.costs import DraftCosts
from specllama.drafts.inprocess import (
    CONTEXT,
    Continuation,
    MeasureError,
    default_threads,
    load_model,
)
from specllama.drafts.timing import model_batch_times

TEMPERATURES = (0.4, 0.8, 1.2)
ANSWER_TOKENS = 128


@dataclass(frozen=True)
class Agreement:
    """One draft, by response and position (except the first token): whether the draft's most
    likely token is the target's, and the target's probability of the draft's token at each of
    TEMPERATURES. `costs`: times of both for drafts of up to LONGEST_K tokens; None if they
    cannot be measured, with the reason in `uncosted`."""

    agrees: tuple[tuple[bool, ...], ...]
    probability: dict[float, tuple[tuple[float, ...], ...]]
    costs: DraftCosts | None
    uncosted: str


def measure(
    target: Path, drafts: Sequence[Path], prompts: Sequence[str], threads: int | None = None
) -> tuple[list[Continuation], dict[Path, Agreement]]:
    """The target's responses, and each draft's agreement with them.
    Raises MeasureError if llama-cpp-python is missing or cannot load a file."""
    with load_model(target, threads) as model:
        responses = [model.generate(prompt, ANSWER_TOKENS) for prompt in prompts]
    return responses, compare(target, drafts, responses, threads)


def measure_text(
    target: Path, drafts: Sequence[Path], text: str, threads: int | None = None
) -> tuple[list[Continuation], dict[Path, Agreement]]:
    """Like `measure`, on a given text instead of the target's responses."""
    with load_model(target, threads) as model:
        tokens = model.tokenize(text)
    size = CONTEXT // 2
    responses = [
        Continuation((tokens[at],), tuple(tokens[at + 1 : at + size]))
        for at in range(0, max(1, len(tokens) - 8), size)
        if len(tokens) > at + 8
    ]
    if not responses:
        raise MeasureError(
            "the text is too short for a comparison", "Provide at least a few sentences."
        )
    return responses, compare(target, drafts, responses, threads)


def compare(
    target: Path,
    drafts: Sequence[Path],
    responses: Sequence[Continuation],
    threads: int | None = None,
) -> dict[Path, Agreement]:
    """Each draft's agreement on `responses`, with the costs of draft and target."""
    threads = threads or default_threads()
    guesses: dict[Path, list[list[int]]] = {}
    drafting: dict[Path, tuple[float, ...] | None] = {}
    for draft in drafts:
        with load_model(draft, threads) as model:
            guesses[draft] = [[int(row.argmax()) for row in model.rows(a)] for a in responses]
            drafting[draft] = model_batch_times(model, responses, LONGEST_K + 1, all_rows=False)
    agrees: dict[Path, list[tuple[bool, ...]]] = {d: [] for d in drafts}
    chances: dict[Path, dict[float, list[tuple[float, ...]]]] = {
        d: {t: [] for t in TEMPERATURES} for d in drafts
    }
    with load_model(target, threads) as model:
        for i, response in enumerate(responses):
            best: list[int] = []
            p: dict[Path, dict[float, list[float]]] = {
                d: {t: [] for t in TEMPERATURES} for d in drafts
            }
            for j, row in enumerate(model.rows(response)):
                best.append(int(row.argmax()))
                for d in drafts:
                    for t in TEMPERATURES:
                        p[d][t].append(_probability(row, guesses[d][i][j], t))
            for d in drafts:
                agrees[d].append(tuple(a == b for a, b in zip(best, guesses[d][i], strict=True)))
                for t in TEMPERATURES:
                    chances[d][t].append(tuple(p[d][t]))
        verifying = model_batch_times(model, responses, LONGEST_K + 1, all_rows=True)

    def agreement(d: Path) -> Agreement:
        own, costs, stateful = drafting[d], None, target if verifying is None else d
        if verifying is not None and own is not None:
            costs = DraftCosts(threads, verifying, own)
        return Agreement(
            agrees=tuple(agrees[d]),
            probability={t: tuple(chances[d][t]) for t in TEMPERATURES},
            costs=costs,
            uncosted="" if costs else f"{stateful.name} cannot roll back single tokens",
        )

    return {d: agreement(d) for d in drafts}


def token_matches(
    draft: Path,
    responses: Sequence[Continuation],
    longest: int,
    threads: int | None = None,
    until: float = math.inf,
) -> tuple[tuple[tuple[bool, ...], ...], tuple[float, ...] | None]:
    """For each token of the given responses except the first, whether the draft predicts it: then
    it would have been accepted, whoever wrote the response and however it was sampled. Also ms
    of its passes over 1 … `longest` tokens, None if they cannot be measured. Only the draft is
    loaded, with a context as long as the texts. After `until` (time.monotonic()), no further
    response is processed."""
    context = max(len(a.prompt) + len(a.tokens) for a in responses) + 2 * longest
    agrees: list[tuple[bool, ...]] = []
    with load_model(draft, threads, max(CONTEXT, context)) as model:
        for a in responses:
            if agrees and time.monotonic() > until:
                break
            rows = zip(model.rows(a), a.tokens[1:], strict=True)
            agrees.append(tuple(int(row.argmax()) == token for row, token in rows))
        return tuple(agrees), model_batch_times(model, responses, longest, all_rows=False)


def _probability(row: Any, token: int, temperature: float) -> float:
    """Softmax probability of one token. The draft's vocabulary may be longer (by up to 128
    tokens): the target never accepts a token that it does not have."""
    import numpy as np

    if token >= len(row):
        return 0.0

    scaled = (row - row.max()) / temperature
    return float(math.exp(scaled[token]) / np.exp(scaled).sum())
