"""The runs behind `specllama probe MODEL`: dry runs, measurements, replays; with their output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.planning.plan import Plan
    from specllama.serving.probe import ProbeOptions, ProbeResult


def show_unseen(printer: Printer, plan: Plan) -> None:
    from specllama.cli.render import plan_data, plan_lines

    for line in plan_lines(plan, printer.verbose):
        printer.detail(line)
    if printer.as_json:
        printer.json(plan_data(plan))


def show_planned(printer: Printer, options: ProbeOptions) -> None:
    from specllama.cli.planned_lines import planned_data, planned_lines
    from specllama.serving.probe import plan_probes

    each = list(plan_probes(options))
    if printer.as_json:
        printer.json({"workloads": [planned_data(p) for p in each]})
        return
    for p in each:
        printer.lines(planned_lines(p), results=("measure", "predict"))


def measured(printer: Printer, options: ProbeOptions) -> tuple[ProbeResult, ...]:
    """The results; after Ctrl-C or another signal, those measured so far."""
    from specllama.logs import new_log
    from specllama.serving.probe import run_probe
    from specllama.tuning.errors import NothingMeasured

    log = new_log(0).with_suffix(".probe.log")
    try:
        with printer.progress("probing") as progress:
            return run_probe(options, log, progress)
    except KeyboardInterrupt:
        raise NothingMeasured("stopped before anything was measured") from None


def show(printer: Printer, found: tuple[ProbeResult, ...], outputs: Mapping[str, Path]) -> None:
    """Prints the results and writes the files. `outputs`: option → file."""
    from specllama.cli import probe_lines as lines
    from specllama.cli import probe_table
    from specllama.cli.output import save

    if printer.as_json:
        printer.json({"workloads": [lines.data(p) for p in found]})
    else:
        for p in found:
            printer.say(lines.title(p), "bold")
            if p.plan.workload.mixed:
                printer.detail(f"workload {p.plan.workload.mixed}")
            printer.table(probe_table.table(p), probe_table.SPARE)
            printer.lines(lines.below_table(p, printer.verbose), results=("verdict", "run"))
    for option, path in outputs.items():
        save(path, _output(option, path, found), option)
        printer.say(f"{option.removeprefix('--'):<8} {path}")


def show_unreached(printer: Printer, options: ProbeOptions, reached: int) -> None:
    """Names the workloads that a stopped probe did not get to."""
    names = [s.workload for s in options.spec_options_list[reached:]]
    if names and not printer.as_json:
        printer.say(f"stopped before {', '.join(names)} could be measured")


def _output(option: str, path: Path, found: tuple[ProbeResult, ...]) -> bytes:
    """The file's content. Names that are not valid Unicode are written with escapes."""
    if option == "--plot":
        from specllama.cli.plot_file import plot_image

        return plot_image(found, path)
    if option == "--report":
        from specllama.cli.report import html

        return html(found).encode("utf-8", "backslashreplace")
    from specllama.cli.probe_csv import csv_text

    return csv_text(found).encode("utf-8", "backslashreplace")


def show_replay(printer: Printer, options: ProbeOptions, file: Path, dry_run: bool) -> None:
    """Predicts the speed-up of every setting on past conversations."""
    from specllama.cli import replay_lines as lines
    from specllama.logs import new_log
    from specllama.serving.replay import plan_replay, replay_conversations
    from specllama.tuning.conversations import read_conversations
    from specllama.tuning.errors import NothingMeasured

    source = read_conversations(file)
    if dry_run:
        p = plan_replay(options)
        if printer.as_json:
            printer.json(lines.planned_replay_data(p, source))
        else:
            printer.lines(lines.planned_replay_lines(p, source), results=("replay", "read"))
        return
    try:
        with printer.progress("replay") as progress:
            found = replay_conversations(
                options, source, new_log(0).with_suffix(".replay.log"), progress
            )
    except KeyboardInterrupt:
        raise NothingMeasured("stopped before anything was replayed") from None
    if printer.as_json:
        printer.json(lines.data(found))
        return
    printer.say(lines.title(found), "bold")
    printer.table(lines.table(found), lines.SPARE)
    printer.lines(lines.below_table(found), results=("verdict", "run"))
