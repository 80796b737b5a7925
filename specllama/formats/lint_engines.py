"""Speculative decoding flags of vLLM and SGLang command lines: removed ones, and those of other
programs. Facts: flags.toml."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from specllama.formats import flags, lint_sglang, lint_vllm
from specllama.formats.engine_config import record
from specllama.formats.engine_flags import EngineFlag, nearest, read_flags
from specllama.formats.finding import ENDS, Edits, Finding
from specllama.formats.found_command import VLLM, FoundCommand, WordEdit

_SPECULATIVE = ("--speculative-", "--spec-draft-")
_TYPO = 0.9  # similarity from which --fix corrects a name


def findings(command: FoundCommand) -> Iterator[Finding]:
    vllm = command.program == VLLM
    table = flags.other_engine("vllm" if vllm else "sglang")
    given = list(read_flags(command))
    wrong = [f for f in given if f.name in table.removed or f.name in table.foreign]
    names = {f.name for f in given}
    config = lint_vllm.flags_for_config(wrong, table) if vllm else []
    for flag in wrong:
        removed = flag.name in table.removed
        replacement = table.removed[flag.name] if removed else table.foreign[flag.name]
        edits: Edits = ()
        if vllm and replacement and not replacement.startswith("-"):
            if flag is config[0]:
                edits = lint_vllm.fold_into_config(given, config, table)
            fix = f'--speculative-config with "{replacement}"'
        else:
            value = table.methods.get(flag.value, flag.value)
            new = (replacement, value) if replacement and replacement not in names else ()
            edits = (WordEdit(flag.index, flag.count, new),) if flag.fixed else ()
            fix = " ".join(new) or "remove it"
        yield Finding(
            "removed-flag" if removed else "other-engine-flag",
            ENDS,
            flag.shown,
            (
                f"{command.program} no longer has {flag.name}"
                if removed
                else f"{command.program} never had {flag.name}"
            )
            + " and exits at startup",
            fix,
            edits,
        )
    for flag in given:
        known = flag.name in table.removed or flag.name in table.foreign
        if not known and flag.name.startswith(_SPECULATIVE):
            yield from _unknown(command.program, flag, vllm)
    if vllm:
        yield from lint_vllm.findings(given, table)
    else:
        yield from lint_sglang.findings(given, table, len(command.words))


def _unknown(program: str, flag: EngineFlag, vllm: bool) -> Iterator[Finding]:
    """argparse accepts an unambiguous prefix of an option; vLLM's also keys after a dot."""
    known = [lint_vllm.CONFIG[0]] if vllm else [f"--{n}" for n in _sglang_names()]
    name = flag.name.partition(".")[0] if vllm else flag.name
    if name in known or sum(k.startswith(name) for k in known) == 1:
        return
    edits: Edits = ()
    if vllm:
        key = name.removeprefix("--speculative-").replace("-", "_")
        near = nearest(key, record("vllm")["speculative"])
        fix = f'did you mean "{near}" in --speculative-config?' if near else "remove it"
    else:
        near = nearest(name, known)
        fix = f"did you mean {near}?" if near else "remove it"
        if flag.fixed and difflib.SequenceMatcher(None, name, near).ratio() >= _TYPO:
            edits = (WordEdit(flag.index, flag.count, tuple(filter(None, (near, flag.value)))),)
    version = record("vllm" if vllm else "sglang")["version"]
    yield Finding(
        "unknown-flag",
        ENDS,
        flag.shown,
        f"{program} {version} has no option {flag.name} and exits at startup",
        fix,
        edits,
    )


def _sglang_names() -> list[str]:
    return [*record("sglang")["speculative"], *record("sglang")["aliases"]]
