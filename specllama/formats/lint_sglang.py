"""SGLang's speculative options: names of algorithms, and the three lengths that go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specllama.formats import flags
from specllama.formats.engine_flags import EngineFlag
from specllama.formats.finding import ENDS, Finding
from specllama.formats.found_command import WordEdit

_ALGORITHM = "--speculative-algorithm"
_LENGTHS = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")


def findings(
    given: Sequence[EngineFlag], table: flags.OtherEngine, word_count: int
) -> Iterator[Finding]:
    """`word_count`: of the command, where new flags are appended."""
    for flag in given:
        meant = table.methods.get(flag.value)
        if flag.name == _ALGORITHM and meant and flag.fixed:
            yield Finding(
                "unknown-method",
                ENDS,
                flag.shown,
                f"SGLang does not know {flag.value}; its name for it is {meant}",
                f"{flag.name} {meant}",
                (WordEdit(flag.index, flag.count, (flag.name, meant)),),
            )
    algorithm = next((f.value.upper() for f in given if f.name == _ALGORITHM), "")
    lengths = {f.name: f for f in given if f.name in _LENGTHS}
    if algorithm in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE") and 0 < len(lengths) < 3:
        new = _missing_lengths(lengths)
        yield Finding(
            "incomplete",
            ENDS,
            " ".join(f.shown for f in lengths.values()),
            "SGLang needs steps, top-k and draft tokens together, or none of the three",
            "add " + (" ".join(new) or "the others, or leave all three out"),
            (WordEdit(word_count, 0, new),) if new else (),
        )


def _missing_lengths(lengths: Mapping[str, EngineFlag]) -> tuple[str, ...]:
    """Those of a chain: top-k 1, and one draft token more than steps (SGLang 0.5.23,
    arg_groups/speculative_hook.py:1255-1266)."""
    steps, topk, tokens = _LENGTHS
    chain = topk not in lengths or lengths[topk].value == "1"
    given = lengths.get(steps) or lengths.get(tokens)
    if not chain or given is None or not given.value.isdigit():
        return ()
    n = max(int(given.value) - (given.name == tokens), 1)
    values = {steps: str(n), topk: "1", tokens: str(n + 1)}
    return tuple(w for name in _LENGTHS if name not in lengths for w in (name, values[name]))
