"""Where the router reads a preset differently from a command line (llama.cpp, common/preset.cpp
and tools/server/server-models.cpp, b11434; each tried on its router)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specllama.engine.helptext import HelpOption
from specllama.formats.finding import ENDS, NOTHING, WORSE, Finding, remove_option, replace_option
from specllama.formats.found_command import SpanEdit
from specllama.formats.parsed_command import OptionUse, ParsedCommand, find_option
from specllama.formats.preset_file import (
    BOM,
    EVERYWHERE,
    PresetLine,
    PresetSection,
    names_by_id,
    same_id,
    sections,
    sections_by_start,
)

# What the router sets for its child servers, or reads only from its own command line.
_ROUTERS_OWN = set(
    "--host --port --api-key --api-key-file --ssl-key-file --ssl-cert-file --models-dir --models-max "
    "--models-preset --models-autoload".split()
)
_FILES = set("-m -md -mm --lora --chat-template-file --grammar-file".split())
_ON = ("on", "enabled", "true", "1")
_OFF = ("off", "disabled", "false", "0")
_MEANT_ON = (*_ON, "yes", "y", "")
_MEANT_OFF = (*_OFF, "no", "n")
# Samplers and the letters of --sampler-seq (common/sampling.cpp).
_LETTERS = {
    "dry": "d", "top_k": "k", "typ_p": "y", "typ": "y", "top_p": "p", "nucleus": "p", "min_p": "m",
    "top_n_sigma": "s", "temperature": "t", "temp": "t", "xtc": "x", "infill": "i", "penalties": "e",
    "adaptive_p": "a",
}  # fmt: skip


def findings(text: str, parsed: ParsedCommand) -> Iterator[Finding]:
    """Findings about the section of a preset that a command is."""
    if not parsed.command.paired:
        return
    with_options = sections_by_start(text)
    section = with_options[parsed.command.begin]
    if text.startswith(BOM) and section is next(iter(with_options.values())):
        yield Finding(
            "byte-order-mark",
            ENDS,
            "the file's first three bytes",
            "the file begins with a byte-order mark (added by Windows editors); the router exits",
            "save it as UTF-8 without a BOM",
            (SpanEdit(0, len(BOM), ""),),
        )
    yield from _header(text, section)
    by_key = {line.key_at: line for line in section.lines}
    for line in section.lines:
        if line.refused:
            yield _refused(text, line)
    yield from _spellings(parsed, by_key)
    for use in parsed.uses:
        yield from _key(parsed, use)
        if (found := by_key.get(parsed.word(use.index).start)) is not None and found.cut:
            yield from _cut(parsed, use, found)
        if use.option is not None and not use.option.hint:
            yield from _switch(parsed, use, use.option)


def _header(text: str, section: PresetSection) -> Iterator[Finding]:
    name, blank = section.name, section.name.strip()
    if not name and not _names_a_model(section):
        free = all(s.name != EVERYWHERE for s in sections(text))
        first = section.options[0].start
        yield Finding(
            "no-section",
            NOTHING,
            section.options[0].key,
            "keys before the first [section] define a model named default and apply to no other",
            "put them under [*], which applies to every model",
            (SpanEdit(first, first, f"[*]{_newline(text)}"),) if free else (),
        )
    elif name != blank:
        begins = [s.start + 1 for s in (*section.earlier, section)]
        yield Finding(
            "blank-in-name",
            WORSE,
            f"[{name}]",
            f"spaces before the bracket are part of the model's id: {name!r}",
            f"[{blank}]",
            tuple(SpanEdit(at, text.index("]", at), blank) for at in begins),
        )
    if section.earlier:
        yield _repeated(text, section)
    twins = [n for n in names_by_id(text)[same_id(name)] if n != name]
    if ":" in name and twins and name < max(twins):
        yield Finding(
            "repeated-section",
            NOTHING,
            f"[{name}]",
            f"the router maps this and [{twins[0]}] to {same_id(name)}: only one of them is used",
            "rename one of them",
        )


def _names_a_model(section: PresetSection) -> bool:
    known = "model m model-url mu hf-repo hf hfr docker-repo dr LLAMA_ARG_MODEL LLAMA_ARG_HF_REPO"
    return any(line.key in known.split() for line in section.lines)


def _repeated(text: str, section: PresetSection) -> Finding:
    """Merged under the last header, unless the sections contradict each other."""
    ignored = [line for s in section.earlier for line in s.lines]
    values: dict[str, set[str]] = {}
    for line in (*ignored, *section.lines):
        values.setdefault(line.key, set()).add(line.value)
    both = sorted(k for k, found in values.items() if len(found) > 1)
    present = {line.key for line in section.lines}
    moved = {line.key: line for line in ignored if line.key not in present}.values()
    edits = [SpanEdit(s.start, s.end, "") for s in section.earlier]
    end = section.lines[-1].end
    new = "".join(f"{_newline(text)}{text[line.start : line.end]}" for line in moved)
    return Finding(
        "repeated-section",
        NOTHING,
        f"[{section.name}]",
        "the section is repeated, and only the last one counts; ignored: "
        + (", ".join(line.key for line in ignored) or "no keys"),
        f"rename one of them, or merge them: they differ in {', '.join(both)}"
        if both
        else "merge them into one section",
        () if both else (*edits, SpanEdit(end, end, new)),
    )


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _refused(text: str, line: PresetLine) -> Finding:
    return Finding(
        "refused-line",
        ENDS,
        text[line.start : line.end].strip(),
        f"{line.refused}; the router exits, whatever else the file contains",
        line.right,
        (SpanEdit(line.start, line.end, line.right),),
    )


def _spellings(parsed: ParsedCommand, by_key: dict[int, PresetLine]) -> Iterator[Finding]:
    """Of several keys for one option the router uses the alphabetically last, of one key given twice
    the last line."""
    groups: dict[tuple[str, ...], list[OptionUse]] = {}
    for use in parsed.uses:
        if use.option is not None and "--spec-type" not in use.names:
            groups.setdefault(use.names, []).append(use)
    for uses in groups.values():
        keys = [by_key[parsed.word(u.index).start].key for u in uses]
        counts = max(range(len(uses)), key=lambda n: (keys[n], n))
        value = parsed.word(uses[counts].index + 1).text
        for n, use in enumerate(uses):
            if n == counts:
                continue
            same = keys[n] == keys[counts]
            yield Finding(
                "repeated-key",
                NOTHING,
                f"{keys[n]} = {parsed.word(use.index + 1).text}",
                f"{keys[counts]} = {value} is the same option and wins: "
                + ("it comes later" if same else "its name is alphabetically later"),
                "remove this one; nothing changes",
                (remove_option(use),),
            )


def _key(parsed: ParsedCommand, use: OptionUse) -> Iterator[Finding]:
    key, value = use.written.lstrip("-"), parsed.word(use.index + 1).text
    shown = f"{key} = {value}"
    if "_" in key and not key.startswith("LLAMA_ARG_") and use.option is not None:
        yield Finding(
            "underscore-key",
            ENDS,
            key,
            "presets do not support spellings with _; the router exits",
            use.name.lstrip("-"),
            (replace_option(use, use.name, use.index + 1),),
        )
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        yield Finding(
            "quoted-value",
            WORSE,
            shown,
            "presets have no quotes: they become part of the value",
            value[1:-1],
            (replace_option(use, use.index, value[1:-1]),),
        )
    if _ROUTERS_OWN & set(use.names):
        name = next(n for n in use.names if n in _ROUTERS_OWN)
        yield Finding(
            "dropped-key",
            NOTHING,
            shown,
            "the router silently ignores it here; it is set for all models on the router's command line",
            f"remove it; start the router with {name} if you need it",
            (remove_option(use),),
        )
    if use.option is not None and use.option.arity > 1:
        yield Finding(
            "two-values",
            ENDS,
            shown,
            "presets do not support options with two values; the router exits",
            "remove it",
            (remove_option(use),),
        )


def _cut(parsed: ParsedCommand, use: OptionUse, line: PresetLine) -> Iterator[Finding]:
    """# and ; begin a comment anywhere, and cut off the rest of a value."""
    whole = parsed.word(use.index + 1).text + line.cut
    glued = bool(line.value) and line.end - len(line.cut) == line.value_at + len(line.value)
    comment = use.option is not None and use.option.hint == "N" and line.value.isdecimal()
    is_file = bool(_FILES & set(use.names))
    if comment or not (glued or (is_file and re.search(r"\.gguf\s*$", line.cut))):
        return
    letters = [_LETTERS.get(p.strip(), "") for p in whole.split(";")]
    samplers = "--samplers" in use.names and find_option("--sampler-seq", parsed.caps) is not None
    seq = "".join(letters) if samplers and all(letters) else ""
    yield Finding(
        "cut-value",
        ENDS if is_file else WORSE,
        f"{line.key} = {whole}",
        f"presets have no quotes or escapes: {line.cut[0]} begins a comment, so the value is {line.value}",
        f"sampler-seq = {seq}"
        if seq
        else "rename the file, or use a link to it"
        if is_file
        else f"write it without {line.cut[0]}",
        (replace_option(use, "--sampler-seq", seq),) if seq else (),
    )


def _switch(parsed: ParsedCommand, use: OptionUse, option: HelpOption) -> Iterator[Finding]:
    """Words that are neither on nor off (preset.cpp, parse_bool_arg and to_args)."""
    key, value = use.written.lstrip("-"), parsed.word(use.index + 1).text
    negative = use.name in option.opposites
    on = value not in _ON if negative else value not in _OFF
    meant = value.lower()
    if meant not in (*_MEANT_ON, *_MEANT_OFF):
        return
    intended = (meant in _MEANT_ON) != negative
    if intended or not on:
        return
    name = next((n for n in reversed(option.names) if n not in option.opposites), use.name)
    right = "true" if meant in _MEANT_ON else "false"
    yield Finding(
        "odd-switch",
        WORSE,
        f"{key} = {value}".strip(),
        f"{value!r} is neither on nor off to the router, which passes {name}, the opposite",
        f"{key} = {right}",
        (replace_option(use, use.index, right),),
    )
