"""Command lines in, findings and corrected text out. Reads model files where they exist; starts
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from specllama.engine.capabilities import Capabilities
from specllama.errors import UsageError
from specllama.formats import (
    commands,
    lint_dialect,
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
    """The text with everything put right that can be; the rest of it stays as it is. A change
    after which it could not be read is not made."""
    hopeless: set[tuple[int, str, str]] = set()
    for _ in range(_MOST_EDITS):
        found = lint(text, kind, here)
        chances = (
            (x.command, f, (i, f.rule, f.words))
            for i, x in enumerate(found)
            for f in x.findings
            if f.edits and (i, f.rule, f.words) not in hopeless
        )
        chance = next(chances, None)
        if chance is None:
            break
        command, finding, key = chance
        changed = edited(text, command, finding.edits)
        if _count(changed, kind) == len(found):
            text = changed
        else:
            hopeless.add(key)
    return text


def _count(text: str, kind: str) -> int:
    """How many servers a text starts; -1 when it cannot be read."""
    try:
        return len(commands.read(text, kind) or commands.bare(text))
    except UsageError:
        return -1


def _findings(command: Command, here: Here) -> Iterator[Finding]:
    if command.program != LLAMA:
        yield from lint_engines.findings(command)
        return
    seen = look(command, here.builds(command.build))
    yield from lint_flags.findings(seen)
    yield from lint_dialect.findings(seen)
    yield from lint_spec.findings(seen)
    yield from lint_models.findings(seen, here.models)
    yield from lint_limits.findings(seen)
