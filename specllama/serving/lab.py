"""Servers for the tuner: on a free local port each, stopped afterwards."""

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
from specllama.memory.devices import overcommitted
from specllama.memory.estimate import per_device
from specllama.planning.budget import plain
from specllama.planning.plan import Plan, free_port
from specllama.serving.launch import LaunchFailed, ended_hint
from specllama.tuning.arms import Served

_LOCAL = "127.0.0.1"  # never where others could reach a server that is only being measured
_ENDING_S = 1.0  # between a broken connection and the end of the server that broke it


@dataclass(frozen=True)
class Lab:
    """Starts `plan`'s server with other ways of speculating. Logs go to `log`, a plain
    server's to a neighbour of it."""

    plan: Plan
    log: Path

    @property
    def room_for_two(self) -> bool:
        """Whether the plain server fits beside the one the plan asks for."""
        b = self.plan.budget
        if b is None:
            return False
        sums = per_device(b.lines)
        for device, size in per_device(plain(b).lines).items():
            sums[device] = sums.get(device, 0) + size
        return not overcommitted(sums, b.question.machine)

    @contextmanager
    def serve(self, speculation: Speculation | None) -> Iterator[Served]:
        """A server that answers. Raises EngineError, explained, when it does not come up or
        ends while it is used."""
        plan = self.plan.at(_LOCAL, free_port(_LOCAL, 0)).speculating(speculation)
        log = self.log if speculation is not None else self.log.with_suffix(".plain.log")
        server = process.start(plan.command, log)
        client = Client(plan.settings.url, plan.settings.api_key)
        ready = False
        try:
            try:
                process.wait_ready(server, client.healthy)
                ready = True
                yield Served(client, server.log_text)
            except EngineError:
                code = server.exit_code(_ENDING_S)
                if code is None:
                    raise
                why = explain(code, server.log_text())
                if not ready:
                    raise LaunchFailed(why, log) from None
                raise EngineError(
                    f"llama-server ended: {why.message}", ended_hint(why, log)
                ) from None
        finally:
            client.close()
            server.stop()
