"""The tuner against an exhaustive grid, in one run: `python benchmarks/tuning.py [--quick]`.

Targets of 100 to 200 million parameters that say what the tiny models say, with a draft model,
an MTP head and n-grams, on code, prose and copy-edits. Every setting of the grid is measured in
turn with a plain server, prompt by prompt; the tuner is judged by what the grid says of the
setting it chose. Ratios only: the machine is noisy. The best of a noisy grid flatters itself:
where the tuner chose otherwise, its choice and the grid's best are launched again and asked in
turn, and that ratio is what "÷ best" says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.large_target import build
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.planning.plan import Plan
from specllama.planning.prepare import Wish, prepare
from specllama.serving.lab import Lab
from specllama.tuning.arms import label
from specllama.tuning.judge import shorter_ngram
from specllama.tuning.measure import Job, measure_beside
from specllama.tuning.run import Candidate, Task
from specllama.tuning.search import tune
from specllama.tuning.speedup import paired_ratio

MODELS = Path(__file__).parent.parent / "tests" / "models"
WORKLOADS = ("code", "text", "edit")


@dataclass(frozen=True)
class Size:
    """How much is measured: draft lengths, prompts and tokens of the grid, seconds of the tuner."""

    lengths: tuple[int, ...]
    prompts: int
    tokens: int
    budget: float


FULL = Size((1, 2, 3, 4, 5, 6, 7, 8), 12, 64, 60)
QUICK = Size((1, 2, 3, 4, 6, 8), 6, 32, 25)


@dataclass(frozen=True)
class Row:
    """One method on one workload. `grid`: setting → speed-up; `chosen`, `reason`: the
    tuner's answer; `share`: its speed ÷ the best setting's; seconds of tuner and grid."""

    method: str
    workload: str
    grid: dict[str, float]
    chosen: str
    reason: str
    share: float
    launches: int
    tuner_s: float
    grid_s: float

    @property
    def tuned(self) -> float:
        """The grid's speed-up of what the tuner chose."""
        return self.grid.get(self.chosen, 1.0)

    @property
    def best(self) -> float:
        return max(1.0, *self.grid.values())


class _Silent:
    def step(self, text: str, share: float) -> None:
        pass


def settings_of(method: str, base: Speculation, size: Size) -> list[Speculation]:
    """The grid of one method."""
    if base.uses_draft:
        return [replace(base, n_max=k, p_min=0.0) for k in size.lengths]
    grid = [base, shorter_ngram(base)]
    grid += [replace(base, ngram=NgramSizes(4, m)) for m in (4, 8)]
    return [g for g in grid if g is not None]


def measured_grid(
    lab: Lab, plan: Plan, grid: Sequence[Speculation], size: Size
) -> dict[str, float]:
    """Setting → speed-up over a plain server asked in turn."""
    job = Job(plan.workload.prompts[: size.prompts], plan.workload.sampling, size.tokens, False)
    out = {}
    with lab.serve(None) as plain:
        for spec in grid:
            with lab.serve(spec) as served:
                base, own = measure_beside(plain.client, served.client, job)
            out[label(spec)] = paired_ratio(
                [a.ms_per_token for a in base.answers], [a.ms_per_token for a in own.answers]
            ).value
    return out


def share_of_best(
    lab: Lab, plan: Plan, chosen: Speculation | None, best: Speculation | None, size: Size
) -> float:
    """Speed of the tuner's choice ÷ that of the grid's best, both launched anew."""
    if chosen == best:
        return 1.0
    job = Job(plan.workload.prompts, plan.workload.sampling, size.tokens, False)
    beside = replace(lab, log=lab.log.with_name("beside"))
    with lab.serve(chosen) as ours, beside.serve(best) as other:
        theirs, own = measure_beside(other.client, ours.client, job)
    return paired_ratio(
        [a.ms_per_token for a in theirs.answers], [a.ms_per_token for a in own.answers]
    ).value


def rows(engine: str, folder: Path, size: Size, ways: Sequence[str]) -> Iterator[Row]:
    """Every method on every workload."""
    large, mtp = folder / "large.gguf", folder / "mtp.gguf"
    build(large, 30, 8192)
    build(mtp, 30, 8192, MODELS / "mtp.gguf")
    cases = {
        "draft-simple": (large, Wish("code", MODELS / "draft.gguf")),
        "draft-mtp": (mtp, Wish("code", method="mtp")),
        "ngram-simple": (large, Wish("code", method="ngram-simple")),
    }
    for method in ways:
        model, wish = cases[method]
        for workload in WORKLOADS:
            settings = Settings(model, "127.0.0.1", 0, context=1024)
            plan = prepare(
                settings, replace(wish, workload=workload), ("-t", "1"), engine, check_port=False
            )
            base = plan.choice.speculation
            assert base is not None, plan.choice.because
            lab = Lab(plan, folder / "log")
            task = Task(
                workload=workload,
                prompts=plan.workload.prompts,
                sampling=plan.workload.sampling,
                chat=False,
                candidates=(Candidate(base, max(size.lengths)),),
                budget=size.budget,
                lengths=size.lengths if base.uses_draft else (),
            )
            started = time.monotonic()
            found = tune(lab, task, _Silent())
            between = time.monotonic()
            settings_tried = settings_of(method, base, size)
            grid = measured_grid(lab, plan, settings_tried, size)
            ended = time.monotonic()
            best = max(settings_tried, key=lambda s: grid[label(s)])
            chosen = found.best.speculation if found.best else None
            share = share_of_best(lab, plan, chosen, best if grid[label(best)] > 1 else None, size)
            yield Row(
                method,
                workload,
                grid,
                label(chosen),
                found.reason,
                share,
                found.launches,
                between - started,
                ended - between,
            )


def engine() -> str:
    """The native llama-server of the tests, one on PATH, else the embedded one."""
    return (
        os.environ.get("SPECLLAMA_TEST_LLAMA_SERVER") or shutil.which("llama-server") or "embedded"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a coarser grid and less time for the tuner: about half an hour",
    )
    parser.add_argument("--method", action="append", help="only this method; may repeat")
    args = parser.parse_args()
    ways = args.method or ["draft-simple", "draft-mtp", "ngram-simple"]
    done = []
    head = (
        f"{'method':13} {'workload':8} {'tuner chose':34} {'÷ plain':>7} {'best':>6} {'÷ best':>6}"
    )
    print(f"{head} launches  time ÷ grid's")
    with tempfile.TemporaryDirectory() as folder:
        for r in rows(engine(), Path(folder), QUICK if args.quick else FULL, ways):
            done.append(r)
            print(
                f"{r.method:13} {r.workload:8} {r.chosen:34} {r.tuned:7.2f} {r.best:6.2f} "
                f"{r.share:6.2f} {r.launches:8} {r.tuner_s / r.grid_s:14.2f}",
                flush=True,
            )
            cells = [f"{name.split()[-1]}: {v:.2f}" for name, v in r.grid.items()]
            print(f"{'':22} {'  '.join(cells)}")
            print(f"{'':22} {r.reason}", flush=True)
    shares = [r.share for r in done]
    print(
        f"tuned ÷ best of the grid: median {statistics.median(shares):.2f}, worst {min(shares):.2f}; "
        f"tuned ÷ plain: worst {min(r.tuned for r in done):.2f}; most launches "
        f"{max(r.launches for r in done)}; time ÷ the grid's: "
        f"{sum(r.tuner_s for r in done) / sum(r.grid_s for r in done):.2f}"
    )


if __name__ == "__main__":
    main()
