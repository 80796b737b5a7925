"""Mainline llama.cpp's speculative options given to ik_llama.cpp, which has
`--spec-type TYPE:key=value,…` for all of them (engine/ik_llama.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.engine import ik_llama
from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.settings import NgramSizes, Speculation
from specllama.formats import flags, known_builds
from specllama.formats.finding import ENDS, Edits, Finding, remove_option, replace_option
from specllama.formats.parsed_command import OptionUse, ParsedCommand


def findings(parsed: ParsedCommand) -> Iterator[Finding]:
    if parsed.caps.flavour != IK_LLAMA:
        return
    typed = parsed.all("--spec-type")
    is_ik = any(_own(t, parsed) for t in parsed.given_types)
    mainline_options = [u for u in parsed.uses if foreign(u)]
    methods = tuple(t for t in parsed.types if not ik_llama.unsupported(parsed.caps, t))
    if parsed.draft_uses and not parsed.types:
        methods = ("draft-simple",)
    mainline_types = [u for u in typed if not is_ik]
    if is_ik or not (mainline_options or mainline_types):
        return
    stages = ik_llama.stages(_speculation(parsed, methods)) if methods else []
    words = [w for stage in stages for w in stage]
    first, *others = sorted({*mainline_options, *mainline_types}, key=lambda u: u.index)
    edits: Edits = (
        replace_option(first, *words) if words else remove_option(first),
        *(remove_option(u) for u in others),
    )
    for use in (first, *others):
        yield Finding(
            "other-dialect",
            ENDS,
            parsed.show(use),
            "an option of mainline llama.cpp; ik_llama.cpp uses --spec-type TYPE:key=value,…",
            " ".join(words) or "remove it",
            edits,
        )


def foreign(use: OptionUse) -> bool:
    """Whether an option unknown to ik_llama.cpp is a speculative one of mainline, new or old."""
    if use.usable:
        return False
    wrong = flags.wrong_flags().get(use.name)
    old = wrong is not None and wrong.means in (
        "draft-length",
        "draft-minimum",
        "lookup",
        "min-hits",
    )
    known = known_builds.since(use.name) is not None
    return old or (known and re.match(r"--(spec|draft)-|-cd$", use.name) is not None)


def _own(text: str, parsed: ParsedCommand) -> bool:
    """A stage in ik_llama.cpp's grammar."""
    return ":" in text or "=" in text or (text in parsed.caps.spec_types and text != "none")


def _speculation(parsed: ParsedCommand, methods: tuple[str, ...]) -> Speculation:
    def number(default: str, *names: str) -> float:
        text = parsed.text(*names) or default
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
