"""One result for each server, however many paths through a script lead to it; a fix of words that
servers share is made only where it is right for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from specllama.formats.edits import Replacement, obstacle, replacements, touched
from specllama.formats.finding import ENDS, Finding
from specllama.formats.found_command import FoundCommand, SpanEdit, WordEdit
from specllama.formats.shell_words import Word

CommandFindings = Sequence[tuple[FoundCommand, tuple[Finding, ...]]]
Location = tuple[int, int, int]  # scalar's start or -1, start, end
Request = tuple[str, tuple[Replacement, ...]]  # a rule and what its fix writes
_MAX_LINES = 3  # listed in one message
_RIGHT = "it is right on another path through the script"


@dataclass(frozen=True)
class LintResult:
    """One server of a text and what is wrong with it. `owners`: for each finding, the command (one
    path to the server) that it is about. `unseen`: variables whose value is unknown."""

    command: FoundCommand
    findings: tuple[Finding, ...]
    owners: tuple[FoundCommand, ...]
    unseen: tuple[str, ...]


def merged(text: str, found: CommandFindings) -> tuple[LintResult, ...]:
    """One result for each server, with the edits that are right for all paths and servers."""
    sharing = _Sharing(text, found)
    servers: dict[tuple[int, str], list[tuple[FoundCommand, list[Finding]]]] = {}
    for number, (command, findings) in enumerate(found):
        checked = [sharing.checked(number, f) for f in findings]
        own = [f for f in checked if f is not None]
        servers.setdefault(command.place, []).append((command, own))
    return tuple(_result(paths) for paths in servers.values())


def _result(paths: Sequence[tuple[FoundCommand, list[Finding]]]) -> LintResult:
    unique: dict[tuple[tuple[str, ...], int], tuple[Finding, FoundCommand]] = {}
    for command, findings in paths:
        repeats = Counter[tuple[str, ...]]()  # on one path they are about different words
        for f in findings:
            sentence = (f.rule, f.words, f.happens, f.fix)
            unique.setdefault((sentence, repeats[sentence]), (f, command))
            repeats[sentence] += 1
    unseen = dict.fromkeys(name for command, _ in paths for name in _unseen(command))
    pairs = unique.values()
    return LintResult(
        paths[0][0], tuple(f for f, _ in pairs), tuple(c for _, c in pairs), tuple(unseen)
    )


def _unseen(command: FoundCommand) -> Iterator[str]:
    """What may be any option: variables that stand alone, files that are not here."""
    yield from command.missing
    for n, word in enumerate(command.words):
        if not word.fixed and not (n and command.words[n - 1].text.startswith("-")):
            yield word.text


class _Sharing:
    """Which commands of a text share words, and which ask for the same change."""

    def __init__(self, text: str, found: CommandFindings) -> None:
        self._text = text
        self._found = found
        self._users: dict[Location, set[int]] = {}
        self._paths: dict[tuple[int, str], list[int]] = {}
        self._begins: dict[int, set[tuple[int, str]]] = {}
        for number, (command, _) in enumerate(found):
            self._paths.setdefault(command.place, []).append(number)
            self._begins.setdefault(command.begin, set()).add(command.place)
            for location in _locations(command):
                self._users.setdefault(location, set()).add(number)
        self._objecting: dict[tuple[frozenset[Location], Request], list[int]] = {}

    def checked(self, number: int, finding: Finding) -> Finding | None:
        """The finding with the edits that can be made; None where it holds on some paths only."""
        command = self._found[number][0]
        if not finding.edits:
            return (
                finding if finding.effect == ENDS or self._on_all_paths(number, finding) else None
            )
        if why := obstacle(self._text, command, finding.edits):
            return _unfixed(finding, why)
        against = self._against(number, finding)
        if not against:
            return finding
        if any(self._found[n][0].place == command.place for n in against):
            other = self._with_other_words(number, finding).intersection(against)
            why = "another path through the script has other words there" if other else _RIGHT
            return _unfixed(finding, why) if finding.effect == ENDS else None
        if own := self._in_own_words(command, finding):
            return own
        name = _shared_name(command, finding)
        lines = self._lines(against)
        return _unfixed(finding, f"{name} is also used in {lines}, where the change would be wrong")

    def _on_all_paths(self, number: int, finding: Finding) -> bool:
        paths = self._paths[self._found[number][0].place]
        return all(any(f.rule == finding.rule for f in self._found[n][1]) for n in paths)

    def _against(self, number: int, finding: Finding) -> list[int]:
        """The servers, or paths to this one, that share the words and do not ask for the same."""
        command = self._found[number][0]
        changes = (e for e in finding.edits if isinstance(e, SpanEdit))
        locations = _of_words(command, touched(command, finding.edits))
        locations |= {_location(command, e.start, e.end) for e in changes}
        shared = frozenset(p for p in locations if len(self._users.get(p, ())) > 1)
        apart = self._with_other_words(number, finding)
        if not shared and not apart:
            return []
        request = finding.rule, replacements(self._text, command, finding.edits)
        asking = self._asking.get(request, set())
        if (shared, request) not in self._objecting:
            users = set().union(*(self._users[p] for p in shared))
            self._objecting[shared, request] = sorted(users - asking)
        return [*self._objecting[shared, request], *sorted(apart - asking)]

    def _with_other_words(self, number: int, finding: Finding) -> set[int]:
        """The paths to this server on which a variable stands for another number of words, so that
        they have no word where the changed one is written."""
        command = self._found[number][0]
        paths = self._paths[command.place]
        if len(paths) == 1:
            return set()
        used = [  # in the command, or in the text of another variable
            w
            for w in touched(command, finding.edits)
            if w.start >= 0 and (w.origin is None or "$" in self._text[w.start : w.end])
        ]
        users = (self._users[p] for p in _of_words(command, used))
        return set(paths) - set(paths).intersection(*users)

    @cached_property
    def _asking(self) -> dict[Request, set[int]]:
        """The commands that ask for each change."""
        out: dict[Request, set[int]] = {}
        for number, (command, findings) in enumerate(self._found):
            for f in findings:
                if f.edits and not any(w.start < 0 for w in touched(command, f.edits)):
                    request = f.rule, replacements(self._text, command, f.edits)
                    out.setdefault(request, set()).add(number)
        return out

    def _in_own_words(self, command: FoundCommand, finding: Finding) -> Finding | None:
        """Inserted options go right after the program's name where the command has that to itself."""
        changes = [e for e in finding.edits if isinstance(e, WordEdit)]
        alone = self._begins[command.begin] == {command.place}
        if alone and len(changes) == len(finding.edits) == 1 and not changes[0].count:
            return replace(finding, edits=(WordEdit(0, 0, changes[0].new),))
        return None

    def _lines(self, numbers: Sequence[int]) -> str:
        """The first lines of these commands: `line 3`, `lines 3, 4 and 7 more`."""
        places = sorted({self._found[n][0].place[0] for n in numbers})
        shown = [str(self._text.count("\n", 0, p) + 1) for p in places[:_MAX_LINES]]
        shown = list(dict.fromkeys(shown))
        more = f" and {len(places) - _MAX_LINES} more" if len(places) > _MAX_LINES else ""
        return f"line{'s' * (len(places) > 1)} {', '.join(shown)}{more}"


def _shared_name(command: FoundCommand, finding: Finding) -> str:
    """A name for words shared with other servers."""
    origins = (w.origin.name for w in touched(command, finding.edits) if w.origin is not None)
    if any(isinstance(e, SpanEdit) for e in finding.edits):
        return finding.words.partition("=")[0]
    return next(origins, "what is written there")


def _unfixed(finding: Finding, why: str) -> Finding:
    return replace(finding, edits=(), fix=f"{finding.fix} (not changed by --fix: {why})")


def _locations(command: FoundCommand) -> set[Location]:
    variables = [v for v in command.variables if v.in_text]
    names = {_location(command, v.start, v.end) for v in variables}
    values = {_location(command, v.value_at, v.value_at + len(v.value)) for v in variables}
    return _of_words(command, command.words) | names | values


def _of_words(command: FoundCommand, words: Sequence[Word]) -> set[Location]:
    return {
        (-1, w.start, w.end) if w.origin is not None else _location(command, w.start, w.end)
        for w in words
        if w.start >= 0
    }


def _location(command: FoundCommand, start: int, end: int) -> Location:
    """Positions in a scalar that is quoted again count from its own beginning."""
    scalar = command.scalar
    return (scalar.start if scalar is not None and scalar.inner is None else -1), start, end
