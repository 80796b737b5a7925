"""What is said once of a server that a script comes to in several ways, and which fixes would touch
words that another server shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from specllama.formats.edits import edited, obstacle, touched
from specllama.formats.finding import ENDS, Finding
from specllama.formats.found_command import FoundCommand, SpanEdit, WordEdit
from specllama.formats.shell_words import Word

Found = Sequence[tuple[FoundCommand, tuple[Finding, ...]]]
Place = tuple[int, int, int]
Edited = Callable[[int, Finding], str]  # the text after a finding's edits, by a command's number


@dataclass(frozen=True)
class LintResult:
    """One server of a text and what is wrong with it. `owners`: the way to it (a command with the
    words it has then) that each finding is of. `unseen`: variables whose value is unknown."""

    command: FoundCommand
    findings: tuple[Finding, ...]
    owners: tuple[FoundCommand, ...]
    unseen: tuple[str, ...]


def settled(text: str, found: Found) -> tuple[LintResult, ...]:
    """One answer for each server, with the edits that every way and every server bears."""
    homes: dict[Place, set[int]] = {}
    for number, (command, _) in enumerate(found):
        for place in _places(command):
            homes.setdefault(place, set()).add(number)

    @cache
    def edits_of(number: int, finding: Finding) -> str:
        return edited(text, found[number][0], finding.edits)

    servers: dict[tuple[int, str], list[tuple[FoundCommand, list[Finding]]]] = {}
    for number, (command, findings) in enumerate(found):
        own = [_settled(text, found, number, f, homes, edits_of) for f in findings]
        kept = [f for f in own if f is not None]
        servers.setdefault(command.place, []).append((command, kept))
    return tuple(_joined(ways) for ways in servers.values())


def _joined(ways: Sequence[tuple[FoundCommand, list[Finding]]]) -> LintResult:
    once: dict[tuple[str, ...], tuple[Finding, FoundCommand]] = {}
    for command, findings in ways:
        for n, f in enumerate(findings):
            nth = sum(f == other for other in findings[:n])
            once.setdefault((f.rule, f.words, f.happens, f.fix, str(nth)), (f, command))
    unseen = dict.fromkeys(name for command, _ in ways for name in _unseen(command))
    pairs = once.values()
    return LintResult(
        ways[0][0], tuple(f for f, _ in pairs), tuple(c for _, c in pairs), tuple(unseen)
    )


def _unseen(command: FoundCommand) -> Iterator[str]:
    """What may be any option: variables that stand alone, files that are not here."""
    yield from command.missing
    for n, word in enumerate(command.words):
        if not word.fixed and not (n and command.words[n - 1].text.startswith("-")):
            yield word.text


def _settled(
    text: str,
    found: Found,
    number: int,
    finding: Finding,
    homes: dict[Place, set[int]],
    edits_of: Edited,
) -> Finding | None:
    """The finding with the edits that can be made; None where it holds on some ways only."""
    command = found[number][0]
    if not finding.edits:
        ways = [findings for c, findings in found if c.place == command.place]
        always = all(any(f.rule == finding.rule for f in findings) for findings in ways)
        return finding if always or finding.effect == ENDS else None
    if why := obstacle(text, command, finding.edits):
        return _left(finding, why)
    against = _against(found, number, finding, homes, edits_of)
    if not against:
        return finding
    if any(c.place == command.place for c in against):
        on_some = "there are ways through the script on which it is right"
        return _left(finding, on_some) if finding.effect == ENDS else None
    if own := _as_own(found, command, finding):
        return own
    name = _shared(command, finding)
    lines = sorted({text.count("\n", 0, c.place[0]) + 1 for c in against})
    shown = ", ".join(map(str, lines))
    return _left(
        finding,
        f"{name} is used in line{'s' * (len(lines) > 1)} {shown} too, where that would be wrong",
    )


def _shared(command: FoundCommand, finding: Finding) -> str:
    """What to call the words that others use too."""
    homes = (w.origin.name for w in touched(command, finding.edits) if w.origin is not None)
    if any(isinstance(e, SpanEdit) for e in finding.edits):
        return finding.words.partition("=")[0]
    return next(homes, "what is written there")


def _left(finding: Finding, why: str) -> Finding:
    return replace(finding, edits=(), fix=f"{finding.fix} (--fix leaves it: {why})")


def _against(
    found: Found, number: int, finding: Finding, homes: dict[Place, set[int]], edits_of: Edited
) -> list[FoundCommand]:
    """The servers, or ways to this one, that share the words and do not ask for the same."""
    command = found[number][0]
    words = _keys(command, touched(command, finding.edits))
    changes = (e for e in finding.edits if isinstance(e, SpanEdit))
    words |= {_key(command, e.start, e.end) for e in changes}
    others = {n for place in words for n in homes.get(place, ())} - {number}
    if not others:
        return []
    result = edits_of(number, finding)

    def asks_too(n: int) -> bool:
        same = (f for f in found[n][1] if f.rule == finding.rule and f.edits)
        return any(edits_of(n, f) == result for f in same)

    return [found[n][0] for n in sorted(others) if not asks_too(n)]


def _as_own(found: Found, command: FoundCommand, finding: Finding) -> Finding | None:
    """Options that are put in, in the server's own words: right behind its name."""
    changes = [e for e in finding.edits if isinstance(e, WordEdit)]
    deployment = (c for c, _ in found if c.place != command.place)
    alone = all(c.begin != command.begin for c in deployment)
    if alone and len(changes) == len(finding.edits) == 1 and not changes[0].count:
        return replace(finding, edits=(WordEdit(0, 0, changes[0].new),))
    return None


def _places(command: FoundCommand) -> set[Place]:
    variables = [v for v in command.variables if v.in_text]
    names = {_key(command, v.start, v.end) for v in variables}
    values = {_key(command, v.value_at, v.value_at + len(v.value)) for v in variables}
    return _keys(command, command.words) | names | values


def _keys(command: FoundCommand, words: Sequence[Word]) -> set[Place]:
    placed = (w for w in words if w.start >= 0)
    return {
        (-1, w.start, w.end) if w.origin is not None else _key(command, w.start, w.end)
        for w in placed
    }


def _key(command: FoundCommand, start: int, end: int) -> Place:
    """Places in a text that is written anew count from its own beginning."""
    scalar = command.scalar
    return (scalar.start if scalar is not None and scalar.inner is None else -1), start, end
