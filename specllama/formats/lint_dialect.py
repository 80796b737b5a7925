"""Mainline llama.cpp's options of speculation given to ik_llama.cpp, which says all of them in
`--spec-type TYPE:key=value,…` (engine/ik_llama.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.engine import ik_llama
from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.settings import NgramSizes, Speculation
from specllama.formats import builds, flags
from specllama.formats.finding import ENDS, Edits, Finding, instead, remove
from specllama.formats.seen import OptionUse, ParsedCommand


def findings(seen: ParsedCommand) -> Iterator[Finding]:
    if seen.caps.flavour != IK_LLAMA:
        return
    typed = seen.all("--spec-type")
    own = any(_own(t, seen) for t in seen.given_types)
    strange = [u for u in seen.uses if foreign(u)]
    methods = tuple(t for t in seen.types if not ik_llama.unsupported(seen.caps, t))
    if seen.draft_uses and not seen.types:
        methods = ("draft-simple",)
    mainline = [u for u in typed if not own]
    if own or not (strange or mainline):
        return
    stages = ik_llama.stages(_speculation(seen, methods)) if methods else []
    words = [w for stage in stages for w in stage]
    first, *others = sorted({*strange, *mainline}, key=lambda u: u.at)
    edits: Edits = (
        instead(first, *words) if words else remove(first),
        *(remove(u) for u in others),
    )
    for use in (first, *others):
        yield Finding(
            "other-dialect",
            ENDS,
            seen.show(use),
            "mainline llama.cpp's way: ik_llama.cpp takes --spec-type TYPE:key=value,… for it",
            " ".join(words) or "take it out",
            edits,
        )


def foreign(use: OptionUse) -> bool:
    """Whether an option that ik_llama.cpp lacks is one of mainline's speculation, new or old."""
    if use.usable:
        return False
    wrong = flags.wrong().get(use.name)
    old = wrong is not None and wrong.means in (
        "draft-length",
        "draft-minimum",
        "lookup",
        "min-hits",
    )
    known = builds.since(use.name) is not None
    return old or (known and re.match(r"--(spec|draft)-|-cd$", use.name) is not None)


def _own(text: str, seen: ParsedCommand) -> bool:
    """A stage in ik_llama.cpp's grammar."""
    return ":" in text or "=" in text or (text in seen.caps.spec_types and text != "none")


def _speculation(seen: ParsedCommand, methods: tuple[str, ...]) -> Speculation:
    def number(default: str, *names: str) -> float:
        text = seen.text(*names) or default
        return float(text) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else float(default)

    kind = next((m for m in methods if m.startswith("ngram-")), "")
    sizes = None
    if kind:
        n = number("12", f"--spec-{kind}-size-n", "--spec-ngram-size-n", "--spec-ngram-mod-n-match")
        m = number("48", f"--spec-{kind}-size-m", "--spec-ngram-size-m", "--spec-ngram-mod-n-max")
        sizes = NgramSizes(int(n), int(m), int(number("1", f"--spec-{kind}-min-hits")))
    return Speculation(
        methods,
        n_max=int(number("3", "--spec-draft-n-max", "--draft-max", "--draft", "--draft-n")),
        n_min=int(number("0", "--spec-draft-n-min", "--draft-min")),
        p_min=number("0", "--spec-draft-p-min", "--draft-p-min"),
        ngram=sizes,
    )
