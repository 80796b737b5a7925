"""Starts a Plan's server and waits until it is ready; without speculation if that is the cause
of a failure."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specllama.engine import process
from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.exits import Exit, explain
from specllama.engine.process import ServerProcess
from specllama.memory.estimate import total
from specllama.memory.observed import read_log, save_residual
from specllama.planning.budget import explain_budget as explain_sum
from specllama.planning.plan import Plan

_WHOLE_START = 2**20  # bytes of log; a start writes some dozen KiB


class Reporter(Protocol):
    """Reports progress to the user."""

    def say(self, text: str) -> None:
        """Prints one line about an event."""

    def busy(self, text: str) -> AbstractContextManager[None]:
        """Shows `text` while the block runs."""


@dataclass(frozen=True)
class Launch:
    """A server that is ready. `plan` is what actually runs."""

    plan: Plan
    server: ServerProcess
    client: Client

    def stop(self) -> None:
        self.client.close()
        self.server.stop()


def launch(plan: Plan, log: Path, report: Reporter) -> Launch:
    """Starts `plan`. If the server exits while loading, one retry: after running out of memory,
    with the next memory option; after another cause that points to speculation, without it. The
    retry is reported.

    Raises EngineError with the cause if no server starts.
    """
    try:
        running = _start(plan, log, report)
    except LaunchFailed as failed:
        smaller = _smaller(plan, failed.exit, report)
        if smaller is None:
            raise
        running = _start(smaller, log, report)
    record_memory(running)
    return running


def _smaller(plan: Plan, why: Exit, report: Reporter) -> Plan | None:
    """What to start instead, or None if it would exit the same way."""
    reason = f"llama-server did not start with it: {why.message}"
    if why.kind == "memory":
        if plan.budget is not None:
            for line in explain_sum(plan.budget):
                report.say(f"memory   {line}")
        if (smaller := plan.with_less_memory(reason)) is not None:
            spec = smaller.settings.speculation
            what = ",".join(spec.methods) if spec else "no speculation"
            report.say(f"{reason}; retrying with {what}")
            return smaller
    if plan.settings.speculation is None or not why.blames_speculation:
        return None
    report.say(f"{reason}; retrying without speculation")
    return plan.without_speculation(reason)


def record_memory(running: Launch) -> None:
    """Stores the memory that the server actually took with our estimate, to correct the next one."""
    plan = running.plan
    real = read_log(running.server.log_text(_WHOLE_START))
    if plan.budget is not None and real is not None:
        estimate = total(plan.budget.lines)
        save_residual(plan.files, plan.engine.identity, estimate, real.total)


class LaunchFailed(EngineError):
    """The server exited while starting."""

    def __init__(self, reason: Exit, log: Path) -> None:
        super().__init__(f"llama-server did not start: {reason.message}", exit_hint(reason, log))
        self.exit = reason


def exit_hint(reason: Exit, log: Path) -> str:
    """What to do next, and where the log is."""
    return f"{reason.hint} Log: {log}".strip()


def _start(plan: Plan, log: Path, report: Reporter) -> Launch:
    client = Client(plan.settings.url, plan.settings.api_key)
    server = process.start(plan.command, log)
    try:
        with report.busy("loading the model …"):
            process.wait_ready(server, client.healthy)
    except EngineError:
        code = server.exit_code()
        client.close()
        server.stop()
        if code is None:
            raise  # a timeout
        raise LaunchFailed(explain(code, server.log_text(), plan.engine.embedded), log) from None
    except BaseException:
        client.close()
        server.stop()
        raise
    return Launch(plan, server, client)
