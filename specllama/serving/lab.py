"""Servers for the tuner: one at a time, on a free local port, stopped afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specllama.engine import process
from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.exits import explain
from specllama.engine.settings import Speculation
from specllama.planning.plan import Plan, free_port
from specllama.serving.launch import LaunchFailed

_LOCAL = "127.0.0.1"  # never where others could reach a server that is only being measured


@dataclass(frozen=True)
class Lab:
    """Starts `plan`'s server with other ways of speculating. Logs go to `log`."""

    plan: Plan
    log: Path

    @contextmanager
    def serve(self, speculation: Speculation | None) -> Iterator[Client]:
        """A server that answers. Raises EngineError, explained, when it does not come up or
        ends while it is used."""
        plan = self.plan.at(_LOCAL, free_port(_LOCAL, 0)).speculating(speculation)
        server = process.start(plan.command, self.log)
        client = Client(plan.settings.url, plan.settings.api_key)
        try:
            try:
                process.wait_ready(server, client.healthy)
                yield client
            except EngineError:
                code = server.exit_code()
                if code is None:
                    raise
                raise LaunchFailed(explain(code, server.log_text()), self.log) from None
        finally:
            client.close()
            server.stop()
