"""Measures servers that someone else started, of any engine with OpenAI's API.

Speed is measured by the client. Acceptance comes from the completions if they report it, else
from the engine's counters (engines.py), which count everyone's requests.
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
    """The result for one server. None if its engine does not count it. Times in ms.
    `by_response`: α is of these completions alone, as they report it."""

    engine: str
    model: str
    alpha: float | None
    tau: float | None
    acceptance: tuple[float, ...]
    tokens_per_second: float
    first_ms: float
    ms_per_token: tuple[float, ...]
    missing: tuple[str, ...]
    by_response: bool = False


@dataclass
class _MeasuredServer:
    """One of the servers, which take turns."""

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
    """All prompts once, shortest first, until the time is up (but at least two). Prompts that are
    too long for a server are skipped. Several servers take turns with each prompt, in alternating
    order, so that other load affects all of them. `model`: of the first server, and of the others
    if they list it.

    Raises TuningError if a server cannot be measured.
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
            break  # the remaining prompts are longer
        for side, reply in zip(turns, replies, strict=True):
            side.replies.append(reply)
    return tuple(_measurement(side) for side in sides)


def _ready(
    server: Server, sampling: Mapping[str, float], name: str | None, strict: bool
) -> _MeasuredServer:
    """A warm server with its current counters. `strict`: it must have the model `name`."""
    try:
        model = server.model(name)
    except TuningError:
        if strict or name is None:
            raise
        model = server.model()
    server.ask(model, "Say hello.", 8, sampling)
    return _MeasuredServer(server, model, server.counters(model))


def _measurement(side: _MeasuredServer) -> ServerMeasurement:
    after = side.server.counters(side.model)
    engine = after.engine if after else "unknown engine"
    counted = acceptance(side.before, after)
    reported = combined([r.draft_counts for r in side.replies if r.draft_counts is not None])
    found, missing = _reconciled(reported, counted, after is not None)
    if side.server.refuses_tools:
        missing.append("it rejects `tools` in requests: sent as text in the prompts")
    ms = sum(r.ms for r in side.replies)
    if not ms:
        missing.append("responses arrive in one piece: their speed cannot be measured")
    return ServerMeasurement(
        engine=engine,
        model=side.model.name,
        alpha=found.alpha,
        tau=found.tau,
        acceptance=found.by_position,
        tokens_per_second=sum(r.tokens - 1 for r in side.replies) / ms * 1000 if ms > 0 else 0.0,
        first_ms=sum(r.first_ms for r in side.replies) / len(side.replies),
        ms_per_token=tuple(decoding(r.ms, r.tokens) for r in side.replies),
        missing=tuple(missing),
        by_response=reported is not None,
    )


def _reconciled(
    reported: DraftCounts | None, counted: Acceptance, has_metrics: bool
) -> tuple[Acceptance, list[str]]:
    """Acceptance as reported by the completions, with τ and a_i of the counters if those counted
    the same requests; and notes on missing values."""
    if reported is None:
        return counted, list(_missing(counted, has_metrics))
    if reported.steps is not None:
        return Acceptance(reported.alpha, reported.tau, reported.by_position), []
    if counted.drafted == reported.drafted and not counted.doubt:
        return Acceptance(reported.alpha, counted.tau, counted.by_position), []
    if not has_metrics or counted.doubt:
        return Acceptance(reported.alpha), list(_missing(counted, has_metrics, "τ"))
    return Acceptance(reported.alpha), [
        "other clients sent requests too: the counters do not show τ of these alone"
    ]


def _missing(counted: Acceptance, has_metrics: bool, what: str = "acceptance") -> Iterator[str]:
    if not has_metrics:
        yield f"no known metrics: {what} is unknown"
    elif counted.doubt:
        yield counted.doubt
    elif counted.alpha is None and counted.tau is None:
        yield "no drafted tokens were counted: speculation is off"


@dataclass(frozen=True)
class Acceptance:
    """α, τ and a_i, None or () if not counted; total `drafted` tokens. `doubt`: why the counters
    are not plausible; everything else is empty then."""

    alpha: float | None = None
    tau: float | None = None
    by_position: tuple[float, ...] = ()
    doubt: str = ""
    drafted: float | None = None


def acceptance(before: Snapshot | None, after: Snapshot | None) -> Acceptance:
    """The counts between the two snapshots; gauges at their last values."""
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
    """Values that are impossible, "" if there are none."""
    if alpha is not None and not 0 <= alpha <= 1:
        return f"the counters contradict themselves: α={alpha:g}"
    if tau is not None and not 1 <= tau < math.inf:
        return f"the counters contradict themselves: τ={tau:g}"
    return ""


def speedup(baseline: ServerMeasurement, other: ServerMeasurement) -> Interval:
    """How many times faster `other` decodes the same prompts. Raises TuningError if a response
    came in one piece, whose speed is unknown."""
    pairs = zip(baseline.ms_per_token, other.ms_per_token, strict=True)
    found = ratios([(plain, own, 1.0) for plain, own in pairs])
    if not len(found):
        raise TuningError("responses came in one piece or were too short: no speed to compare")
    return found.interval()
