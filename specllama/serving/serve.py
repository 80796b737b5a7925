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
from specllama.engine.process import STOP_S
from specllama.errors import StrictError
from specllama.planning.plan import Plan
from specllama.serving.adaptive import AdaptiveController
from specllama.serving.launch import Launch, Reporter, exit_hint, launch
from specllama.serving.real_requests import EventListener, TrafficMonitor, TuningReference
from specllama.serving.verify import Engagement, verify
from specllama.stop import Stopped, stop_on_signals
from specllama.tuning.records import method_label
from specllama.watching import running as running_serves
from specllama.watching.policy import Switch

MAX_QUICK_CRASHES = 3  # in a row; then it is not a coincidence
QUICK_S = 60.0  # a server that ran longer resets the count; loading may take any time
_POLL_S = 0.2


@dataclass(frozen=True)
class Ready:
    """What is reported once the server is ready, at `url`. `warning`: why speculation may be slower
    than plain decoding, "" if that was measured or nothing suggests it."""

    launch: Launch
    engagement: Engagement
    url: str
    warning: str = ""


class ServeReporter(Reporter, EventListener, Protocol):
    """Receives events."""

    def ready(self, ready: Ready) -> None:
        """The server responds and was checked. Called again after a restart."""


def run_server(
    plan: Plan,
    log: Path,
    report: ServeReporter,
    strict: bool = False,
    known: bool = False,
    running: Launch | None = None,
    measured: TuningReference | None = None,
    idle_probes: bool = True,
    adaptive: AdaptiveController | None = None,
) -> None:
    """Runs until the user stops it (returns), or raises the error that ended it; Stopped
    if that was before it served.
    `known`: these settings were measured before, so a brief check is enough. `running`: the
    plan's server, if it is up already. `measured`: earlier measurements of the plan's settings;
    `idle_probes`: measure them while idle if there are none; `adaptive`: real requests may switch
    to other settings.

    Raises StrictError if speculation is off and `strict`; EngineError if the server does not
    start or keeps crashing.
    """
    if strict and not plan.speculates:
        if running is not None:
            running.stop()
        raise StrictError(f"speculation OFF because {plan.choice.reason}", plan.choice.remedy)
    with stop_on_signals():
        reference = measured or TuningReference()
        follow = partial(_follow, plan, reference, idle_probes, adaptive is not None)
        try:
            _serve(plan, log, report, strict, known, running, follow, adaptive)
        finally:
            running_serves.withdraw()
            if adaptive is not None:
                adaptive.close()


def _follow(
    plan: Plan, measured: TuningReference, idle_probes: bool, adaptive: bool, up: Launch, url: str
) -> TrafficMonitor:
    """`measured` is about the settings of `plan`; after a crash or a switch, others may run. Step
    times hold for every K of the same method and draft."""
    own, runs = plan.settings.speculation, up.plan.settings.speculation
    if runs != own:
        same_way = own is not None and runs is not None and method_label(own) == method_label(runs)
        measured = TuningReference(measured.times if same_way else None)
    return TrafficMonitor(up, measured, idle_probes, url, adaptive)


def _serve(
    plan: Plan,
    log: Path,
    report: ServeReporter,
    strict: bool,
    known: bool,
    up: Launch | None,
    follow: Callable[[Launch, str], TrafficMonitor],
    adaptive: AdaptiveController | None,
) -> None:
    quick, served = 0, False
    before: Plan | None = None  # the previous plan, while another is tried
    try:
        while True:
            running, up = up or _launch_or_restore(plan, before, log, report), None
            ready_since, following, ended = time.monotonic(), None, None
            url = adaptive.url if adaptive is not None else running.plan.settings.url
            try:
                if adaptive is not None and served:  # requests may be waiting
                    adaptive.open(running, report)
                with report.busy("verifying speculation …"):
                    engagement = check_engagement(running, known or before is not None)
                if strict:
                    _check_strict(engagement)
                if running.server.exit_code() is None:
                    if adaptive is not None and not served:
                        adaptive.open(running, report)
                    served = True
                    following = follow(running, url)
                    ready = Ready(running, engagement, url, _warning(engagement, following))
                    _announce(ready, before is not None, report)
                    if adaptive is not None and (reason := adaptive.missing_data(following)):
                        report.say(f"--adaptive has no data to decide on: {reason}")
                ended = _wait(running, following, report, adaptive)
            finally:
                if following is not None:
                    following.close(restarting=ended is not None)
                running.stop()
            if isinstance(ended, Switch) and adaptive is not None:
                before, plan = running.plan, adaptive.plan_after(running, ended, report)
            elif isinstance(ended, Exit):
                if adaptive is not None:
                    adaptive.server_exited()
                lived = time.monotonic() - ready_since
                quick = quick + 1 if lived < QUICK_S else 1
                before, plan = None, _after_crash(running.plan, ended, quick, log, report)
    except Stopped:
        if not served:
            raise
        report.say("stopped")


