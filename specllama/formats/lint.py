"""Command lines in, findings and corrected text out. Reads model files that exist; starts nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
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
from specllama.formats.edits import Replacement, applied, replacements, with_value_position
from specllama.formats.env_files import Files, no_files
from specllama.formats.finding import Finding
from specllama.formats.found_command import LLAMA, EnvVariable, FoundCommand, WordEdit
from specllama.formats.lint_merge import LintResult, merged
from specllama.formats.lint_models import Models
from specllama.formats.parsed_command import parse_command

_ROUNDS = 500  # of fixes; a command takes about ten
_MAX_REJECTED = 60  # changes tried after which the text could not be read
# Rules whose fix of one word does not depend on the fix of another, so that all are made at once.
_INDEPENDENT = {
    *("unknown-flag", "equals-sign", "bare-flag", "stray-word", "idle-flag", "refused-line"),
    *("repeated-key", "underscore-key", "quoted-value", "dropped-key", "odd-switch"),
}
FindingKey = tuple[int, str, str]  # number of the server, rule, words
Builds = Callable[[int | None], Capabilities]


@dataclass(frozen=True)
class LintContext:
    """What lint may read. `builds`: the capabilities of the build that an image names (None: it
    names none); `environ`: the variables that the commands would inherit; `files`: reads files of
    variables."""

    builds: Builds
    models: Models
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Files = no_files


@dataclass(frozen=True)
class _Fix:
    """The changes of one finding."""

    key: FindingKey
    changes: tuple[Replacement, ...]


def lint_text(text: str, kind: str, context: LintContext) -> tuple[LintResult, ...]:
    """Every server of the text. Raises UsageError for a text that cannot be read."""
    found = commands.read(text, kind, context.files)
    if not found and kind == commands.SCRIPT:
        found = commands.bare(text)
    variables = _Variables(text, context)
    servers = [replace(c, variables=variables.of(c)) for c in found]
    return merged(text, [(c, tuple(_findings(text, c, context))) for c in servers])


class _Variables:
    """The variables of a command that rules look at, inherited and its own, with the positions of
    their values. Commands that share their variables share the result."""

    def __init__(self, text: str, context: LintContext) -> None:
        self._text, self._context = text, context
        self._placed: dict[EnvVariable, EnvVariable] = {}
        self._found: dict[tuple[int, int | None], tuple[EnvVariable, ...]] = {}

    def of(self, command: FoundCommand) -> tuple[EnvVariable, ...]:
        # by identity: equal tuples would be compared item by item
        key = id(command.variables), command.build
        if key not in self._found:
            names = lint_variables.known_variables(self._context.builds(command.build))
            environ = self._context.environ
            inherited = (EnvVariable(k, v) for k, v in environ.items() if k in names)
            own = (self._with_position(v) for v in command.variables if v.name in names)
            self._found[key] = (*inherited, *own)
        return self._found[key]

    def _with_position(self, variable: EnvVariable) -> EnvVariable:
        if variable not in self._placed:
            self._placed[variable] = with_value_position(self._text, variable)
        return self._placed[variable]


def fixed(text: str, kind: str, context: LintContext) -> str:
    """The text with everything corrected that can be, the rest unchanged. A change after which it
    could not be read is not made."""
    rejected: set[FindingKey] = set()
    batch, failures = len(text), 0
    for _ in range(_ROUNDS):
        found = lint_text(text, kind, context)
        fixes = _next_fixes(text, found, rejected)[:batch]
        if not fixes or failures > _MAX_REJECTED:
            break
        changed = applied(text, [r for fix in fixes for r in fix.changes])
        names = _names(changed, kind, context)
        same = sorted(names) == sorted(f.command.where for f in found)
        if same if len(fixes) > 1 else len(names) == len(found):
            text = changed
            rejected.clear()  # what could not be done may be possible now
            batch *= 2
            continue
        failures += 1
        if len(fixes) > 1:
            batch = len(fixes) // 2
        else:
            rejected.add(fixes[0].key)
    return text


def _next_fixes(text: str, found: Sequence[LintResult], rejected: set[FindingKey]) -> list[_Fix]:
    """The first fix of each server, and those of the same rule that do not depend on it; of those
    that would touch the same part of the text the first."""
    out = []
    claims = _Claims()
    for number, server in enumerate(found):
        first: Finding | None = None
        for command, finding in zip(server.owners, server.findings, strict=True):
            key = (number, finding.rule, finding.words)
            if not finding.edits or key in rejected:
                continue
            if first is not None and not _independent(first, finding):
                continue
            first = first or finding
            changes = replacements(text, command, finding.edits)
            if claims.add(changes):
                out.append(_Fix(key, changes))
    return out


def _independent(first: Finding, second: Finding) -> bool:
    """Whether both fixes may be made at once; two that only remove words may."""
    edits = (*first.edits, *second.edits)
    only_remove = all(isinstance(e, WordEdit) and not e.new for e in edits)
    return first.rule == second.rule and (only_remove or first.rule in _INDEPENDENT)


class _Claims:
    """The parts of a text that changes touch."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._inside: dict[int, _Claims] = {}  # scalars that are quoted again, by their start

    def add(self, changes: Sequence[Replacement]) -> bool:
        """Claims the places of all changes; False when one is taken."""
        plain = {r.span for r in changes if r.scalar is None}
        scalars = {r.scalar.start: r.span for r in changes if r.scalar is not None}
        new = plain | {span for start, span in scalars.items() if start not in self._inside}
        inside = [(r.scalar.start, r) for r in changes if r.scalar is not None]
        free = all(self._is_free(*span) for span in new) and all(
            self._inside[start]._is_free(r.start, r.end)
            for start, r in inside
            if start in self._inside
        )
        if not free:
            return False
        for span in new:
            insort(self._spans, span)
        for start, r in inside:
            insort(self._inside.setdefault(start, _Claims())._spans, (r.start, r.end))
        return True

    def _is_free(self, start: int, end: int) -> bool:
        """Whether the span and its neighbours are free."""
        index = bisect_left(self._spans, (start, end))
        before, after = self._spans[index - 1 : index] if index else [], self._spans[index:][:1]
        return all(e < start for _, e in before) and all(end < s for s, _ in after)


def _names(text: str, kind: str, context: LintContext) -> list[str]:
    """The names of the servers that a text starts; none when it cannot be read."""
    try:
        found = commands.read(text, kind, context.files) or commands.bare(text)
    except UsageError:
        return []
    return [name for _, name in {c.place for c in found}]


def _findings(text: str, command: FoundCommand, context: LintContext) -> Iterator[Finding]:
    if command.program != LLAMA:
        yield from lint_engines.findings(command)
        return
    parsed = parse_command(command, context.builds(command.build))
    yield from lint_flags.findings(parsed)
    yield from lint_presets.findings(text, parsed)
    yield from lint_types.piped(text, parsed)
    yield from lint_variables.findings(parsed)
    yield from lint_ik_llama.findings(parsed)
    yield from lint_spec.findings(parsed)
    yield from lint_models.findings(parsed, context.models)
    yield from lint_limits.findings(parsed)
