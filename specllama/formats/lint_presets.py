"""What a router takes otherwise from a preset than from a command line (llama.cpp,
common/preset.cpp and tools/server/server-models.cpp, b11434; each tried on its router)."""

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
    same_id,
    sections,
)

# What the router sets for its children, or takes from its own command line only.
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
    """What is wrong with the section of a preset that a command is."""
    if not parsed.command.paired:
        return
    every = sections(text)
    section = next(s for s in every if s.options and s.start == parsed.command.begin)
    if text.startswith(BOM) and section is next(s for s in every if s.options):
        yield Finding(
            "byte-order-mark",
            ENDS,
            "the file's first three bytes",
            "the file begins with a byte-order mark (Windows editors write it): the router ends at it",
            "save it as UTF-8 without BOM",
            (SpanEdit(0, len(BOM), ""),),
        )
    yield from _header(text, section, every)
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


def _header(
    text: str, section: PresetSection, every: tuple[PresetSection, ...]
) -> Iterator[Finding]:
    name, blank = section.name, section.name.strip()
    if not name and not _names_a_model(section):
        free = all(s.name != EVERYWHERE for s in every)
        first = section.options[0].start
        yield Finding(
            "no-section",
            NOTHING,
            section.options[0].key,
            "keys before any [section] become a model of the name default, and hold for no other",
            "put them under [*]: what is there holds for every model",
            (SpanEdit(first, first, f"[*]{_newline(text)}"),) if free else (),
        )
    elif name != blank:
        begins = [s.start + 1 for s in (*section.earlier, section)]
        yield Finding(
            "blank-in-name",
            WORSE,
            f"[{name}]",
            f"blanks before the bracket belong to the model's id: it is {name!r}",
            f"[{blank}]",
            tuple(SpanEdit(at, text.index("]", at), blank) for at in begins),
        )
    if section.earlier:
        yield _repeated(text, section)
    twins = [s.name for s in every if s.name != name and same_id(s.name) == same_id(name)]
    if ":" in name and twins and name < max(twins):
        yield Finding(
            "repeated-section",
            NOTHING,
            f"[{name}]",
            f"the router makes {same_id(name)} of it and of [{twins[0]}]: only one of them is left",
            "give one of them another name",
        )


def _names_a_model(section: PresetSection) -> bool:
    known = "model m model-url mu hf-repo hf hfr docker-repo dr LLAMA_ARG_MODEL LLAMA_ARG_HF_REPO"
    return any(line.key in known.split() for line in section.lines)


def _repeated(text: str, section: PresetSection) -> Finding:
    """All of it goes under the last header, where the two do not contradict each other."""
    lost = [line for s in section.earlier for line in s.lines]
    values: dict[str, set[str]] = {}
    for line in (*lost, *section.lines):
        values.setdefault(line.key, set()).add(line.value)
    both = sorted(k for k, said in values.items() if len(said) > 1)
    there = {line.key for line in section.lines}
    moved = {line.key: line for line in lost if line.key not in there}.values()
    edits = [SpanEdit(s.start, s.end, "") for s in section.earlier]
    end = section.lines[-1].end
    new = "".join(f"{_newline(text)}{text[line.start : line.end]}" for line in moved)
    return Finding(
        "repeated-section",
        NOTHING,
        f"[{section.name}]",
        "the section stands there more than once, and the last one replaces the others whole: lost are "
        + (", ".join(line.key for line in lost) or "no keys"),
        f"give one of them another name, or join them: they differ in {', '.join(both)}"
        if both
        else "one section with all the keys",
        () if both else (*edits, SpanEdit(end, end, new)),
    )


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _refused(text: str, line: PresetLine) -> Finding:
    return Finding(
        "refused-line",
        ENDS,
        text[line.start : line.end].strip(),
        f"{line.refused}: the router ends, whatever else the file holds",
        line.right,
        (SpanEdit(line.start, line.end, line.right),),
    )


def _spellings(parsed: ParsedCommand, by_key: dict[int, PresetLine]) -> Iterator[Finding]:
    """Of several keys for one option the router takes the last in the order of the alphabet; of one
    key given twice the last line."""
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
                f"{keys[counts]} = {value} is the same option and counts: "
                + ("it stands later" if same else "its name is later in the alphabet"),
                "keep one of them; what is left does what both do today",
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
            "a preset knows no spelling with _: the router ends at it",
            use.name.lstrip("-"),
            (replace_option(use, use.name, use.index + 1),),
        )
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        yield Finding(
            "quoted-value",
            WORSE,
            shown,
            "a preset has no quotes: they become part of the value",
            value[1:-1],
            (replace_option(use, use.index, value[1:-1]),),
        )
    if _ROUTERS_OWN & set(use.names):
        name = next(n for n in use.names if n in _ROUTERS_OWN)
        yield Finding(
            "dropped-key",
            NOTHING,
            shown,
            "the router drops it without a word: it is its own to say, for all models",
            f"take it out; start the router with {name} where it is wanted",
            (remove_option(use),),
        )
    if use.option is not None and use.option.arity > 1:
        yield Finding(
            "two-values",
            ENDS,
            shown,
            "a preset cannot say options with two values: the router ends at it",
            "take it out",
            (remove_option(use),),
        )


def _cut(parsed: ParsedCommand, use: OptionUse, line: PresetLine) -> Iterator[Finding]:
    """# and ; begin a comment wherever they stand; a value that goes on behind one is cut."""
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
        f"a preset has no quotes and no escapes: the value ends before {line.cut[0]}, it is {line.value}",
        f"sampler-seq = {seq}"
        if seq
        else "give the file another name, or a link to it"
        if is_file
        else f"write it without {line.cut[0]}",
        (replace_option(use, "--sampler-seq", seq),) if seq else (),
    )


def _switch(parsed: ParsedCommand, use: OptionUse, option: HelpOption) -> Iterator[Finding]:
    """preset.cpp, parse_bool_arg and to_args: words that are neither on nor off."""
    key, value = use.written.lstrip("-"), parsed.word(use.index + 1).text
    negative = use.name in option.opposites
    on = value not in _ON if negative else value not in _OFF
    meant = value.lower()
    if meant not in (*_MEANT_ON, *_MEANT_OFF):
        return
    wanted = (meant in _MEANT_ON) != negative
    if wanted or not on:
        return
    name = next((n for n in reversed(option.names) if n not in option.opposites), use.name)
    right = "true" if meant in _MEANT_ON else "false"
    yield Finding(
        "odd-switch",
        WORSE,
        f"{key} = {value}".strip(),
        f"{value!r} is neither on nor off there, and counts as the opposite: the router passes {name}",
        f"{key} = {right}",
        (replace_option(use, use.index, right),),
    )