def _launch_or_restore(plan: Plan, before: Plan | None, log: Path, report: ServeReporter) -> Launch:
    """`before`: the previous plan, used again if `plan` does not start."""
    try:
        return launch(plan, log, report)
    except EngineError as e:
        if before is None:
            raise
        report.say(f"{e.message}; going back to the previous settings")
        return launch(before, log, report)


def _announce(ready: Ready, exchanged: bool, report: ServeReporter) -> None:
    """Reports that it serves; a switch is reported elsewhere, so only a failure is reported here."""
    if not exchanged:
        report.ready(ready)
    elif ready.launch.plan.speculates and not ready.engagement.engaged:
        report.say(f"speculation OFF because {ready.engagement.reason}")


def check_engagement(running: Launch, brief: bool = False) -> Engagement:
    """The engagement of a running server; a failed probe is a reason, not an error."""
    try:
        return verify(running.client, running.plan, running.server.log_text(), brief)
    except EngineError as e:
        return Engagement(False, f"speculation could not be verified: {e.message}")


def _warning(e: Engagement, following: TrafficMonitor) -> str:
    """A warning if acceptance is very low and nothing was measured; only_costs says more."""
    if not e.engaged or e.alpha is None or e.only_costs:
        return ""
    return following.low_acceptance(e.drafted, e.accepted)


def _check_strict(e: Engagement) -> None:
    """Raises StrictError if nothing is drafted or nothing accepted."""
    if not e.engaged:
        raise StrictError(f"speculation OFF because {e.reason}")
    if e.only_costs:
        raise StrictError(f"speculation is on, but {e.only_costs}", e.remedy)


def _wait(
    running: Launch,
    following: TrafficMonitor | None,
    report: ServeReporter,
    adaptive: AdaptiveController | None,
) -> Exit | Switch:
    """Waits until the server exits or should be replaced. Says when it is told to stop."""
    try:
        return _wait_for_change(running, following, report, adaptive)
    except Stopped:
        report.say(
            f"stopping; running requests have up to {STOP_S:.0f} s, another Ctrl-C cuts them off"
        )
        raise


def _wait_for_change(
    running: Launch,
    following: TrafficMonitor | None,
    report: ServeReporter,
    adaptive: AdaptiveController | None,
) -> Exit | Switch:
    while (code := running.server.exit_code()) is None:
        running.server.output.trim()
        if following is not None:
            following.tick(report)
            if (
                adaptive is not None
                and (found := adaptive.due_switch(running, following)) is not None
            ):
                return found
        time.sleep(_POLL_S)
    return explain(code, running.server.log_text(), running.plan.engine.embedded)


def _after_crash(plan: Plan, reason: Exit, quick: int, log: Path, report: ServeReporter) -> Plan:
    """The next plan. Raises EngineError after too many crashes in a row."""
    if quick >= MAX_QUICK_CRASHES:
        raise EngineError(
            f"llama-server exited {quick} times in a row: {reason.message}",
            exit_hint(reason, log),
        )
    if reason.kind == "cpu":  # it would exit the same way
        raise EngineError(f"llama-server exited: {reason.message}", exit_hint(reason, log))
    if reason.kind == "memory" and (
        smaller := plan.with_less_memory(f"llama-server exited: {reason.message}")
    ):
        report.say(f"llama-server exited: {reason.message}; restarting with less memory")
        return smaller
    if plan.settings.speculation is not None and reason.blames_speculation and quick > 1:
        report.say(f"llama-server exited again: {reason.message}; restarting without speculation")
        return plan.without_speculation(f"llama-server crashed with it: {reason.message}")
    report.say(f"llama-server exited: {reason.message}; restarting")
    return plan
