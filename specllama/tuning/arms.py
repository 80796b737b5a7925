"""What was measured and what it says: predictions, arms, and the answer drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specllama.drafts.ollama import shown_name
from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.settings import NgramSizes, Speculation
from specllama.tuning.confidence import Interval, Ratios
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.measure import Measurement
from specllama.tuning.speedup import StepCost, StepLog
from specllama.tuning.statistics import TimeSplit

NO_TIME = "no time was left"
DECIDED, OPEN, CRASHED, FORCED = "decided", "open", "crashed", "forced"


@dataclass(frozen=True)
class Served:
    """A running server. `log`: what it printed so far."""

    client: Client
    log: Callable[[], str]


class ServerRunner(Protocol):
    """Runs one server at a time."""

    def start(
        self, speculation: Speculation | None, tick: Callable[[], None], trace: bool = False
    ) -> Served:
        """Ends the server that is up and starts another; `tick` is called while it loads.
        `trace`: its log must say where time goes, so that it cannot go on to serve.
        Raises EngineError when it does not start. None = no speculation flags at all."""

    def blame(self, error: EngineError) -> EngineError:
        """Why the server ended, when that is what an error came from; else the error."""

    def stop(self) -> None:
        """Ends the server that is up, if one is."""


class Progress(Protocol):
    """Told what is being learnt."""

    def step(self, text: str, share: float, left_s: float) -> None:
        """`share` of the budget is used, 0 to 1; `left_s` seconds of it are left."""


@dataclass(frozen=True)
class Plain:
    """What one server without speculation tells. `lost`: what this build does not tell, and what
    follows. `short`: the step of a request of two tokens ÷ one within an answer: the first after
    a pause is often slower (caches, clocks, the graph that is built anew)."""

    measurement: Measurement
    costs: VerifyCosts
    lost: tuple[str, ...] = ()
    load_s: float = 0.0
    short: float = 1.0


@dataclass(frozen=True)
class NgramMap:
    """Predicted speed-up of every size of one n-gram type, alone or (`draft` = its label) where
    a draft takes over when there is no copy."""

    method: str
    speeds: Mapping[NgramSizes, float]
    draft: str = ""


@dataclass(frozen=True)
class Trial:
    """A draft launched at its longest K. `lengths`: steps of short requests; `own_ms`: one pass
    of the draft; `plain`: a plain step as this launch shows it (its step without a draft, less
    that pass); `curve`: K → predicted speed-up; `rows`: K → speed-up by answer, where no steps
    are seen that would tell it."""

    speculation: Speculation
    measurement: Measurement
    lengths: StepLog
    own_ms: float
    plain: StepCost
    curve: Mapping[int, Interval] = field(default_factory=dict)
    split: TimeSplit | None = None
    rows: Mapping[int, Ratios] = field(default_factory=dict)

    @property
    def steps(self) -> StepLog:
        """All steps seen."""
        return StepLog(self.measurement.log.steps + self.lengths.steps)

    @property
    def own_share(self) -> float:
        """Of a step without a draft: the draft's pass over the token."""
        step = self.plain.ms + self.own_ms
        return self.own_ms / step if step > 0 else 0.0


@dataclass(frozen=True)
class Prediction:
    """A setting that may win. `known`: its speed-up for each text it was predicted from, where
    the text itself had no say in choosing it; `steps`: what was taken for a step, by how many
    tokens it drafts, as a multiple of a plain one ({} = not kept). `own`: the draft's pass over
    the token of a step without a draft, as a share of that step (None = not seen). `short`: as
    Plain has it."""

    speculation: Speculation
    known: Ratios
    source: str
    steps: Mapping[int, float] = field(default_factory=dict)
    own: float | None = None
    short: float = 1.0

    @property
    def speedup(self) -> Interval:
        return self.known.interval()


@dataclass(frozen=True)
class Deep:
    """The same arm with a long prompt before it: how many tokens, and what comes of it."""

    tokens: int
    alpha: float | None
    speedup: float


@dataclass(frozen=True)
class Arm:
    """A setting measured on prompts that did not choose it. `own`: its speed-up by prompt;
    `pooled`: with what was predicted for the prompts that chose it; `speedup`, `slower`: the
    figure with its interval, and the chance that it is slower than plain decoding. `plain_ms`:
    a plain step meanwhile. `same_text`: share of greedy answers equal to the plain server's
    (other batch shapes round differently: it need not be 1). `slots`: α of each, where there
    are several; `cut`: the budget ended before the answer was clear."""

    speculation: Speculation
    measurement: Measurement
    own: Ratios
    pooled: Ratios
    speedup: Interval
    slower: float
    plain_ms: float = 0.0
    predicted: Interval | None = None
    split: TimeSplit | None = None
    same_text: float | None = None
    slots: tuple[float | None, ...] = ()
    deep: Deep | None = None
    cut: bool = False

    @property
    def label(self) -> str:
        return label(self.speculation)


def label(s: Speculation | None) -> str:
    """An arm's name in tables: its methods, file, K and p_min."""
    if s is None:
        return "no speculation"
    out = "+".join(s.methods)
    if s.draft is not None:
        out += f" {shown_name(s.draft)}"
    if s.uses_draft:
        out += f" K={s.n_max}"
        if s.p_min:
            out += f" p_min={s.p_min:g}"
    if s.uses_ngram and s.ngram is not None:
        out += f" n={s.ngram.n} m={s.ngram.m}"
        if "ngram-map-k4v" in s.methods and s.ngram.min_hits > 1:
            out += f" min_hits={s.ngram.min_hits}"
    return out


def way(s: Speculation) -> str:
    """The name of a method with its file, whatever its length: for reasons that hold for all."""
    return "+".join(s.methods) + (f" {shown_name(s.draft)}" if s.draft is not None else "")


@dataclass(frozen=True)
class Dropped:
    """A way that was not pursued, and why, by name. `crashed`: its server ended."""

    what: str
    why: str
    crashed: bool = False


@dataclass(frozen=True)
class Tuned:
    """The answer for one workload. `best` None = speculation off; `reason` says why either way.
    `state`: decided, open (cut short: to be continued), crashed (a server ended, so that
    nothing is known of it) or forced. `plain` None: it was known from an earlier start."""

    workload: str
    plain: Plain | None
    trials: tuple[Trial, ...]
    maps: tuple[NgramMap, ...]
    predictions: tuple[Prediction, ...]
    arms: tuple[Arm, ...]
    best: Arm | None
    reason: str
    dropped: tuple[Dropped, ...]
    loads: int
    seconds: float
    state: str = DECIDED
