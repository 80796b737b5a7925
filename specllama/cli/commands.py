"""The commands by name. A command's module is imported when that command is used, not for
`specllama --help`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer
import typer.main

from specllama.cli.help_pages import HelpCommand, HelpGroup, paragraphs

# Each is the first sentence of the command's docstring (tests/test_help.py).
SUMMARIES: Mapping[str, str] = {
    "serve": "Serve MODEL with speculative decoding and verify that it drafts",
    "probe": "Measure every speculative method for MODEL and show which is fastest",
    "pick-draft": "Find draft models that fit TARGET, ranked",
    "memory": "Show how much memory TARGET and its draft need, and whether they fit",
    "plan": "Write the launch command or config file for MODEL; start nothing",
    "advise": "Explain why MODEL is served with or without speculation",
    "inspect": "Show what a GGUF file contains and which drafts fit it",
    "lint": "Check llama-server command lines for outdated or ineffective flags",
    "watch": "Show acceptance rate and speed of a running server, live",
    "results": "Show or clear saved measurements",
    "profiles": "List, show and create workload profiles",
    "doctor": "Check engines, devices, folders and settings, and report problems",
    "demo": "Try speculative decoding with built-in test models",
}


class LazyCommands(MutableMapping[str, Any]):
    """Command name → the command, built when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in SUMMARIES:
            self._loaded[name] = load_command(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


class MainGroup(HelpGroup):
    """specllama itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands()

    def summaries(self) -> Mapping[str, str]:
        return SUMMARIES


def load_command(name: str) -> Any:
    """Imports a command's module and builds the command."""
    module = import_module(f"specllama.cli.{name.replace('-', '_')}")
    app = typer.Typer()
    module.register(app)
    _with_help(app)
    return typer.main.get_group(app).commands[name]


def _with_help(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.cls = HelpCommand
        command.help = paragraphs(getattr(command.callback, "__doc__", None) or "")
    for group in app.registered_groups:
        group.cls = HelpGroup
        if group.typer_instance is not None:
            _with_help(group.typer_instance)
