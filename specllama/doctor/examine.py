"""Runs all checks, one after the other. A check that fails does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from specllama.doctor import environment, folders
from specllama.doctor.engines import examine_engine
from specllama.doctor.findings import DoctorReport, Problem
from specllama.doctor.problems import problems
from specllama.doctor.redaction import redacted, this_machine
from specllama.engine.locate import Engine, everything
from specllama.errors import SpecllamaError
from specllama.serving.launch import Reporter

T = TypeVar("T")
_MAX_STARTED = 4  # LM Studio alone may have ten


class _Checks:
    """Runs the checks. `failed`: those that could not run."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self.failed: list[Problem] = []

    def run(self, what: str, check: Callable[[], T]) -> T | None:
        """The result of `check`; None if it fails because of the machine."""
        try:
            with self._report.busy(f"checking {what} …"):
                return check()
        except (SpecllamaError, OSError, RuntimeError, ValueError) as e:
            reason = e.message if isinstance(e, SpecllamaError) else f"{type(e).__name__}: {e}"
            self.failed.append(Problem(f"could not check {what}: {reason}", "", serious=False))
            return None


def examine(llama_server: str | None, report: Reporter) -> DoctorReport:
    """The complete report, safe to publish. `llama_server`: check only this engine. Starts engines,
    one after the other. Errors of the machine are part of the report."""
    checks = _Checks(report)
    nothing: tuple[tuple[Engine, ...], tuple[SpecllamaError, ...]] = ((), ())
    found, wrong = checks.run("engines", lambda: everything(llama_server)) or nothing
    used = found[0] if found and not wrong else None
    settings = checks.run("settings", lambda: environment.settings(os.environ))
    # with a broken config file every start would fail for the same reason
    most = 0 if settings is not None and settings.config_problem else _MAX_STARTED
    reports = [
        (
            engine,
            checks.run(engine.label, partial(examine_engine, engine, engine is used, i < most)),
        )
        for i, engine in enumerate(found)
    ]
    usable = next((engine for engine, e in reports if e is not None and not e.problem), None)
    have = checks.run("devices", lambda: environment.devices(usable))
    whole = DoctorReport(
        versions=environment.versions(),
        system=checks.run("the system", environment.system) or {},
        engines=tuple(e for _, e in reports if e is not None),
        wrong_engines=tuple(Problem(e.message, e.hint) for e in wrong),
        devices=have[0] if have else (),
        device_note=have[1] if have else "",
        nvidia=checks.run("NVIDIA's driver", environment.nvidia) or (),
        folders=checks.run("folders", lambda: tuple(folders.own_folders())) or (),
        models=checks.run("model folders", lambda: tuple(folders.model_folders())) or (),
        settings=settings,
    )
    whole = replace(whole, failed=tuple(checks.failed))
    return redacted(replace(whole, problems=problems(whole)), this_machine())
