"""The ways through a shell script: what its variables hold at each command, one answer for each
branch that was taken before it. Nothing is run; a loop's body counts as done once or never."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specllama.formats.shell_variables import KEYWORDS, POSITIONAL, UNKNOWN, Bindings, assigned
from specllama.formats.shell_words import SimpleCommand

Paths = tuple[Bindings, ...]
_MAX_PATHS = 16  # ways that are told apart
_MAX_NAMES = 300

_LOOPS = ("for", "while", "until", "select")
_ENDS = {"fi": "if", "esac": "case", "done": "loop"}


@dataclass
class _OpenBranch:
    """A branching that is open. `entry`: the ways that lead to it; `ends`: those out of the
    branches so far; `complete`: one branch is taken whatever holds."""

    kind: str
    entry: Paths
    ends: list[Bindings] = field(default_factory=list)
    complete: bool = False


def walk(
    source: str, simples: Sequence[SimpleCommand], known: Bindings
) -> Iterator[tuple[SimpleCommand, Paths]]:
    """Each simple command with the ways that lead to it. `known`: what is set before."""
    ways: Paths = (known,)
    forks: list[_OpenBranch] = []
    skipped: list[Bindings] = []  # ways that a && or || left before this command
    for simple in simples:
        chained = simple.before.strip("\n") in ("&&", "||")
        if not chained and skipped:
            ways, skipped = _merged([*ways, *skipped]), []
        ways = _branched(simple, ways, forks)
        yield simple, ways
        changes = [dict(assigned(source, simple, known)) for known in ways]
        if not any(changes):
            continue
        if chained:
            skipped += ways
        after = [_with(known, new) for known, new in zip(ways, changes, strict=True)]
        ways = _merged(after)


def _with(known: Bindings, new: Bindings) -> Bindings:
    """Beyond a number of names that no script has, the others stay unknown."""
    kept = {n: v for n, v in new.items() if n in known or len(known) < _MAX_NAMES}
    return {**known, **kept} if kept else known


def _branched(simple: SimpleCommand, ways: Paths, forks: list[_OpenBranch]) -> Paths:
    """The ways that lead into a command, after the keywords before it."""
    fork = forks[-1] if forks else None
    next_case = simple.before.startswith(";;") and simple.words[0].text != "esac"
    if fork is not None and fork.kind == "case" and next_case:
        fork.ends += ways
        ways = fork.entry
    for word in simple.words:
        text = word.text
        if text == "if":
            forks.append(_OpenBranch("if", ways))
        elif text == "case":
            forks.append(_OpenBranch("case", ways))
            break
        elif text in _LOOPS:
            forks.append(_OpenBranch("loop", ways))
        elif fork is not None and text in ("elif", "else") and fork.kind == "if":
            fork.ends += ways
            fork.complete = text == "else"
            ways = fork.entry
        elif fork is not None and _ENDS.get(text) == fork.kind:
            forks.pop()
            ends = [*fork.ends, *ways]
            ways = _merged(ends if fork.complete else [*ends, *fork.entry])
            fork = forks[-1] if forks else None
        elif fork is not None and fork.kind == "case" and text == "*":
            fork.complete = True
        elif text == "function" or (text == "{" and "()" in simple.before):
            return tuple({**known, POSITIONAL: UNKNOWN} for known in ways)
        if text not in KEYWORDS:
            break
    return ways


def _merged(ways: Sequence[Bindings]) -> Paths:
    """Each once; of too many, one in which what differs is unknown."""
    out: list[Bindings] = []
    for known in ways:
        if known not in out:
            out.append(known)
    if len(out) <= _MAX_PATHS:
        return tuple(out)
    names = {n for known in out for n in known}
    first = out[0]
    return ({n: first[n] if _agreed(n, out) else UNKNOWN for n in names},)


def _agreed(name: str, ways: Sequence[Bindings]) -> bool:
    return all(known.get(name) == ways[0].get(name) for known in ways)
