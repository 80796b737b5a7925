"""Flags of speculation given to vLLM and SGLang: those that are gone, and those of other
programs. Facts: flags.toml."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.formats import flags
from specllama.formats.engine_config import record
from specllama.formats.finding import ENDS, Edits, Finding
from specllama.formats.found_command import VLLM, FoundCommand, WordEdit
from specllama.formats.parsed_command import lookup_name

_CONFIG = ("--speculative-config", "-sc")
_SWITCHES = {"-fa", "--flash-attn", "--speculative-disable-mqa-scorer"}
_NUMBERS = {
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "draft_tensor_parallel_size",
    "max_model_len",
}
_OF_SPECULATION = ("--speculative-", "--spec-draft-")
_TYPO = 0.9  # as alike as that, and it is put right
_GONE = ("medusa", "mlp_speculator")


@dataclass(frozen=True)
class _Flag:
    name: str
    value: str
    index: int
    count: int
    fixed: bool
    written: str


def findings(command: FoundCommand) -> Iterator[Finding]:
    vllm = command.program == VLLM
    table = flags.other_engine("vllm" if vllm else "sglang")
    given = list(_flags(command))
    wrong = [f for f in given if f.name in table.removed or f.name in table.foreign]
    for n, flag in enumerate(wrong):
        gone = flag.name in table.removed
        means = table.removed[flag.name] if gone else table.foreign[flag.name]
        edits: Edits = ()
        if vllm and not means.startswith("-") and means:
            if n == _first_of_config(wrong, table):
                edits = _config(given, wrong, table)
            fix = f'--speculative-config with "{means}"'
        else:
            value = table.methods.get(flag.value, flag.value)
            new = (means, value) if means and means not in {f.name for f in given} else ()
            edits = (WordEdit(flag.index, flag.count, new),) if flag.fixed else ()
            fix = " ".join(new) or "take it out"
        yield Finding(
            "removed-flag" if gone else "other-engine-flag",
            ENDS,
            f"{flag.written} {flag.value}".strip(),
            f"{flag.name}: "
            + (f"{command.program} has it no more" if gone else f"{command.program} never had it")
            + " and ends at once",
            fix,
            edits,
        )
    for flag in given:
        if flag not in wrong and flag.name.startswith(_OF_SPECULATION):
            yield from _unknown(command.program, flag, vllm)
    if vllm:
        yield from _bad_config(given, table)
        yield from _gguf_draft(given, table)
    else:
        yield from _sglang(given, table, len(command.words))


def _unknown(program: str, flag: _Flag, vllm: bool) -> Iterator[Finding]:
    """argparse takes what begins one option only for it; vLLM's takes keys behind a point too."""
    known = [_CONFIG[0]] if vllm else [f"--{n}" for n in _names_of_sglang()]
    name = flag.name.partition(".")[0] if vllm else flag.name
    if name in known or sum(k.startswith(name) for k in known) == 1:
        return
    edits: Edits = ()
    if vllm:
        key = name.removeprefix("--speculative-").replace("-", "_")
        near = _nearest(key, record("vllm")["speculative"])
        fix = f'did you mean "{near}" in --speculative-config?' if near else "take it out"
    else:
        near = _nearest(name, known)
        fix = f"did you mean {near}?" if near else "take it out"
        if flag.fixed and difflib.SequenceMatcher(None, name, near).ratio() >= _TYPO:
            edits = (WordEdit(flag.index, flag.count, tuple(filter(None, (near, flag.value)))),)
    version = record("vllm" if vllm else "sglang")["version"]
    yield Finding(
        "unknown-flag",
        ENDS,
        f"{flag.written} {flag.value}".strip(),
        f"{program} {version} has no option {flag.name} and ends at once",
        fix,
        edits,
    )


def _names_of_sglang() -> list[str]:
    return [*record("sglang")["speculative"], *record("sglang")["aliases"]]


