"""The tuner against an exhaustive grid on real models: `python -m benchmarks.real [--quick]`.

In each case the tuner runs as `serve` runs it, at its default budget and with nothing remembered.
Then its choice, plain decoding and every setting of a grid answer held-out prompts
(benchmarks/prompts), each prompt one after the other, and once more its choice, plain and the best of the grid on other
ones: the best of a noisy grid flatters itself, so "kept" counts these answers only. Prints one
row for each case and repetition, what the goals say of them, then the grids.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import ground
from benchmarks.grid import Bench, Setting
from benchmarks.scores import Row, header, predicted, summary
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.planning.plan import Plan
from specllama.planning.prepare import prepare, usable_engine
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving.scope import SearchScope
from specllama.serving.tune import AUTO, TuningOptions, TuningOutcome, tune_plan
from specllama.tuning.records import setting_label

_PROMPTS = Path(__file__).parent / "prompts"
_CONTEXT = 4096
_THREADS = ("-t", "1")
_BUDGET = 60.0  # of `serve`, by default
_GUIDE_K, _GUIDE_NGRAM = 4, (12, 48)
_PLAIN, _SPEC_DEFAULT = "plain", "--spec-default"
_HOPELESS = 0.97  # a grid whose best setting is slower is not measured again
_CHARACTERS = 4  # in a token, roughly


@dataclass(frozen=True)
class Case:
    """`draft`: small (a separate model), mtp (a head in the target) or none."""

    name: str
    workload: str
    draft: str


CASES = (
    Case("code-draft", "code", "small"),
    Case("chat-draft", "chat", "small"),
    Case("text-draft", "text", "small"),
    Case("edit-ngram", "edit", "none"),
    Case("code-ngram", "code", "none"),
    Case("code-mtp", "code", "mtp"),
)


@dataclass(frozen=True)
class Size:
    """How much is measured. `ngrams`: (n, m) of ngram-simple; `asked`: prompts in a round;
    `tokens` of an answer with a draft, and without (copies come late in an answer, and the
    tuner's own answers are longer there too); `long`: tokens of a prompt that is evaluated by each server, and by one; `limit`: seconds
    after which a case leaves out its last pass."""

    lengths: tuple[int, ...]
    ngrams: tuple[tuple[int, int], ...]
    asked: int
    tokens: tuple[int, int]
    long: tuple[int, int]
    limit: float


_NGRAMS = ((12, 48), (4, 8), (3, 6), (4, 16), (2, 8), (6, 12))
_MORE = ((8, 16), (4, 4), (3, 16), (8, 32))
FULL = Size((1, 2, 3, 4, 6, 8), _NGRAMS + _MORE, 3, (48, 96), (300, 1200), float("inf"))
QUICK = Size((1, 2, 3, 4, 6), _NGRAMS, 2, (40, 64), (100, 420), 140.0)


@dataclass
class _Say:
    """Progress of tuner and grid, on stderr."""

    case: str
    last: str = ""

    def __call__(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')} {self.case}] {text}", file=sys.stderr, flush=True)

    def step(self, text: str, share: float, left_s: float) -> None:
        if text and text != self.last:
            self.last = text
            self(f"tuner, {left_s:.0f} s left: {text}")


@dataclass
class Ground:
    """One case, its models in a folder of their own: the tuner and the bench."""

    case: Case
    size: Size
    engine: str
    model: Path
    draft: Path | None
    folder: Path
    say: _Say
    bench: Bench = field(init=False)

    def __post_init__(self) -> None:
        self.bench = Bench(
            prompts=self._prompts(),
            tokens=self.size.tokens[self.case.draft == "none"],
            folder=self.folder,
            kept=self.folder if self.case.draft == "none" else None,
            say=self.say,
        )

    def _prompts(self) -> list[str]:
        """The held-out prompts that are not too long for this machine, ordered shortest, longest, and
        so on: a round uses only a few, and n-grams need long ones."""
        text = (_PROMPTS / f"{self.case.workload}.txt").read_text(encoding="utf-8")
        found = [p.strip("\n") for p in text.split("\n=====\n") if p.strip()]
        most = self.size.long[self.case.draft == "none"] * _CHARACTERS
        fitting = sorted((p for p in found if len(p) <= most), key=len)
        in_turn = (p for pair in zip(fitting, fitting[::-1], strict=True) for p in pair)
        return list(dict.fromkeys(in_turn))

    def turns(self, number: int) -> list[list[int]]:
        """The prompts of a repetition's three rounds, by number, cyclically."""
        n, total = self.size.asked, len(self.bench.prompts)
        starts = [(number * 3 + turn) * n for turn in range(3)]
        return [[(start + i) % total for i in range(min(n, total))] for start in starts]

    def plan(self, *user: str, method: str | None = None) -> Plan:
        spec_options = SpeculationOptions(
            self.case.workload, None if method else self.draft, method
        )
        settings = Settings(self.model, "127.0.0.1", 0, context=_CONTEXT)
        return prepare(settings, spec_options, (*_THREADS, *user), self.engine, check_port=False)

    def tune(self) -> tuple[TuningOutcome, float]:
        """The result of `serve`'s first tuning, and the seconds it takes."""
        plan = self.plan()
        wanted = TuningOptions(AUTO, _BUDGET, SearchScope(user_choice=self.draft is not None))
        started = time.monotonic()
        outcome = tune_plan(plan, wanted, self.folder / "tuner.log", self.say)
        seconds = time.monotonic() - started
        if outcome.running is not None:
            outcome.running.stop()
        return outcome, seconds

    def settings(self) -> list[Setting]:
        """Plain, and the grid."""
        plan = self.plan("--slot-save-path", str(self.folder))
        base = plan.choice.speculation
        specs: list[Speculation] = []
        if base is not None and base.uses_draft:
            alone = tuple(m for m in base.methods if m.startswith("draft-"))
            drafting = replace(base, methods=alone, ngram=None, p_min=0.0)
            specs += [replace(drafting, n_max=k) for k in self.size.lengths]
        if self.case.draft != "small":
            sizes = self.size.ngrams if self.case.draft == "none" else self.size.ngrams[:3]
            specs += [Speculation(("ngram-simple",), ngram=NgramSizes(*s)) for s in sizes]
        found = [Setting(_PLAIN, plan), *(Setting(_name(s), plan, s, _guides(s)) for s in specs)]
        theirs = self.plan("--slot-save-path", str(self.folder), _SPEC_DEFAULT, method="none")
        found.append(Setting(_SPEC_DEFAULT, theirs, default=True))
        return found


def _name(s: Speculation | None) -> str:
    """A short name for a table."""
    if s is None:
        return _PLAIN
    words = [w for w in setting_label(s).split() if not w.endswith(".gguf") and "=" not in w]
    words += [f"K={s.n_max}"] if s.uses_draft else []
    words += [f"p_min={s.p_min:g}"] if s.uses_draft and s.p_min else []
    if s.uses_ngram and s.ngram is not None:
        words.append(f"{s.ngram.n}/{s.ngram.m}")
        words += [f"hits {s.ngram.min_hits}"] if s.ngram.min_hits > 1 else []
    return " ".join(words)


def _guides(s: Speculation) -> bool:
    if s.uses_draft:
        return s.n_max == _GUIDE_K
    return s.ngram is not None and (s.ngram.n, s.ngram.m) == _GUIDE_NGRAM


def rows(case: Case, size: Size, engine: str, models: ground.Models, repeat: int) -> Iterator[Row]:
    """Repeats the case. The grid's responses are kept from one repetition to the next."""
    say = _Say(case.name)
    with ground.fresh_home(models.folder) as folder:
        target = models.mtp if case.draft == "mtp" else models.large
        files = (target, models.draft) if case.draft == "small" else (target,)
        model, *drafts = ground.alone(folder / "models", *files)
        here = Ground(case, size, engine, model, drafts[0] if drafts else None, folder, say)
        grids: list[int] = []
        for number in range(repeat):
            started = time.monotonic()
            with ground.fresh_home(folder):
                outcome, seconds = here.tune()
            say(f"tuner: {outcome.plan.choice.reason or outcome.source} ({seconds:.0f} s)")
            with here.bench:
                yield _row(here, number, outcome, seconds, grids, started + size.limit)


def _row(
    here: Ground,
    number: int,
    outcome: TuningOutcome,
    seconds: float,
    grids: list[int],
    until: float,
) -> Row:
    """Measures grid and choice. `grids`: the grid's rounds so far, to which one is added."""
    found, spec = outcome.tuned, outcome.plan.settings.speculation
    settings = here.settings()
    tuned = _among(settings, spec)
    confirmations = settings if tuned in settings else [*settings, tuned]
    asked = here.turns(number)
    grids.append(here.bench.round(confirmations, asked[0]))
    ratio = here.bench.found.ratio
    gains = {s.name: ratio(s.name, _PLAIN, grids) for s in settings[1:]}
    best = max(settings[1:], key=lambda s: gains[s.name].value)
    if gains[best.name].value < _HOPELESS:
        best = settings[0]
    last = [s for s in confirmations if s in (settings[0], tuned, best)]
    finals = [here.bench.round(last, asked[1])] if len(last) > 1 else []
    if finals and time.monotonic() < until:
        finals.append(here.bench.round(last, asked[2]))
    defaults = [s for s in settings if s.default]
    default = max(defaults, key=lambda s: gains[s.name].value, default=settings[0])
    return Row(
        case=here.case.name,
        chosen=tuned.name,
        on=spec is not None,
        plain=ratio(tuned.name, _PLAIN),
        kept=ratio(tuned.name, best.name, finals),
        best=best.name,
        best_gain=ratio(best.name, _PLAIN, finals),
        default=default.name,
        by_default=ratio(tuned.name, default.name),
        loads=found.loads if found is not None else 0,
        load_s=found.baseline.load_s if found is not None and found.baseline is not None else 0.0,
        seconds=seconds,
        swing=here.bench.found.swing(_PLAIN),
        grid={s.name: (gains[s.name], predicted(found, s.speculation)) for s in settings[1:]},
        reason=outcome.plan.choice.reason or outcome.source,
        own=predicted(found, spec),
    )


def _among(settings: Sequence[Setting], spec: Speculation | None) -> Setting:
    """The grid's setting that the tuner chose, or one of its own."""
    known = {s.name: s for s in settings}
    name = _name(spec)
    return known.get(name) or Setting(f"{name} (tuned)", settings[0].plan, spec)


def _named(engine: str) -> str:
    """A native server by the folder that it was installed to."""
    return Path(engine).parent.parent.name if Path(engine).is_absolute() else engine


def main(argv: Sequence[str] | None = None) -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument(
        "--quick", action="store_true", help="a coarser grid, fewer answers: under 20 minutes"
    )
    names = [c.name for c in CASES]
    ap.add_argument("--case", action="append", choices=names, help="only this; may repeat")
    ap.add_argument("--repeat", type=int, default=1, help="times that each case is run")
    args = ap.parse_args(argv)
    size = QUICK if args.quick else FULL
    engine, models = ground.engine(), ground.models()
    used, caps = usable_engine(engine)
    build = f"{_named(used.label)} ({caps.label})"
    print(f"{ground.machine()}; one thread; {build}; {time.strftime('%Y-%m-%d')}\n")
    print(header(), flush=True)
    done: list[Row] = []
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        for row in rows(case, size, engine, models, args.repeat):
            done.append(row)
            print(row.line(), flush=True)
    print(f"\n{summary(done, _BUDGET)}\n\nThe grids: measured (predicted by the tuner)\n")
    for row in done:
        print(row.details())


if __name__ == "__main__":
    main()
