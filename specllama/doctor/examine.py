"""Looks at everything, one part after the other: what cannot be looked at does not hide the rest."""

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
_MOST_STARTED = 4  # LM Studio alone may have ten


class _Parts:
    """One part of the report after the other. `failed`: those that could not be looked at."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self.failed: list[Problem] = []

    def see(self, what: str, find: Callable[[], T]) -> T | None:
        """What `find` finds; None where that fails for a reason that lies in the machine."""
        try:
            with self._report.busy(f"looking at {what} …"):
                return find()
        except (SpecllamaError, OSError, RuntimeError, ValueError) as e:
            said = e.message if isinstance(e, SpecllamaError) else f"{type(e).__name__}: {e}"
            self.failed.append(Problem(f"{what} cannot be looked at: {said}", "", serious=False))
            return None


def examine(llama_server: str | None, report: Reporter) -> DoctorReport:
    """The whole report, safe to be shown to anybody. `llama_server`: look at this engine only.
    Starts engines, one after the other. Raises nothing that has a cause in the machine."""
    parts = _Parts(report)
    nothing: tuple[tuple[Engine, ...], tuple[SpecllamaError, ...]] = ((), ())
    found, wrong = parts.see("engines", lambda: everything(llama_server)) or nothing
    used = found[0] if found and not wrong else None
    settings = parts.see("settings", lambda: environment.settings(os.environ))
    # no engine is started by broken settings: that would be said of every one of them
    most = 0 if settings is not None and settings.config_problem else _MOST_STARTED
    seen = [
        (engine, parts.see(engine.label, partial(examine_engine, engine, engine is used, i < most)))
        for i, engine in enumerate(found)
    ]
    answers = next((engine for engine, e in seen if e is not None and not e.problem), None)
    have = parts.see("devices", lambda: environment.devices(answers))
    whole = DoctorReport(
        versions=environment.versions(),
        system=parts.see("the system", environment.system) or {},
        engines=tuple(e for _, e in seen if e is not None),
        wrong_engines=tuple(Problem(e.message, e.hint) for e in wrong),
        devices=have[0] if have else (),
        device_note=have[1] if have else "",
        nvidia=parts.see("NVIDIA's driver", environment.nvidia) or (),
        folders=parts.see("folders", lambda: tuple(folders.own_folders())) or (),
        models=parts.see("model folders", lambda: tuple(folders.model_folders())) or (),
        settings=settings,
    )
    whole = replace(whole, failed=tuple(parts.failed))
    return redacted(replace(whole, problems=problems(whole)), this_machine())
