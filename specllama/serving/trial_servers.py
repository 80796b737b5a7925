"""Servers for the tuner, one at a time; the last one may go on to serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from specllama.engine import process
from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.exits import explain
from specllama.engine.process import ServerProcess
from specllama.engine.settings import Speculation
from specllama.planning.plan import Plan, free_port
from specllama.serving.launch import Launch, LaunchFailed, exit_hint, record_memory
from specllama.tuning.records import RunningServer

_LOCAL = ("127.0.0.1", "localhost", "::1")
_ENDING_S = 1.0  # between a broken connection and the exit of the server that broke it


@dataclass
class TrialServers:
    """Starts `plan`'s server with other speculation settings, its log at `log`. `final`: at the
    plan's own address, so that the last server can go on to serve; otherwise, or if that address
    is reachable from outside, on a free local port: clients must not reach a server that is being
    measured. `running`: the server that is up."""

    plan: Plan
    log: Path
    final: bool = False
    running: Launch | None = field(default=None, init=False)

    @property
    def can_serve(self) -> bool:
        """Whether the last server can go on to serve."""
        return self.final and self.plan.settings.host in _LOCAL

    def start(
        self, speculation: Speculation | None, tick: Callable[[], None], trace: bool = False
    ) -> RunningServer:
        """Stops the server that is up and starts another; `tick` is called while it loads.
        `trace`: its log shows where time goes. That is so for every server that cannot go on to
        serve; its memory use is stored too.
        Raises EngineError with the cause if it does not start."""
        self.stop()
        plan = (
            self.plan
            if self.can_serve
            else self.plan.at_address(_LOCAL[0], free_port(_LOCAL[0], 0))
        )
        if speculation is None:
            plan = plan.without_speculation("measured without it")
        else:
            plan = plan.with_speculation(speculation)
        if trace or not self.can_serve:
            plan = plan.with_trace()
        client = Client(plan.settings.url, plan.settings.api_key)
        self.running = Launch(plan, process.start(plan.command, self.log), client)
        server = self.running.server
        try:
            process.wait_ready(server, client.healthy, on_tick=tick)
        except EngineError:
            code = server.exit_code(_ENDING_S)
            self.stop()
            if code is None:
                raise
            reason = explain(code, server.log_text(), plan.engine.embedded)
            raise LaunchFailed(reason, self.log) from None
        if plan.settings.trace and self._estimate_applies(speculation):
            record_memory(self.running)
        return RunningServer(client, partial(_log_text, server))

    def _estimate_applies(self, speculation: Speculation | None) -> bool:
        """Whether the plan's memory estimate is about such a server."""
        own = self.plan.settings.speculation
        return speculation is None or (own is not None and own.draft == speculation.draft)

    def stop(self) -> None:
        """Stops the server, if one is up."""
        if self.running is not None:
            running, self.running = self.running, None
            running.stop()

    def blame(self, error: EngineError) -> EngineError:
        """The cause of the server's exit, if that caused the error; else the error."""
        if isinstance(error, LaunchFailed) or self.running is None:
            return error
        server = self.running.server
        code = server.exit_code(_ENDING_S)
        if code is None:
            return error
        reason = explain(code, server.log_text(), self.plan.engine.embedded)
        return EngineError(f"llama-server exited: {reason.message}", exit_hint(reason, self.log))

    def hand_over(self, plan: Plan) -> Launch | None:
        """The server that is up, if it runs `plan`; it no longer belongs to the runner then."""
        running = self.running
        if running is None or not self.can_serve or running.server.exit_code() is not None:
            return None
        ran = running.plan.settings
        if ran.trace or ran.speculation != plan.settings.speculation:
            return None
        if not running.client.healthy():  # stopped while it was loading
            return None
        self.running = None
        return Launch(plan, running.server, running.client)


def _log_text(server: ServerProcess) -> str:
    """The end of its log. Also trims the log."""
    server.output.trim()
    return server.log_text()
