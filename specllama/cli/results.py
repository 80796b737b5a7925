"""`specllama results`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.differences import differences
from specllama.cli.options import AsJson, Verbose
from specllama.drafts.ollama import shown_name

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.tuning.results import Result
    from specllama.tuning.step_times import StepTimes
    from specllama.watching.switches import SwitchRecord
    from specllama.watching.traffic import Traffic

_SWITCHES = 5  # shown
_RIGHT = ("best speed-up", "chance slower", "tok/s")  # aligned to the right
_SPARE = ("prompts", "chance slower", "measured")  # left out first on a narrow terminal
_LONGEST = 100  # characters of a reason in the list


def register(app: typer.Typer) -> None:
    app.command("results")(results)


def results(
    ctx: typer.Context,
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="Only results of this GGUF file.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete the results.")] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Show or clear saved measurements.

    serve and plan start from these results. Real requests of past servers are listed too.
    """
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.errors import UsageError
    from specllama.tuning.results import all_results, clear_results
    from specllama.watching import switches, traffic

    no_passthrough(ctx.obj or (), "results")
    printer = Printer(verbose=verbose)
    missing = f"{model}: no such file" if model is not None and not model.exists() else ""
    if clear:
        counts = (clear_results(model), traffic.clear(model), switches.clear(model))
        if missing and not any(counts):
            raise UsageError(missing)
        if as_json:
            printer.json({"cleared": sum(counts)})
        else:
            printer.say(f"{cleared(*counts)} deleted")
        return
    target = str(model.absolute()) if model is not None else None
    found = [r for r in all_results() if target in (None, r.target)]
    requests = [t for t in traffic.all_traffic() if target in (None, t.subject.target)]
    changes = [s for s in switches.all_switches() if target in (None, s.target)]
    if missing and not found and not requests and not changes:
        raise UsageError(missing)
    if as_json:
        real = [traffic_data(t, found) for t in requests]
        switched = [asdict(s) for s in changes]
        printer.json(
            {
                "results": [result_data(r) for r in found],
                "real_requests": real,
                "switches": switched,
            }
        )
        return
    if not found and not requests and not changes:
        what = f" for {model}" if model is not None else ""
        printer.say(f"no results{what} yet: run `specllama probe MODEL` or `specllama serve MODEL`")
        return
    found = [r for r in found if not _repeats(r, found)]
    differing = differences(found)
    if found:
        printer.table(_table(found, differing), _SPARE)
    for r, difference in zip(found, differing, strict=True):
        if r.speculation is None:
            reason = r.reason if verbose else brief(r.reason)
            name = f"{shown_name(Path(r.target))}, {r.workload}"
            which = f" ({difference})" if difference else ""
            printer.say(f"off      {name}{which}: {reason}")
    for line in _option_lines(found) if verbose else ():
        printer.say(line)
    for line in (*traffic_lines(requests, found), *switch_lines(changes)):
        printer.say(line)


def _repeats(r: Result, found: Sequence[Result]) -> bool:
    """Whether it is what `probe --all` saved for itself, and also as the usual result."""
    options = tuple(word for word in r.options or () if word != "everything")
    return options != r.options and any(
        (x.target, x.workload, x.options, x.reason, x.speedup, x.tokens_per_second)
        == (r.target, r.workload, options, r.reason, r.speedup, r.tokens_per_second)
        for x in found
    )


def cleared(measured: int, requests: int, switched: int) -> str:
    """The number of results, records of real requests and switches, the last two if any."""
    from specllama.cli.units import plural

    parts = [plural(measured, "result")]
    if requests:
        parts.append(f"{plural(requests, 'record')} of real requests")
    if switched:
        parts.append(f"{switched:,} {'switch' if switched == 1 else 'switches'}")
    return ", ".join(parts)


def _option_lines(found: Sequence[Result]) -> Iterator[str]:
    """With -v: what each result was measured with."""
    from specllama.tuning.other_options import option_text

    for r in found:
        words = [option_text(word, r.prompts) for word in r.options or ()]
        name = f"{shown_name(Path(r.target))}, {r.workload}, {r.label}"
        yield f"with     {name}: {', '.join(words) or 'options unknown'}"


