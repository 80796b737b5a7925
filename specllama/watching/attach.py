"""Measuring servers that somebody else started, of any engine with OpenAI's API.

Speed is taken at the client; acceptance from what the answers say of themselves, else from the
engine's own counters (engines.py), which count everybody's requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specllama.engine.client import Prompt
from specllama.tuning.confidence import Interval, ratios
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import decoding
from specllama.watching.chat_server import Reply, Server
from specllama.watching.counters import Snapshot, between
from specllama.watching.served_models import ListedModel
from specllama.watching.streamed import DraftCounts, combined


@dataclass(frozen=True)
class ServerMeasurement:
    """What one server showed. None where its engine does not count it. Times in ms.
    `by_answer`: α is of these answers alone, as they say it themselves."""

    engine: str
    model: str
    alpha: float | None
    tau: float | None
    acceptance: tuple[float, ...]
    tokens_per_second: float
    first_ms: float
    ms_per_token: tuple[float, ...]
    missing: tuple[str, ...]
    by_answer: bool = False


@dataclass
class _MeasuredServer:
    """One of the servers that are asked in turn."""

    server: Server
    model: ListedModel
    before: Snapshot | None
    replies: list[Reply] = field(default_factory=list)


def measure_running(
    servers: Sequence[Server],
    prompts: Sequence[Prompt],
    sampling: Mapping[str, float],
    tokens: int,
    until: float,
    model: str | None = None,
) -> tuple[ServerMeasurement, ...]:
    """All prompts once, the shortest first, until the time is over (but two at least). Those
    that are too long for a server are left out. Several servers get each prompt in turn, so that
    what else the machine does meets all of them; who is first changes. `model`: the first
    server's, and the others' where they list it.

    Raises TuningError with one clear line for everything that keeps one from being measured.
    """
    sides = [_ready(s, sampling, model, strict=i == 0) for i, s in enumerate(servers)]
    for number, prompt in enumerate(sorted(prompts, key=lambda p: len(str(p)))):
        if number >= 2 and time.monotonic() > until:
            break
        turns = sides if number % 2 == 0 else sides[::-1]
        try:
            replies = [side.server.ask(side.model, prompt, tokens, sampling) for side in turns]
        except TuningError:
            if number < 2:
                raise
            break  # the rest is longer still
        for side, reply in zip(turns, replies, strict=True):
            side.replies.append(reply)
    return tuple(_shown(side) for side in sides)


def _ready(
    server: Server, sampling: Mapping[str, float], name: str | None, strict: bool
) -> _MeasuredServer:
    """A warm server and where its counters stand. `strict`: it must have the model `name`."""
    try:
        model = server.model(name)
    except TuningError:
        if strict or name is None:
            raise
        model = server.model()
    server.ask(model, "Say hello.", 8, sampling)
    return _MeasuredServer(server, model, server.counters(model))


def _shown(side: _MeasuredServer) -> ServerMeasurement:
    after = side.server.counters(side.model)
    engine = after.engine if after else "unknown engine"
    counted = acceptance(side.before, after)
    told = combined([r.draft_counts for r in side.replies if r.draft_counts is not None])
    seen, missing = _agreed(told, counted, after is not None)
    if side.server.refuses_tools:
        missing.append("it refuses `tools` in a request: the prompts have them as text")
    ms = sum(r.ms for r in side.replies)
    if not ms:
        missing.append("answers come in one piece: their speed is not seen")
    return ServerMeasurement(
        engine=engine,
        model=side.model.name,
        alpha=seen.alpha,
        tau=seen.tau,
        acceptance=seen.by_position,
        tokens_per_second=sum(r.tokens - 1 for r in side.replies) / ms * 1000 if ms > 0 else 0.0,
        first_ms=sum(r.first_ms for r in side.replies) / len(side.replies),
        ms_per_token=tuple(decoding(r.ms, r.tokens) for r in side.replies),
        missing=tuple(missing),
        by_answer=told is not None,
    )


def _agreed(
    told: DraftCounts | None, counted: Acceptance, has_metrics: bool
) -> tuple[Acceptance, list[str]]:
    """What the answers say of themselves, with τ and a_i of the counters where those counted the
    same; and what is missing."""
    if told is None:
        return counted, list(_missing(counted, has_metrics))
    if told.steps is not None:
        return Acceptance(told.alpha, told.tau, told.by_position), []
    if counted.drafted == told.drafted and not counted.doubt:
        return Acceptance(told.alpha, counted.tau, counted.by_position), []
    if not has_metrics or counted.doubt:
        return Acceptance(told.alpha), list(_missing(counted, has_metrics, "τ"))
    return Acceptance(told.alpha), [
        "others asked it meanwhile: its counters do not show τ of these answers"
    ]


def _missing(counted: Acceptance, has_metrics: bool, what: str = "acceptance") -> Iterator[str]:
    if not has_metrics:
        yield f"no metrics that are known: {what} cannot be read"
    elif counted.doubt:
        yield counted.doubt
    elif counted.alpha is None and counted.tau is None:
        yield "it counted no drafted tokens: speculation is off there"


@dataclass(frozen=True)
class Acceptance:
    """α, τ and a_i, None or () where they are not counted; `drafted` tokens in all. `doubt`: why
    the counters are not believed; then there is nothing else."""

    alpha: float | None = None
    tau: float | None = None
    by_position: tuple[float, ...] = ()
    doubt: str = ""
    drafted: float | None = None


def acceptance(before: Snapshot | None, after: Snapshot | None) -> Acceptance:
    """What was counted between the two; gauges as they stand."""
    if after is None:
        return Acceptance()
    new = between(before, after) if before is not None else after.counts
    gauges = after.gauges
    doubt = new.doubt or _impossible(gauges.alpha, gauges.tau)
    if doubt:
        return Acceptance(doubt=doubt)
    alpha = new.alpha if new.alpha is not None else gauges.alpha
    return Acceptance(alpha, new.tau or gauges.tau, new.acceptance, drafted=new.drafted)


def _impossible(alpha: float | None, tau: float | None) -> str:
    """What no engine can have seen, "" when all of it can be."""
    if alpha is not None and not 0 <= alpha <= 1:
        return f"the counters contradict themselves: α={alpha:g}"
    if tau is not None and not 1 <= tau < math.inf:
        return f"the counters contradict themselves: τ={tau:g}"
    return ""


def speedup(baseline: ServerMeasurement, other: ServerMeasurement) -> Interval:
    """How many times faster `other` decodes the same prompts. Raises TuningError when an
    answer came in one piece, which shows no speed."""
    pairs = zip(baseline.ms_per_token, other.ms_per_token, strict=True)
    found = ratios([(plain, own, 1.0) for plain, own in pairs])
    if not len(found):
        said = "the answers came in one piece or after a word: there is no speed to compare"
        raise TuningError(said)
    return found.interval()