def _nearest(name: str, known: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


def _flags(command: FoundCommand) -> Iterator[_Flag]:
    index = 0
    while index < len(command.words):
        word = command.words[index]
        name, equals, value = lookup_name(word.text).partition("=")
        if equals:
            value = word.text.partition("=")[2]
        count = 1
        if word.text.startswith("-"):
            following = command.words[index + 1 : index + 2]
            if not equals and following and not _is_flag(following[0].text, name):
                value, count = following[0].text, 2
            fixed = word.fixed and all(w.fixed for w in command.words[index : index + count])
            yield _Flag(name, value, index, count, fixed, name)
        index += count


def _is_flag(text: str, before: str) -> bool:
    """Whether the word behind a flag is another one; a switch has no value either."""
    return text.startswith("-") or (before in _SWITCHES and text not in ("on", "off", "auto"))


def _first_of_config(wrong: list[_Flag], table: flags.OtherEngine) -> int:
    """The flag whose place the new --speculative-config takes."""
    for n, flag in enumerate(wrong):
        means = table.removed.get(flag.name) or table.foreign.get(flag.name) or ""
        if means and not means.startswith("-"):
            return n
    return -1


def _config(given: list[_Flag], wrong: list[_Flag], table: flags.OtherEngine) -> Edits:
    """All old flags folded into one --speculative-config."""
    old = next((f for f in given if f.name in _CONFIG), None)
    config: dict[str, Any] = dict(_parsed(old.value) or {}) if old is not None else {}
    parts: list[_Flag] = []
    for flag in wrong:
        key = table.removed.get(flag.name) or table.foreign.get(flag.name) or ""
        if not key or key.startswith("-"):
            continue
        if not flag.fixed:
            return ()
        parts.append(flag)
        config.setdefault(key, _value(key, flag.value, table.methods))
    if config.get("model") == "ngram":
        config.pop("model")
        config.setdefault("method", "ngram")
    if "method" not in config:
        lookup = "prompt_lookup_max" in config or "prompt_lookup_min" in config
        config["method"] = "draft_model" if "model" in config or not lookup else "ngram"
    if config["method"] not in ("suffix",):
        config.setdefault("num_speculative_tokens", 5)
    ordered = {k: config[k] for k in ("method", "model", *config) if k in config}
    first = parts[0] if old is None else old
    kept = WordEdit(first.index, first.count, ("--speculative-config", json.dumps(ordered)))
    return (kept, *(WordEdit(f.index, f.count) for f in parts if f is not first))


def _value(key: str, text: str, methods: Mapping[str, str]) -> object:
    if key == "model" and methods.get(text) == "ngram":
        return "ngram"
    if key == "method":
        return methods.get(text, text)
    if key in _NUMBERS and text.isdigit():
        return int(text)
    return True if key == "parallel_drafting" else text


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _bad_config(given: list[_Flag], table: flags.OtherEngine) -> Iterator[Finding]:
    for flag in given:
        if flag.name not in _CONFIG or not flag.fixed:
            continue
        config = _parsed(flag.value)
        shown = f"{flag.written} {flag.value}"
        if config is None:
            yield Finding(
                "bad-config", ENDS, shown, "its value is no JSON object: vLLM ends", "correct it"
            )
            continue
        method = config.get("method")
        if method in _GONE:
            happens = f"vLLM has the method {method} no more"
            yield Finding("unknown-method", ENDS, shown, happens, "use eagle3, mtp or draft_model")
        elif (
            isinstance(method, str) and method in table.methods and table.methods[method] != method
        ):
            new = {**config, "method": table.methods[method]}
            yield Finding(
                "unknown-method",
                ENDS,
                shown,
                f"{method} is not vLLM's name of it",
                f'"method": "{table.methods[method]}"',
                (WordEdit(flag.index, flag.count, (flag.name, json.dumps(new))),),
            )
        known = {*record("vllm")["speculative"], "tensor_parallel_size"}
        if strange := sorted(
            k.replace("-", "_") for k in config if k.replace("-", "_") not in known
        ):
            yield Finding(
                "bad-config",
                ENDS,
                shown,
                f"vLLM {record('vllm')['version']} has no key {', '.join(strange)} there, and ends",
                _key_hint(strange),
            )
        if "tensor_parallel_size" in config:
            new = {
                ("draft_" + k if k == "tensor_parallel_size" else k): v for k, v in config.items()
            }
            yield Finding(
                "bad-config",
                ENDS,
                shown,
                "tensor_parallel_size is the target's: vLLM ends at it here",
                "draft_tensor_parallel_size",
                (WordEdit(flag.index, flag.count, (flag.name, json.dumps(new))),),
            )


def _gguf_draft(given: list[_Flag], table: flags.OtherEngine) -> Iterator[Finding]:
    """vLLM's plugin for GGUF loads a target only (vllm_gguf_plugin 0.0.5, plugin.py)."""
    for flag in given:
        means = table.removed.get(flag.name) or table.foreign.get(flag.name)
        model = flag.value if means == "model" else ""
        if flag.name in _CONFIG:
            model = str((_parsed(flag.value) or {}).get("model") or "")
        if re.search(r"\.gguf$|-gguf(:|$)", model.lower()):
            yield Finding(
                "gguf-draft",
                ENDS,
                model,
                "vLLM takes no draft from a GGUF file, not even with its GGUF plugin, and ends",
                "name the Hugging Face repository of the draft's own weights",
            )


def _key_hint(strange: Sequence[str]) -> str:
    """What to do about keys that vLLM has not."""
    near = {key: _nearest(key, record("vllm")["speculative"]) for key in strange}
    if not any(near.values()):
        return "take it out"
    if len(near) == 1:
        return f"did you mean {near[strange[0]]}?"
    return "; ".join(
        f"{k}: {f'did you mean {n}?' if n else 'take it out'}" for k, n in near.items()
    )


_TRIPLE = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")


def _sglang(given: list[_Flag], table: flags.OtherEngine, end: int) -> Iterator[Finding]:
    for flag in given:
        meant = table.methods.get(flag.value)
        if flag.name == "--speculative-algorithm" and meant and flag.fixed:
            yield Finding(
                "unknown-method",
                ENDS,
                f"{flag.written} {flag.value}",
                f"{flag.value} is not SGLang's name of it",
                f"{flag.name} {meant}",
                (WordEdit(flag.index, flag.count, (flag.name, meant)),),
            )
    algorithm = next((f.value.upper() for f in given if f.name == "--speculative-algorithm"), "")
    some = {f.name: f for f in given if f.name in _TRIPLE}
    if algorithm in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE") and 0 < len(some) < 3:
        new = _completed(some)
        yield Finding(
            "incomplete",
            ENDS,
            " ".join(f"{f.written} {f.value}" for f in some.values()),
            "SGLang takes steps, top-k and draft tokens all three or none of them",
            "add " + (" ".join(new) or "the others, or leave all three out"),
            (WordEdit(end, 0, new),) if new else (),
        )


def _completed(some: Mapping[str, _Flag]) -> tuple[str, ...]:
    """What is missing for a chain: top-k 1, and a token more than steps (hook, 1255-1266)."""
    steps, topk, tokens = _TRIPLE
    chain = topk not in some or some[topk].value == "1"
    given = some.get(steps) or some.get(tokens)
    if not chain or given is None or not given.value.isdigit():
        return ()
    n = int(given.value) - (given.name == tokens)
    wanted = {steps: str(max(n, 1)), topk: "1", tokens: str(max(n, 1) + 1)}
    return tuple(w for name in _TRIPLE if name not in some for w in (name, wanted[name]))
