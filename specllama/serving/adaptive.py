"""`serve --adaptive`: replaces the server behind a relay by one with other settings when real
requests suggest it, while it is idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.settings import Settings
from specllama.errors import UsageError
from specllama.planning.plan import Plan, free_port
from specllama.serving.launch import Launch
from specllama.serving.real_requests import EventListener, TrafficMonitor, TuningReference
from specllama.serving.relay import Relay
from specllama.serving.scope import SearchScope, sets_own_types, with_fixed_values
from specllama.serving.servable import servable_settings
from specllama.tuning.records import setting_label
from specllama.watching import switches
from specllama.watching.policy import Policy, Switch, SwitchTiming
from specllama.watching.verdict import VERY_LOW

_LOCAL = "127.0.0.1"
_LOOK_S = 1.0
# Multiplies all waiting times, for tests and demos.
_PACE = "SPECLLAMA_ADAPTIVE_PACE"


def behind_relay(plan: Plan) -> Plan:
    """The same server at an internal address that only the relay uses.

    Raises UsageError if a relay cannot be put in front of it.
    """
    if sets_own_types(plan):
        raise UsageError(
            "--adaptive cannot be combined with --spec-type", "Leave out one of the two."
        )
    if plan.settings.scheme != "http":
        raise UsageError("--adaptive does not work with --ssl-*", "Put a TLS proxy in front of it.")
    if plan.settings.host.endswith(".sock"):
        raise UsageError("--adaptive does not work with a Unix socket", "Use --host and --port.")
    return plan.at_address(_LOCAL, free_port(_LOCAL, 0))


def start_adaptive(
    base: Plan, at: Settings, served: Plan, measured: TuningReference, scope: SearchScope
) -> AdaptiveController:
    """`base`: the plan behind the relay, with all alternatives; `at`: the clients' address;
    `served`: the first plan, `measured` its results."""
    own, scope = served.settings.speculation, with_fixed_values(base, scope)
    found = servable_settings(base, own, measured, scope)
    policy = Policy(own, found, time.monotonic(), switch_timing(), any_length=not scope.lengths)
    return AdaptiveController(base, at.host, at.port, policy)


def switch_timing() -> SwitchTiming:
    """The waiting times, scaled by the environment variable."""
    try:
        return SwitchTiming().scaled(max(0.0, float(os.environ.get(_PACE, "1"))))
    except ValueError:
        return SwitchTiming()


@dataclass
class AdaptiveController:
    """Decides on switches and makes them. `base`: the plan with all alternatives (behind_relay);
    `host`, `port`: the clients' address; `policy`: starts with the first settings."""

    base: Plan
    host: str
    port: int
    policy: Policy
    clock: Callable[[], float] = time.monotonic
    _relay: Relay | None = None
    _made: Switch | None = None
    _shut_at: float = 0.0
    _looked: float = 0.0

    @property
    def url(self) -> str:
        """The clients' URL."""
        return replace(self.base.settings, host=self.host, port=self.port).url

    def open(self, up: Launch, listener: EventListener) -> None:
        """Forwards requests to a server, the waiting ones first. Raises EngineError if the address
        cannot be used."""
        now, runs = self.clock(), up.plan.settings.speculation
        if self._made is not None and self._made.to != runs and self._made.to is not None:
            self.policy.lost(self._made.to, now)  # it did not start
        if self._made is not None or runs != self.policy.running:
            self.policy.switched(runs, now)
        if self._relay is None:
            self._relay = Relay(self.host, self.port)
        self._relay.open(up.plan.settings.host, up.plan.settings.port)
        if self._made is not None:
            self._made, took = None, now - self._shut_at
            waited = self._relay.gate.waited
            some = f"{waited} {'request' if waited == 1 else 'requests'} waited"
            listener.event(
                "adaptive",
                f"now serving with {setting_label(runs)} after {took:.1f} s; {some}",
                {"seconds": took, "waited": waited, "settings": setting_label(runs)},
            )

    def due_switch(self, up: Launch, following: TrafficMonitor) -> Switch | None:
        """The switch to make now, if real requests suggest one and the server is idle. From then on
        requests wait."""
        now = self.clock()
        if self._relay is None or now - self._looked < _LOOK_S * min(1.0, self.policy.pace.quiet):
            return None
        self._looked = now
        gate, own = self._relay.gate, self.policy.pace
        follower = following.follower
        if gate.quiet_s < own.quiet:
            return None
        found = self.policy.decide(follower.recent, now, follower.verdict.kind == VERY_LOW)
        if found is None:
            return None
        enough = own.quiet_for(reread_seconds(up.client, self._sleeps))
        if gate.quiet_s < enough or not following.idle() or not gate.shut_if_quiet(enough):
            return None
        self._made, self._shut_at = found, now
        return found

    def server_exited(self) -> None:
        """Called when the server exited by itself: requests wait until the next one is ready."""
        if self._relay is not None:
            self._relay.gate.shut()

    def plan_after(self, up: Launch, switch: Switch, listener: EventListener) -> Plan:
        """The plan after the switch, which is reported and stored."""
        before, after = setting_label(up.plan.settings.speculation), setting_label(switch.to)
        listener.event(
            "adaptive",
            f"{before} → {after}: {switch.reason}",
            {"before": before, "after": after, "reason": switch.reason},
        )
        target, workload = up.plan.target.path, up.plan.workload.name
        switches.add(target, workload, before, after, switch.reason)
        if switch.to is None:
            return self.base.without_speculation(switch.reason)
        return self.base.with_speculation(switch.to, switch.reason)

    def missing_data(self, following: TrafficMonitor) -> str:
        """The missing data that makes a decision impossible; "" = none."""
        last = following.follower.snapshot
        return last.missing[0] if last is not None and last.missing else ""

    def close(self) -> None:
        """Closes the clients' connections."""
        if self._relay is not None:
            self._relay.close()

    @property
    def _sleeps(self) -> bool:
        return self.base.user.value("--sleep-idle-seconds") is not None


def reread_seconds(client: Client, sleeps: bool) -> float:
    """Seconds to evaluate the prompts in the slots again. A sleeping server has dropped them and is
    not queried, which would wake it."""
    if sleeps:
        return 0.0
    try:
        slots, speed = client.slots() or [], client.prompt_speed()
    except EngineError:
        return 0.0
    known = [s.get("n_prompt_tokens") for s in slots]
    return sum(n for n in known if isinstance(n, int)) / speed if speed else 0.0
