"""`specllama doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from specllama.cli.options import AsJson, LlamaServer, Quiet

if TYPE_CHECKING:
    from specllama.doctor.findings import (
        DoctorReport,
        EngineReport,
        FolderReport,
        ModelFolder,
        UserSettings,
    )


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    ctx: typer.Context,
    llama_server: LlamaServer = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check engines, devices, folders and settings, and report problems.

    Starts each engine briefly with built-in test models. The output can be pasted into
    an issue: it contains no keys, user names or host names. Exits with 1 if serve cannot work.
    """
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.cli.serve_lines import ServeReport
    from specllama.doctor.examine import examine

    no_passthrough(ctx.obj or (), "doctor")
    printer = Printer(as_json, quiet)
    report = examine(llama_server, ServeReport(printer))
    if as_json:
        printer.json({**asdict(report), "works": report.works})
    else:
        for line in found_lines(report):
            printer.detail(line)
        for line, style in problem_lines(report):
            printer.say(line, style)
    if not report.works:
        raise typer.Exit(1)


def problem_lines(r: DoctorReport) -> Iterator[tuple[str, str | None]]:
    """(line, style): what is wrong, and what to do about it."""
    for p in r.problems:
        yield (
            f"{'problem ' if p.serious else 'note    '} {p.what}",
            "red" if p.serious else "yellow",
        )
        if p.advice:
            yield f"         {p.advice}", None
    if not r.problems:
        yield "no problems found", "green"
    elif r.works:
        yield "serve works here; see the notes above", "green"


def found_lines(r: DoctorReport) -> Iterator[str]:
    from specllama.cli.units import mib

    main = ("specllama", "python")
    yield f"versions {', '.join(f'{name} {r.versions[name]}' for name in main)}"
    others = ", ".join(f"{k} {v}" for k, v in r.versions.items() if k not in main)
    yield f"packages {others}"
    yield f"system   {'; '.join(r.system.values())}"
    for e in r.engines:
        yield from _engine(e, r.settings is not None and bool(r.settings.config_problem))
    for d in r.devices:
        used = f"; used by {d.others}" if d.others else ""
        yield f"device   {d.name}, {d.label}: {mib(d.free)} free of {mib(d.total)}{used}"
    for f in r.folders:
        yield _folder(f)
    for m in r.models:
        yield _models(m)
    if r.settings is not None:
        yield from _settings(r.settings)


def _engine(e: EngineReport, broken: bool) -> Iterator[str]:
    """`broken`: the config file is invalid, so no engine was started."""
    if e.problem:
        yield f"engine   {e.name}: cannot be used; {e.reason}"
        return
    yield f"engine   {e.name}: {e.label}; {e.reason}{' (serve uses this one)' if e.used else ''}"
    yield f"         {', '.join(e.backends)}; {', '.join(e.spec_types) or 'no --spec-type'}"
    if e.start is None and broken:
        yield "         not started: fix the config file first"
    elif e.start is None:
        yield "         not started: the engines above are tried first"
    elif e.start.started and e.start.drafted:
        yield f"         starts with the test models: {e.start.message}"
    else:
        yield f"         failed to start with the test models: {e.start.message}"


def _folder(f: FolderReport) -> str:
    from specllama.cli.units import mib

    counts = ((n, what if n > 1 else what.removesuffix("s")) for what, n in f.holds.items())
    holds = [f"{n} {what}" for n, what in counts if n]
    if f.bytes:
        holds.append(mib(f.bytes))
    free = f"{mib(f.free)} free on its disk" if f.free is not None else ""
    if not f.exists:
        state = f"cannot be created ({f.unwritable})" if f.unwritable else "can be created"
    else:
        can = f"not writable ({f.unwritable})" if f.unwritable else "writable"
        state = f"{can}; {', '.join(holds) or 'empty'}"
    return f"{f.what:<8} {f.path}: {state}{', ' if free else ''}{free}"


def _models(m: ModelFolder) -> str:
    from specllama.cli.units import plural

    if not m.exists:
        return f"models   {m.path}: not found"
    return f"models   {m.path}: {plural(m.models, 'GGUF file')}"


def _settings(s: UserSettings) -> Iterator[str]:
    yield f"settings {s.config}: {'read' if s.config_exists and not s.config_problem else 'invalid' if s.config_problem else 'not found'}"
    for path in s.llama_config:
        yield f"settings {path}: llama.cpp's config, read"
    for name in s.profiles:
        yield f"profile  {name} (your own)"
    variables = (
        f"{k}={v}" if v not in ("set", "empty") else f"{k} {v}" for k, v in s.variables.items()
    )
    if listed := ", ".join(variables):
        yield f"variable {listed}"