def switch_lines(changes: Sequence[SwitchRecord]) -> Iterator[str]:
    """The latest switches by --adaptive, newest first."""
    from specllama.tuning.results import format_time

    for s in changes[:_SWITCHES]:
        name = f"{shown_name(Path(s.target))}, {s.workload}"
        yield f"switch   {format_time(s.when)} {name}: {s.before} → {s.after}: {s.reason}"


def traffic_lines(requests: Sequence[Traffic], known: Sequence[Result]) -> Iterator[str]:
    """The results of real requests, one line per setting that served them."""
    from specllama.watching.verdict import TrafficVerdict, sentence

    for t in requests:
        for s in t.settings:
            if s.counts.alpha is not None:
                name = f"{shown_name(Path(t.subject.target))}, {t.subject.workload}, {s.label}"
                summary = sentence(s.summary(_times(t, known)), TrafficVerdict(), adaptive=True)
                yield f"real     {name}: {summary}"


def traffic_data(t: Traffic, known: Sequence[Result]) -> dict[str, Any]:
    from specllama.watching.figures import summary_data

    times = _times(t, known)
    return {
        "target": t.subject.target,
        "workload": t.subject.workload,
        "since": t.since,
        "days": t.days,
        "settings": [
            {"speculation": s.label, "when": s.when, **summary_data(s.summary(times))}
            for s in t.settings
        ],
    }


def _times(t: Traffic, known: Sequence[Result]) -> StepTimes | None:
    """Its step times: measured while idle, else by tuning."""
    from specllama.tuning.records import method_label

    if t.times is not None:
        return t.times
    for r in known:
        spec = r.speculation or (r.tried.speculation if r.tried else None)
        about = (r.target, r.workload) == (t.subject.target, t.subject.workload)
        if about and spec is not None and method_label(spec) == t.subject.method:
            return r.times
    return None


def brief(reason: str) -> str:
    """The first clause of a reason, on one line."""
    first = reason.split("; ")[0]
    if len(first) > _LONGEST:
        end = first.rfind(" ", 0, _LONGEST)
        first = first[: end if end > 0 else _LONGEST]
    return first if first == reason else f"{first.rstrip(' ,:;')} …"


def result_data(r: Result) -> dict[str, Any]:
    return {
        "target": r.target,
        "workload": r.workload,
        "state": r.state,
        "speculation": r.label,
        "reason": r.reason,
        "speedup": list(r.speedup) if r.speedup else None,
        "chance_slower": r.slower,
        "tokens_per_second": r.tokens_per_second,
        "prompts": r.prompts,
        "texts": r.texts,
        "options": list(r.options) if r.options is not None else None,
        "engine": r.engine,
        "devices": list(r.devices),
        "since": r.since,
        "when": r.when,
    }


def _table(found: Sequence[Result], differing: Sequence[str]) -> Table:
    """One row per result. Where several have the same model and workload, a column shows what
    they differ in."""
    from rich.table import Table

    from specllama.cli.probe_table import chance
    from specllama.cli.tuning_lines import interval_text
    from specllama.tuning.results import format_time

    names = ["model", "workload", "state", "served with", "best speed-up", "chance slower", "tok/s"]
    names += ["prompts", "measured"]
    if any(differing):
        names.append("differs by")
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        out.add_column(name, justify="right" if name in _RIGHT else "left")
    for r, difference in zip(found, differing, strict=True):
        source = "own" if r.prompts == "yours" else "the profile's"
        out.add_row(
            shown_name(Path(r.target)),
            r.workload,
            r.state,
            r.label,
            interval_text(r.speedup),
            chance(r.slower) if r.slower is not None else "",
            f"{r.tokens_per_second:.1f}" if r.tokens_per_second is not None else "",
            f"{r.texts} of {source}" if r.texts else "",
            format_time(r.when),
            *([difference] if any(differing) else []),
        )
    return out
