"""Measured data: the baseline, trials of drafts, predictions, confirmations, and the result of tuning."""

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

NO_TIME = "not enough time"
DECIDED, OPEN, CRASHED, FORCED = "decided", "open", "crashed", "forced"


@dataclass(frozen=True)
class RunningServer:
    """A running server. `log`: its output so far."""

    client: Client
    log: Callable[[], str]


class ServerRunner(Protocol):
    """Runs one server at a time."""

    def start(
        self, speculation: Speculation | None, tick: Callable[[], None], trace: bool = False
    ) -> RunningServer:
        """Stops the running server and starts another; `tick` is called while it loads.
        `trace`: its log must contain timings, which rules it out for serving.
        Raises EngineError if it does not start. None = no speculation flags at all."""

    def blame(self, error: EngineError) -> EngineError:
        """Why the server exited, if that caused the error; else the error itself."""

    def stop(self) -> None:
        """Stops the running server, if any."""


class Progress(Protocol):
    """Receives progress messages."""

    def step(self, text: str, share: float, left_s: float) -> None:
        """`share` of the budget is used, 0 to 1; `left_s` seconds of it are left."""


@dataclass(frozen=True)
class Baseline:
    """Measurements of one server without speculation. `limitations`: what this build does not
    report, with the consequence. `short_step`: the step of a two-token request ÷ a step within a
    response: the first step after a pause is often slower (caches, clocks, a rebuilt graph)."""

    measurement: Measurement
    costs: VerifyCosts
    limitations: tuple[str, ...] = ()
    load_s: float = 0.0
    short_step: float = 1.0


@dataclass(frozen=True)
class NgramSpeedups:
    """Predicted speed-up of every size of one n-gram method, alone or (`draft` = its label)
    combined with a draft that drafts where nothing can be copied."""

    method: str
    speedups: Mapping[NgramSizes, float]
    draft: str = ""


@dataclass(frozen=True)
class Trial:
    """A draft launched at its longest K. `lengths`: steps of short requests; `own_ms`: one pass
    of the draft; `plain_step`: a plain step in this launch (its step without a draft, less that
    pass); `curve`: K → predicted speed-up; `rows`: K → speed-up by response, for builds that do
    not report steps."""

    speculation: Speculation
    measurement: Measurement
    lengths: StepLog
    own_ms: float
    plain_step: StepCost
    curve: Mapping[int, Interval] = field(default_factory=dict)
    split: TimeSplit | None = None
    rows: Mapping[int, Ratios] = field(default_factory=dict)

    @property
    def steps(self) -> StepLog:
        """All observed steps."""
        return StepLog(self.measurement.log.steps + self.lengths.steps)

    @property
    def own_share(self) -> float:
        """The draft's pass over the token, as a share of a step without a draft."""
        step = self.plain_step.ms + self.own_ms
        return self.own_ms / step if step > 0 else 0.0


@dataclass(frozen=True)
class Prediction:
    """A setting that may win. `ratios`: its speed-up for each text, cross-validated: the text itself
    had no part in choosing the setting. `steps`: drafted tokens → assumed step time, as a multiple
    of a plain step ({} = not stored). `own_share`: as in Trial (None = not observed);
    `short_step`: as in Baseline."""

    speculation: Speculation
    ratios: Ratios
    source: str
    steps: Mapping[int, float] = field(default_factory=dict)
    own_share: float | None = None
    short_step: float = 1.0

    @property
    def speedup(self) -> Interval:
        return self.ratios.interval()


@dataclass(frozen=True)
class LongPromptResult:
    """A setting measured after long prompts of `tokens` tokens."""

    tokens: int
    alpha: float | None
    speedup: float
    responses: int = 1


@dataclass(frozen=True)
class Confirmation:
    """A setting measured on prompts that had no part in choosing it. `ratios`: its speed-up by
    prompt; `pooled_ratios`: with the predictions for the prompts that chose it; `speedup`, `slower`:
    the estimate with its interval, and the chance of being slower than plain decoding.
    `plain_ms`: a plain step during the measurement. `same_text`: share of greedy responses equal
    to the baseline's (not always 1: batch shapes change rounding). `slots`: α of each slot, if
    there are several; `out_of_time`: the budget ended before the result was clear."""

    speculation: Speculation
    measurement: Measurement
    ratios: Ratios
    pooled_ratios: Ratios
    speedup: Interval
    slower: float
    plain_ms: float = 0.0
    predicted: Interval | None = None
    split: TimeSplit | None = None
    same_text: float | None = None
    slots: tuple[float | None, ...] = ()
    deep: LongPromptResult | None = None
    out_of_time: bool = False

    @property
    def label(self) -> str:
        return setting_label(self.speculation)


def setting_label(s: Speculation | None) -> str:
    """A setting's name in tables: methods, file, K and p_min."""
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


def method_label(s: Speculation) -> str:
    """Method and file without K: for reasons that apply to every draft length."""
    return "+".join(s.methods) + (f" {shown_name(s.draft)}" if s.draft is not None else "")


@dataclass(frozen=True)
class DroppedSetting:
    """A setting that was not pursued, and why. `crashed`: its server died. `predicted`: its
    speed-up, if that is the reason."""

    setting: str
    reason: str
    crashed: bool = False
    predicted: float | None = None


@dataclass(frozen=True)
class TuningResult:
    """The result for one workload. `best` None = speculation off; `reason` explains either way.
    `state`: decided, open (ran out of time, to be continued), crashed (a server died, so that
    its speed is unknown) or forced. `baseline` None = known from an earlier start."""

    workload: str
    baseline: Baseline | None
    trials: tuple[Trial, ...]
    ngrams: tuple[NgramSpeedups, ...]
    predictions: tuple[Prediction, ...]
    confirmations: tuple[Confirmation, ...]
    best: Confirmation | None
    reason: str
    dropped: tuple[DroppedSetting, ...]
    loads: int
    seconds: float
    state: str = DECIDED


def decoding_speed(
    baseline: Baseline | None, measurement: Measurement, speedup: Interval | None
) -> float:
    """Tokens per second of a setting: the baseline's speed times the speed-up, if both are known,
    because a machine's speed drifts between one measurement and the next."""
    if baseline is None or speedup is None:
        return measurement.tokens_per_second
    return baseline.measurement.tokens_per_second * speedup.value
