"""Command lines in, findings and corrected text out. Reads model files where they exist; starts
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.engine.capabilities import Capabilities
from specllama.errors import UsageError
from specllama.formats import (
    commands,
    lint_engines,
    lint_flags,
    lint_ik_llama,
    lint_limits,
    lint_models,
    lint_presets,
    lint_spec,
    lint_types,
    lint_variables,
)
from specllama.formats.edits import edited, touched, valued
from specllama.formats.env_files import Files, nothing
from specllama.formats.finding import Finding
from specllama.formats.found_command import LLAMA, EnvVariable, FoundCommand, SpanEdit
from specllama.formats.lint_merge import LintResult, settled
from specllama.formats.lint_models import Models
from specllama.formats.parsed_command import parse_command

_ROUNDS = 500  # of putting right; a command takes some ten
_AT_ONCE = 10**6
Key = tuple[int, str, str]  # number of the command, rule, words
Builds = Callable[[int | None], Capabilities]


@dataclass(frozen=True)
class LintContext:
    """What lint may look at. `builds`: what the build can do that an image names (None: it names
    none); `environ`: the variables that the commands would inherit; `files`: reads those with
    variables."""

    builds: Builds
    models: Models
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Files = nothing


def lint(text: str, kind: str, here: LintContext) -> tuple[LintResult, ...]:
    """Every server of the text. Raises UsageError for a text that cannot be read."""
    found = commands.read(text, kind, here.files)
    if not found and kind == commands.SCRIPT:
        found = commands.bare(text)
    inherited = tuple(
        EnvVariable(k, v) for k, v in here.environ.items() if k.startswith("LLAMA_ARG_")
    )
    all_of_them = [
        replace(c, variables=(*inherited, *(valued(text, v) for v in c.variables))) for c in found
    ]
    return settled(text, [(c, tuple(_findings(text, c, here))) for c in all_of_them])


def fixed(text: str, kind: str, here: LintContext) -> str:
    """The text with everything put right that can be; the rest of it stays as it is. A change
    after which it could not be read is not made."""
    hopeless: set[Key] = set()
    most = _AT_ONCE
    for _ in range(_ROUNDS):
        found = lint(text, kind, here)
        chosen = _apart(found, hopeless)[:most]
        if not chosen:
            break
        changed = text
        for _, command, finding in chosen:
            changed = edited(changed, command, finding.edits)
        names = _names(changed, kind, here)
        same = sorted(names) == sorted(f.command.where for f in found)
        if same if len(chosen) > 1 else len(names) == len(found):
            text = changed
            hopeless.clear()  # what could not be done may be possible now
        elif len(chosen) > 1:
            most = 1
        else:
            hopeless.add(chosen[0][0])
    return text


def _apart(
    found: Sequence[LintResult], hopeless: set[Key]
) -> list[tuple[Key, FoundCommand, Finding]]:
    """What is put right next: a finding of each command, the last one in the text first, of
    those that touch no common part of it."""
    chances = []
    for number, linted in enumerate(found):
        keys = [(number, f.rule, f.words) for f in linted.findings]
        own = zip(keys, linted.owners, linted.findings, strict=True)
        chances += [c for c in own if c[2].edits and c[0] not in hopeless][:1]
    out = []
    free = float("inf")
    for key, command, finding in sorted(chances, key=lambda c: _extent(*c[1:]), reverse=True):
        end, start = _extent(command, finding)
        if end < free:
            out.append((key, command, finding))
            free = start
    return out


def _extent(command: FoundCommand, finding: Finding) -> tuple[int, int]:
    """(end, start) of all that a change may touch."""
    words = touched(command, finding.edits)
    if command.scalar is not None and not any(w.origin is not None for w in words):
        places = [(command.scalar.start, command.scalar.end)]
    else:
        places = [(w.start, w.end) for w in words]
    places += [(e.start, e.end) for e in finding.edits if isinstance(e, SpanEdit)]
    places = places or [(command.begin, command.begin)]
    return max(end for _, end in places), min(start for start, _ in places)


def _names(text: str, kind: str, here: LintContext) -> list[str]:
    """The servers that a text starts, by what each is called; none when it cannot be read."""
    try:
        found = commands.read(text, kind, here.files) or commands.bare(text)
    except UsageError:
        return []
    return [name for _, name in {c.place for c in found}]


def _findings(text: str, command: FoundCommand, here: LintContext) -> Iterator[Finding]:
    if command.program != LLAMA:
        yield from lint_engines.findings(command)
        return
    parsed = parse_command(command, here.builds(command.build))
    yield from lint_flags.findings(parsed)
    yield from lint_presets.findings(text, parsed)
    yield from lint_types.piped(text, parsed)
    yield from lint_variables.findings(parsed)
    yield from lint_ik_llama.findings(parsed)
    yield from lint_spec.findings(parsed)
    yield from lint_models.findings(parsed, here.models)
    yield from lint_limits.findings(parsed)
