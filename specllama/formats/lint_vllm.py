"""vLLM's --speculative-config: what is wrong with its JSON, and old flags folded into it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.formats import flags
from specllama.formats.engine_config import record
from specllama.formats.engine_flags import EngineFlag, nearest
from specllama.formats.finding import ENDS, Edits, Finding
from specllama.formats.found_command import WordEdit

CONFIG = ("--speculative-config", "-sc")
_NUMBERS = {
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "draft_tensor_parallel_size",
    "max_model_len",
}
_REMOVED_METHODS = ("medusa", "mlp_speculator")


def findings(given: Sequence[EngineFlag], table: flags.OtherEngine) -> Iterator[Finding]:
    for flag in given:
        if flag.name in CONFIG and flag.fixed:
            yield from _config(flag, table)
    yield from _gguf_draft(given, table)


def flags_for_config(wrong: Sequence[EngineFlag], table: flags.OtherEngine) -> list[EngineFlag]:
    """The flags whose value is a key of --speculative-config today."""
    return [f for f in wrong if (key := _key(f, table)) and not key.startswith("-")]


def _key(flag: EngineFlag, table: flags.OtherEngine) -> str:
    return table.removed.get(flag.name) or table.foreign.get(flag.name) or ""


def fold_into_config(
    given: Sequence[EngineFlag], old: Sequence[EngineFlag], table: flags.OtherEngine
) -> Edits:
    """All `old` flags as one --speculative-config; () when a shell variable hides one."""
    if not all(f.fixed for f in old):
        return ()
    existing = next((f for f in given if f.name in CONFIG), None)
    config: dict[str, Any] = dict(_parsed(existing.value) or {}) if existing is not None else {}
    for flag in old:
        key = _key(flag, table)
        config.setdefault(key, _value(key, flag.value, table.methods))
    if config.get("model") == "ngram":
        config.pop("model")
        config.setdefault("method", "ngram")
    if "method" not in config:
        lookup = "prompt_lookup_max" in config or "prompt_lookup_min" in config
        config["method"] = "draft_model" if "model" in config or not lookup else "ngram"
    if config["method"] != "suffix":
        config.setdefault("num_speculative_tokens", 5)
    ordered = {k: config[k] for k in ("method", "model", *config) if k in config}
    first = old[0] if existing is None else existing
    new = WordEdit(first.index, first.count, ("--speculative-config", json.dumps(ordered)))
    return (new, *(WordEdit(f.index, f.count) for f in old if f is not first))


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


def _config(flag: EngineFlag, table: flags.OtherEngine) -> Iterator[Finding]:
    config = _parsed(flag.value)
    if config is None:
        happens = "its value is not a JSON object; vLLM exits at startup"
        yield Finding("bad-config", ENDS, flag.shown, happens, "correct it")
        return
    method = config.get("method")
    if method in _REMOVED_METHODS:
        happens = f"vLLM no longer has the method {method}"
        yield Finding("unknown-method", ENDS, flag.shown, happens, "use eagle3, mtp or draft_model")
    elif isinstance(method, str) and table.methods.get(method, method) != method:
        name = table.methods[method]
        yield Finding(
            "unknown-method",
            ENDS,
            flag.shown,
            f"vLLM does not know {method}; its name for it is {name}",
            f'"method": "{name}"',
            _with_config(flag, {**config, "method": name}),
        )
    known = {*record("vllm")["speculative"], "tensor_parallel_size"}
    keys = sorted({k.replace("-", "_") for k in config} - known)
    if keys:
        yield Finding(
            "bad-config",
            ENDS,
            flag.shown,
            f"--speculative-config of vLLM {record('vllm')['version']} has no "
            f"key {', '.join(keys)}; vLLM exits at startup",
            _key_hint(keys),
        )
    if "tensor_parallel_size" in config:
        of_draft = "draft_tensor_parallel_size"
        new = {(of_draft if k == "tensor_parallel_size" else k): v for k, v in config.items()}
        yield Finding(
            "bad-config",
            ENDS,
            flag.shown,
            "tensor_parallel_size is an option of the target, not of --speculative-config; "
            "vLLM exits at startup",
            of_draft,
            _with_config(flag, new),
        )


def _with_config(flag: EngineFlag, config: Mapping[str, Any]) -> Edits:
    return (WordEdit(flag.index, flag.count, (flag.name, json.dumps(config))),)


def _key_hint(keys: Sequence[str]) -> str:
    """What to do about keys that vLLM does not have."""
    near = {key: nearest(key, record("vllm")["speculative"]) for key in keys}
    if not any(near.values()):
        return "remove it" if len(near) == 1 else "remove them"
    if len(near) == 1:
        return f"did you mean {near[keys[0]]}?"
    return "; ".join(f"{k}: {f'did you mean {n}?' if n else 'remove it'}" for k, n in near.items())


def _gguf_draft(given: Sequence[EngineFlag], table: flags.OtherEngine) -> Iterator[Finding]:
    """vLLM's plugin for GGUF loads a target only (vllm_gguf_plugin 0.0.5, plugin.py)."""
    for flag in given:
        model = flag.value if _key(flag, table) == "model" else ""
        if flag.name in CONFIG:
            model = str((_parsed(flag.value) or {}).get("model") or "")
        if re.search(r"\.gguf$|-gguf(:|$)", model.lower()):
            yield Finding(
                "gguf-draft",
                ENDS,
                model,
                "vLLM cannot load a draft from a GGUF file, even with its GGUF plugin; "
                "it exits at startup",
                "use the draft's original weights: OWNER/NAME on Hugging Face",
            )
