"""serve: launch, verify, report, and keep the server alive until told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from specllama.engine.errors import EngineError
from specllama.engine.exits import Exit, explain
from specllama.errors import StrictError
from specllama.planning.plan import Plan
from specllama.serving.launch import Launch, Progress, ended_hint, launch
from specllama.serving.real_requests import Following, Listener, Measured
from specllama.serving.verify import Engagement, verify
from specllama.stop import Stopped, stop_on_signals

MAX_QUICK_CRASHES = 3  # in a row; then it is no accident
QUICK_S = 60.0  # one that answered for longer is counted afresh; loading may take any time
_POLL_S = 0.2


@dataclass(frozen=True)
class Ready:
    """What a user is told when the server can be used."""

    launch: Launch
    engagement: Engagement


class Report(Progress, Listener, Protocol):
    """Where events go."""

    def ready(self, ready: Ready) -> None:
        """The server answers and has been checked. Called again after a restart."""


def serve(
    plan: Plan,
    log: Path,
    report: Report,
    strict: bool = False,
    known: bool = False,
    running: Launch | None = None,
    measured: Measured | None = None,
    idle_probes: bool = True,
) -> None:
    """Runs until the user stops it (returns), or raises the error that ended it; Stopped
    when that was before it served.
    `known`: these settings were measured before, so that a brief check is enough. `running`:
    the plan's server, when it is up already. `measured`: what was measured of the plan's settings;
    `idle_probes`: they may be measured in idle moments where nothing was.

    Raises StrictError when speculation is off and `strict`; EngineError when the
    server does not start or keeps crashing.
    """
    if strict and not plan.speculates:
        if running is not None:
            running.stop()
        raise StrictError(f"speculation OFF because {plan.choice.because}")
    with stop_on_signals():
        follow = partial(_follow, plan, measured or Measured(), idle_probes)
        _serve(plan, log, report, strict, known, running, follow)


def _follow(plan: Plan, measured: Measured, idle_probes: bool, up: Launch) -> Following:
    """`measured` is about the settings of `plan`; after a crash others may run."""
    same = up.plan.settings.speculation == plan.settings.speculation
    return Following(up, measured if same else Measured(), idle_probes)


def _serve(
    plan: Plan,
    log: Path,
    report: Report,
    strict: bool,
    known: bool,
    up: Launch | None,
    follow: Callable[[Launch], Following],
) -> None:
    quick, served = 0, False
    try:
        while True:
            running, up = up or launch(plan, log, report), None
            answered, following = time.monotonic(), None
            try:
                with report.busy("checking that it drafts …"):
                    engagement = check(running, known)
                if strict:
                    _must_gain(engagement)
                if running.server.exit_code() is None:
                    served = True
                    following = follow(running)
                    report.ready(Ready(running, engagement))
                why = _wait_for_exit(running, following, report)
            finally:
                if following is not None:
                    following.close()
                running.stop()
            lived = time.monotonic() - answered
            quick = quick + 1 if lived < QUICK_S else 1
            plan = _after_crash(running.plan, why, quick, log, report)
    except Stopped:
        if not served:
            raise


def check(running: Launch, brief: bool = False) -> Engagement:
    """The engagement of a running server; a probe that fails is a reason, not an error."""
    try:
        return verify(running.client, running.plan, running.server.log_text(), brief)
    except EngineError as e:
        return Engagement(False, f"it could not be verified: {e.message}")


def _must_gain(e: Engagement) -> None:
    """Raises StrictError when nothing is drafted, or nothing of it accepted."""
    if not e.engaged:
        raise StrictError(f"speculation OFF because {e.reason}")
    if e.only_costs:
        raise StrictError(f"speculation is on, but {e.only_costs}", e.remedy)


def _wait_for_exit(running: Launch, following: Following | None, report: Report) -> Exit:
    while (code := running.server.exit_code()) is None:
        running.server.output.trim()
        if following is not None:
            following.tick(report)
        time.sleep(_POLL_S)
    return explain(code, running.server.log_text(), running.plan.engine.embedded)


def _after_crash(plan: Plan, why: Exit, quick: int, log: Path, report: Report) -> Plan:
    """The plan to go on with. Raises EngineError after too many crashes in a row."""
    if quick >= MAX_QUICK_CRASHES:
        raise EngineError(
            f"llama-server ended {quick} times in a row: {why.message}",
            ended_hint(why, log),
        )
    if why.kind == "cpu":  # it would end the same way
        raise EngineError(f"llama-server ended: {why.message}", ended_hint(why, log))
    if why.kind == "memory" and (
        smaller := plan.with_less_memory(f"llama-server ended: {why.message}")
    ):
        report.say(f"llama-server ended: {why.message}; restarting it with less")
        return smaller
    if plan.settings.speculation is not None and why.blames_speculation and quick > 1:
        report.say(f"llama-server ended again: {why.message}; restarting it without speculation")
        return plan.without_speculation(f"llama-server crashed with it: {why.message}")
    report.say(f"llama-server ended: {why.message}; restarting it")
    return plan
