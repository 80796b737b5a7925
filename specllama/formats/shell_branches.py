"""The paths through a shell script: the values of its variables at each command, for each
combination of branches before it. Nothing is run; a loop's body counts as run once or never."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specllama.formats.shell_variables import KEYWORDS, POSITIONAL, UNKNOWN, Bindings, assigned
from specllama.formats.shell_words import SimpleCommand

Paths = tuple[Bindings, ...]
_MAX_PATHS = 16  # paths that are followed separately
_MAX_NAMES = 300

_LOOPS = ("for", "while", "until", "select")
_ENDS = {"fi": "if", "esac": "case", "done": "loop"}


@dataclass
class _OpenBranch:
    """A branching that is not closed yet. `entry`: the paths into it; `ends`: those out of the
    branches so far; `complete`: one branch is always taken."""

    kind: str
    entry: Paths
    ends: list[Bindings] = field(default_factory=list)
    complete: bool = False


def walk(
    source: str, simples: Sequence[SimpleCommand], known: Bindings
) -> Iterator[tuple[SimpleCommand, Paths]]:
    """Each simple command with the paths that lead to it. `known`: variables set before."""
    paths: Paths = (known,)
    forks: list[_OpenBranch] = []
    skipped: list[Bindings] = []  # paths that left before this command, at a && or ||
    for simple in simples:
        chained = simple.before.strip("\n") in ("&&", "||")
        if not chained and skipped:
            paths, skipped = _merged([*paths, *skipped]), []
        paths = _branched(simple, paths, forks)
        yield simple, paths
        changes = [dict(assigned(source, simple, known)) for known in paths]
        if not any(changes):
            continue
        if chained:
            skipped += paths
        after = [_with(known, new) for known, new in zip(paths, changes, strict=True)]
        paths = _merged(after)


def _with(known: Bindings, new: Bindings) -> Bindings:
    """With the new variables; beyond a limit that no real script reaches they stay unknown."""
    new = {n: v for n, v in new.items() if n in known or len(known) < _MAX_NAMES}
    return {**known, **new} if new else known


def _branched(simple: SimpleCommand, paths: Paths, forks: list[_OpenBranch]) -> Paths:
    """The paths into a command, after the keywords before it."""
    fork = forks[-1] if forks else None
    next_case = simple.before.startswith(";;") and simple.words[0].text != "esac"
    if fork is not None and fork.kind == "case" and next_case:
        fork.ends += paths
        paths = fork.entry
    for word in simple.words:
        text = word.text
        if text == "if":
            forks.append(_OpenBranch("if", paths))
        elif text == "case":
            forks.append(_OpenBranch("case", paths))
            break
        elif text in _LOOPS:
            forks.append(_OpenBranch("loop", paths))
        elif fork is not None and text in ("elif", "else") and fork.kind == "if":
            fork.ends += paths
            fork.complete = text == "else"
            paths = fork.entry
        elif fork is not None and _ENDS.get(text) == fork.kind:
            forks.pop()
            ends = [*fork.ends, *paths]
            paths = _merged(ends if fork.complete else [*ends, *fork.entry])
            fork = forks[-1] if forks else None
        elif fork is not None and fork.kind == "case" and text == "*":
            fork.complete = True
        elif text == "function" or (text == "{" and "()" in simple.before):
            return tuple({**known, POSITIONAL: UNKNOWN} for known in paths)
        if text not in KEYWORDS:
            break
    return paths


def _merged(paths: Sequence[Bindings]) -> Paths:
    """Without duplicates; too many become one, in which differing values are unknown."""
    out: list[Bindings] = []
    for known in paths:
        if known not in out:
            out.append(known)
    if len(out) <= _MAX_PATHS:
        return tuple(out)
    names = {n for known in out for n in known}
    first = out[0]
    return ({n: first[n] if _agreed(n, out) else UNKNOWN for n in names},)


def _agreed(name: str, paths: Sequence[Bindings]) -> bool:
    return all(known.get(name) == paths[0].get(name) for known in paths)
