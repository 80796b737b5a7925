"""Command lines in, findings and corrected text out. Reads model files where they exist; starts
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from specllama.engine.capabilities import Capabilities
from specllama.formats import (
    commands,
    lint_engines,
    lint_flags,
    lint_limits,
    lint_models,
    lint_spec,
)
from specllama.formats.finding import Finding
from specllama.formats.found import LLAMA, Command, Variable, edited
from specllama.formats.lint_models import Models
from specllama.formats.seen import look

_MOST_EDITS = 200  # of one text; every finding takes one or two
Builds = Callable[[int | None], Capabilities]


@dataclass(frozen=True)
class Linted:
    """One command line of a text and what is wrong with it."""

    command: Command
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Here:
    """What lint may look at. `builds`: what the build can do that an image names (None: it names
    none); `environ`: the variables that the commands would inherit."""

    builds: Builds
    models: Models
    environ: Mapping[str, str] = field(default_factory=dict)


def lint(text: str, kind: str, here: Here) -> tuple[Linted, ...]:
    """Every server of the text. Raises UsageError for a text that cannot be read."""
    found = commands.read(text, kind)
    if not found and kind == commands.SCRIPT:
        found = commands.bare(text)
    inherited = tuple(Variable(k, v) for k, v in here.environ.items() if k.startswith("LLAMA_ARG_"))
    return tuple(
        Linted(c, tuple(_findings(replace(c, variables=(*inherited, *c.variables)), here)))
        for c in found
    )


def fixed(text: str, kind: str, here: Here) -> str:
    """The text with everything put right that can be; the rest of it stays as it is."""
    for _ in range(_MOST_EDITS):
        for linted in lint(text, kind, here):
            finding = next((f for f in linted.findings if f.edits), None)
            if finding is not None:
                text = edited(text, linted.command, finding.edits)
                break
        else:
            return text
    return text


def _findings(command: Command, here: Here) -> Iterator[Finding]:
    if command.program != LLAMA:
        yield from lint_engines.findings(command)
        return
    seen = look(command, here.builds(command.build))
    yield from lint_flags.findings(seen)
    yield from lint_spec.findings(seen)
    yield from lint_models.findings(seen, here.models)
    yield from lint_limits.findings(seen)
