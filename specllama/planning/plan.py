"""A Plan: everything decided about one server. Printing, launching and exporting all take the
same Plan."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.drafts.warnings import warnings
from specllama.engine.capabilities import Capabilities
from specllama.engine.client import Conversation, Prompt
from specllama.engine.command import LaunchCommand, build
from specllama.engine.errors import cannot_listen
from specllama.engine.launch_options import LaunchOptions, is_number
from specllama.engine.locate import Engine
from specllama.engine.settings import Settings, Speculation
from specllama.errors import UsageError
from specllama.gguf import ModelInfo
from specllama.planning import memory_inputs
from specllama.planning.budget import Budget, budget_with
from specllama.planning.choose import Choice
from specllama.planning.memory_choice import apply_option, next_option, with_draft_placement
from specllama.planning.refusals import limit_notes
from specllama.prompts import without_tools
from specllama.workloads import Workload

_ADDRESS = ("--host", "--port")


@dataclass(frozen=True)
class Plan:
    """The whole decision. `command` is exactly what runs; `budget`: its memory, None if
    unknown."""

    target: ModelInfo
    workload: Workload
    engine: Engine
    capabilities: Capabilities
    choice: Choice
    settings: Settings
    user: LaunchOptions
    command: LaunchCommand
    budget: Budget | None = None

    @property
    def speculates(self) -> bool:
        """Whether speculation is requested, by specllama or by a --spec-type after --."""
        return self.settings.speculation is not None or bool(self.user.value("--spec-type"))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about it, one line each."""
        context = memory_inputs.context_size(self.target, self.settings, self.user)
        known = limit_notes(self.target, self.choice, self.user, context // self.settings.parallel)
        return (*self.choice.warnings, *known, *self._tools_note, *self.choice.notes)

    @property
    def takes_tools(self) -> bool:
        """Whether a request's `tools` reach the model."""
        return not self._no_tools

    @property
    def _no_tools(self) -> str:
        """Why they do not, "" = they do. Without Jinja a request with `tools` is rejected
        (llama.cpp's server-common.cpp, "tools param requires --jinja flag")."""
        if self.capabilities.find("--jinja") is None:
            return "this build has no --jinja"
        if self.user.on("--no-jinja"):
            return "--no-jinja"
        own = self.user.value("--chat-template-file") or self.user.value("--chat-template")
        known = own is not None or self.target.template_has_tools
        return "" if known else "the model's chat template does not support tools"

    @property
    def _tools_note(self) -> tuple[str, ...]:
        has = any(isinstance(p, Conversation) and p.tools for p in self.workload.prompts)
        if not has or self.takes_tools:
            return ()
        name = self.workload.name
        return (f"workload {name}: tools are sent as text in the prompts ({self._no_tools})",)

    def prompts(self, own: Sequence[Prompt] = ()) -> tuple[Prompt, ...]:
        """The prompts to send: the user's own, or else the workload's."""
        prompts = tuple(own) or self.workload.prompts
        return prompts if self.takes_tools else tuple(map(without_tools, prompts))

    @property
    def files(self) -> tuple[Path, ...]:
        """The model files that are loaded."""
        draft = self.choice.draft
        return (*self.target.shards, *(draft.shards if draft is not None else ()))

    def with_less_memory(self, because: str) -> Plan | None:
        """The same server with the next memory option; None if there is none left."""
        option = next_option(self.budget) if self.budget is not None else None
        if self.budget is None or option is None:
            return None
        choice, settings = apply_option(
            self.budget, option, self.choice, self.settings, self.user, self.capabilities
        )
        choice = replace(choice, reason=f"{option.name}: {because}")
        settings = replace(settings, speculation=choice.speculation)
        return replace(
            self,
            choice=choice,
            settings=settings,
            command=build(self.engine, self.capabilities, settings, self.user),
            budget=replace(self.budget, chosen=option, remaining=()),
        )

    def at_address(self, host: str, port: int) -> Plan:
        """The same server at another address, without the user's --host and --port after --."""
        user = self.user.without(_ADDRESS)
        settings = replace(self.settings, host=host, port=port)
        command = build(self.engine, self.capabilities, settings, user)
        return replace(self, settings=settings, user=user, command=command)

    def with_trace(self) -> Plan:
        """The same server with a log that shows where time and memory go. Not for serving: it lists
        its prompt cache on every request."""
        settings = replace(self.settings, trace=True)
        command = build(self.engine, self.capabilities, settings, self.user)
        return replace(self, settings=settings, command=command)

    def with_speculation(self, spec: Speculation | None, because: str = "") -> Plan:
        """The same server with another speculation (None = off)."""
        ways = [(self.choice.speculation, self.choice.draft)]
        ways += [(a.speculation, a.draft) for a in self.choice.all_alternatives]
        path = spec.draft if spec is not None else None
        draft = next((d for _, d in ways if d is not None and d.path == path), None)
        settings, budget = replace(self.settings, fit_target=()), self.budget
        if budget is not None:
            if draft is not self.choice.draft:
                machine = budget.request.machine
                budget = budget_with(
                    budget, memory_inputs.drafting_of(spec, draft, self.user, machine)
                )
            spec, target = with_draft_placement(budget, spec, draft, self.user, self.capabilities)
            settings = replace(settings, fit_target=target)
        settings = replace(settings, speculation=spec)
        return replace(
            self,
            choice=replace(
                self.choice,
                speculation=spec,
                reason=because or self.choice.reason,
                draft=draft,
                warnings=self._warnings(spec, draft),
            ),
            settings=settings,
            command=build(self.engine, self.capabilities, settings, self.user),
            budget=budget,
        )

    def _warnings(self, spec: Speculation | None, draft: ModelInfo | None) -> tuple[str, ...]:
        if spec is None:
            return ()
        drafting = (m for m in spec.methods if m.startswith("draft-"))
        return tuple(warnings(self.target, next(drafting, spec.methods[0]), draft))

    def without_speculation(self, because: str) -> Plan:
        """The same server with no speculation flags at all."""
        settings = replace(self.settings, speculation=None, fit_target=())
        if self.budget is not None:
            settings = replace(
                settings,
                fit_target=with_draft_placement(
                    self.budget, None, None, self.user, self.capabilities
                )[1],
            )
        return replace(
            self,
            choice=Choice(None, because, self.choice.rejected, notes=self.choice.notes),
            settings=settings,
            command=build(self.engine, self.capabilities, settings, self.user),
            budget=budget_with(self.budget, None) if self.budget is not None else None,
        )


def make_plan(
    target: ModelInfo,
    workload: Workload,
    engine: Engine,
    capabilities: Capabilities,
    choice: Choice,
    settings: Settings,
    user: LaunchOptions,
    check_port: bool = True,
    budget: Budget | None = None,
) -> Plan:
    """Completes the settings with the choice and the user's own host, port and key.

    Raises EngineError if the port is taken (not checked without `check_port`, unless a free
    one has to be found).
    """
    host = user.value("--host") or settings.host
    port = _port(user.value("--port"), settings.port)
    if check_port or port == 0:
        port = free_port(host, port)
    complete = replace(
        settings,
        speculation=choice.speculation,
        port=settings.port or port,
        scheme="https"
        if user.value("--ssl-cert-file") and user.value("--ssl-key-file")
        else "http",
        prefix="/" + prefix if (prefix := (user.value("--api-prefix") or "").strip("/")) else "",
        api_key=user.api_key or settings.api_key,
    )
    command = build(engine, capabilities, complete, user)
    at_user_address = replace(complete, host=host, port=port)
    return Plan(
        target, workload, engine, capabilities, choice, at_user_address, user, command, budget
    )


def _port(user_port: str | None, default: int) -> int:
    if user_port is None:
        return default
    if not is_number(user_port) or not 0 < int(user_port) < 2**16:
        raise UsageError(
            f"--port {user_port} after -- is not a port", "Use specllama's own --port N."
        )
    return int(user_port)


def free_port(host: str, port: int) -> int:
    """`port` if it can be bound, a free one for 0. Raises EngineError if it is taken, UsageError
    for a host that is not this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        if sys.platform != "win32":
            # Without this a port in TIME_WAIT counts as taken; a listening one still does.
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except (OSError, OverflowError, UnicodeError) as e:
            raise cannot_listen(host, port, e) from None
        return int(s.getsockname()[1])
