"""llama-server's options as settings of xllamacpp's CommonParams.

Every option that `engine.command` can emit is here, and those users reach for
most. Names, hints and defaults are llama.cpp's (common/arg.cpp, b11434; b8929 for what is
gone since); an option that is not here, or that the installed version of the library has no
setting for, is an error, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Apply = Callable[[Any, str], None]  # (CommonParams, value)

API_KEY_ENV = "LLAMA_API_KEY"


class BadValue(ValueError):
    """A value an option cannot take."""


@dataclass(frozen=True)
class EmbeddedOption:
    """One option. A switch has hint "" and receives "" (or "0" by a negative name)."""

    names: tuple[str, ...]
    hint: str
    help: str
    apply: Apply
    negative: tuple[str, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        return self.names + self.negative


@dataclass(frozen=True)
class Attribute:
    """Sets params.<path> to the converted value, by the first of `paths` that the installed
    version has: llama.cpp moved many of them."""

    paths: tuple[str, ...]
    convert: Callable[[str], Any]

    def place(self, params: Any) -> tuple[Any, str] | None:
        """(the object, its attribute) that is set; None when this version has none."""
        for path in self.paths:
            *parents, last = path.split(".")
            owner = params
            for name in parents:
                owner = getattr(owner, name, None)
            if hasattr(owner, last):
                return owner, last
        return None

    def __call__(self, params: Any, value: str) -> None:
        place = self.place(params)
        if place is None:
            raise BadValue(f"this xllamacpp has no {self.paths[0]}")
        setattr(*place, self.convert(value))


def attribute(paths: str, convert: Callable[[str], Any]) -> Attribute:
    """`paths`: dotted, the newest first, parted by blanks."""
    return Attribute(tuple(paths.split()), convert)


def switch(path: str, on: bool = True) -> Attribute:
    return attribute(path, lambda value: on if value != "0" else not on)


def integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise BadValue(f"{value!r} is not a whole number") from None


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadValue(f"{value!r} is not a number") from None


def layers(value: str) -> int:
    """`auto` is -1 and `all` is -2 inside llama.cpp (common.h, n_gpu_layers)."""
    return {"auto": -1, "all": -2}.get(value) or integer(value)


def _enum(prefix: str, of: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Looks a value up in an xllamacpp enum by name."""

    def convert(value: str) -> Any:
        import xllamacpp

        if value.lower() not in names:
            raise BadValue(f"{value!r} is not one of {', '.join(names)}")
        member = getattr(getattr(xllamacpp, of), prefix + names[value.lower()], None)
        if member is None:
            raise BadValue(f"this version does not know {value!r}")
        return member

    return convert


SPEC_TYPES = {
    name: name.upper().replace("-", "_")
    for name in (
        "none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark "
        "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
    ).split()
}
_spec_type = _enum("COMMON_SPECULATIVE_TYPE_", "common_speculative_type", SPEC_TYPES)
_cache_type = _enum(
    "GGML_TYPE_",
    "ggml_type",
    {t: t.upper() for t in "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1".split()},
)
_flash_attention = _enum(
    "LLAMA_FLASH_ATTN_TYPE_",
    "llama_flash_attn_type",
    {"on": "ENABLED", "1": "ENABLED", "off": "DISABLED", "0": "DISABLED", "auto": "AUTO"},
)
_load_mode = _enum(
    "LLAMA_LOAD_MODE_",
    "llama_load_mode",
    {
        "auto": "AUTO",
        "none": "NONE",
        "mmap": "MMAP",
        "mlock": "MLOCK",
        "mmap+mlock": "MMAP_MLOCK",
        "dio": "DIRECT_IO",
    },
)


def _spec_types(params: Any, value: str) -> None:
    """As in llama.cpp, a repeated --spec-type adds to the earlier ones."""
    wanted = [_spec_type(v.strip()) for v in value.split(",") if v.strip()]
    if hasattr(params.speculative, "types"):
        params.speculative.types = [*params.speculative.types, *wanted]
    elif len(wanted) == 1:  # before b9180 it was one
        params.speculative.type = wanted[0]
    else:
        raise BadValue(f"{value!r}: this version takes one type")


def _known_spec_types() -> str:
    """The --spec-type values of the installed version."""
    import xllamacpp

    of = xllamacpp.common_speculative_type
    return ",".join(
        name
        for name, member in SPEC_TYPES.items()
        if hasattr(of, f"COMMON_SPECULATIVE_TYPE_{member}")
    )


def _on_off(value: str) -> bool:
    if value.lower() not in ("on", "off", "1", "0", "true", "false"):
        raise BadValue(f"{value!r} is neither on nor off")
    return value.lower() in ("on", "1", "true")


def _key_file(value: str) -> list[str]:
    try:
        return [k for k in Path(value).read_text(encoding="utf-8").splitlines() if k.strip()]
    except OSError as e:
        raise BadValue(f"{value}: {e.strerror}") from None


def _text_file(value: str) -> str:
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as e:
        raise BadValue(f"{value}: {e.strerror}") from None


def apply_environment(params: Any) -> None:
    """The one variable the embedded engine reads: the API key, kept out of `ps`."""
    if key := os.environ.get(API_KEY_ENV):
        params.api_keys = [key]


def _words(value: str) -> list[str]:
    return [v for v in value.split(",") if v]


O = EmbeddedOption  # noqa: E741 - a column of a table
OPTIONS: tuple[EmbeddedOption, ...] = (
    O(("-m", "--model"), "FNAME", "model file", attribute("model.path", str)),
    O(("-a", "--alias"), "STRING", "names in the API", attribute("model_alias", _words)),
    O(("-c", "--ctx-size"), "N", "context, 0 = the model's (default: 0)", attribute("n_ctx", integer)),
    O(("-n", "--predict", "--n-predict"), "N", "tokens a request may make (default: -1)", attribute("n_predict", integer)),
    O(("-b", "--batch-size"), "N", "logical batch (default: 2048)", attribute("n_batch", integer)),
    O(("-ub", "--ubatch-size"), "N", "physical batch (default: 512)", attribute("n_ubatch", integer)),
    O(("-np", "--parallel"), "N", "slots (default: -1)", attribute("n_parallel", integer)),
    O(("-kvu", "--kv-unified"), "", "one KV buffer for all slots", switch("kv_unified"), ("-no-kvu", "--no-kv-unified")),
    O(("-t", "--threads"), "N", "threads (default: -1)", attribute("cpuparams.n_threads", integer)),
    O(("-tb", "--threads-batch"), "N", "threads for prompts", attribute("cpuparams_batch.n_threads", integer)),
    O(("-ngl", "--gpu-layers", "--n-gpu-layers"), "N", "layers on the GPU (default: auto)", attribute("n_gpu_layers", layers)),
    O(("-fa", "--flash-attn"), "[on|off|auto]", "flash attention (default: auto)", attribute("flash_attn_type", _flash_attention)),
    O(("-ctk", "--cache-type-k"), "TYPE", "K cache type (default: f16)", attribute("cache_type_k", _cache_type)),
    O(("-ctv", "--cache-type-v"), "TYPE", "V cache type (default: f16)", attribute("cache_type_v", _cache_type)),
    O(("-lm", "--load-mode"), "MODE", "how weights are read (default: auto)", attribute("load_mode", _load_mode)),
    O(("--repack",), "", "weights repacked for this CPU", switch("no_extra_bufts", on=False), ("-nr", "--no-repack")),
    O(("-fit", "--fit"), "[on|off]", "shrink to fit memory (default: on)", attribute("fit_params", _on_off)),
    O(("-fitc", "--fit-ctx"), "N", "least context of --fit (default: 4096)", attribute("fit_params_min_ctx", integer)),
    O(("--warmup",), "", "warm up with an empty run", switch("warmup"), ("--no-warmup",)),
    O(("-lv", "--verbosity", "--log-verbosity"), "N", "log level (default: 3)", attribute("verbosity", integer)),
    O(("--swa-full",), "", "full-size SWA cache", switch("swa_full")),
    O(("--cache-ram", "-cram"), "N", "prompt cache in MiB (default: 8192)", attribute("cache_ram_mib", integer)),
    O(("-mm", "--mmproj"), "FILE", "multimodal projector", attribute("mmproj.path", str)),
    O(("--host",), "HOST", "address (default: 127.0.0.1)", attribute("hostnames", _words)),
    O(("--host",), "HOST", "address (default: 127.0.0.1)", attribute("hostname", str)),
    O(("--port",), "PORT", "port (default: 8080)", attribute("port", integer)),
    O(("--api-key",), "KEY", "key clients must send (env: LLAMA_API_KEY)", attribute("api_keys", _words)),
    O(("--api-key-file",), "FNAME", "file of keys", attribute("api_keys", _key_file)),
    O(("--metrics",), "", "serve /metrics", switch("endpoint_metrics")),
    O(("--slots",), "", "serve /slots", switch("endpoint_slots"), ("--no-slots",)),
    O(("--props",), "", "allow changes by POST /props", switch("endpoint_props")),
    O(("--jinja",), "", "jinja chat templates", switch("use_jinja"), ("--no-jinja",)),
    O(("--chat-template",), "TEMPLATE", "chat template", attribute("chat_template", str)),
    O(("--chat-template-file",), "FILE", "chat template from a file", attribute("chat_template", _text_file)),
    O(("-s", "--seed"), "SEED", "RNG seed (default: -1)", attribute("sampling.seed", lambda v: integer(v) % 2**32)),
    O(("--temp", "--temperature"), "N", "temperature (default: 0.8)", attribute("sampling.temp", number)),
    O(("--top-k",), "N", "top-k (default: 40)", attribute("sampling.top_k", integer)),
    O(("--top-p",), "N", "top-p (default: 0.95)", attribute("sampling.top_p", number)),
    O(("--min-p",), "N", "min-p (default: 0.05)", attribute("sampling.min_p", number)),
    O(("--spec-type",), "TYPES", "methods (default: none)", _spec_types),
    O(("-md", "--model-draft", "--spec-draft-model"), "FNAME", "draft model", attribute("speculative.draft.mparams.path speculative.mparams_dft.path", str)),
    O(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"), "N", "draft layers on the GPU (default: auto)", attribute("speculative.draft.n_gpu_layers speculative.n_gpu_layers", layers)),
    O(("-devd", "--device-draft", "--spec-draft-device"), "DEVICE", "draft devices", attribute("speculative.draft.devices speculative.devices", str)),
    O(("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "TYPE", "draft K cache type (default: f16)", attribute("speculative.draft.cache_type_k speculative.cache_type_k", _cache_type)),
    O(("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "TYPE", "draft V cache type (default: f16)", attribute("speculative.draft.cache_type_v speculative.cache_type_v", _cache_type)),
    O(("-td", "--threads-draft", "--spec-draft-threads"), "N", "draft threads", attribute("speculative.draft.cpuparams.n_threads speculative.cpuparams.n_threads", integer)),
    O(("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"), "N", "draft threads for prompts", attribute("speculative.draft.cpuparams_batch.n_threads speculative.cpuparams_batch.n_threads", integer)),
    O(("--spec-draft-n-max",), "N", "draft length (default: 3)", attribute("speculative.draft.n_max", integer)),
    O(("--spec-draft-n-min",), "N", "least draft length (default: 0)", attribute("speculative.draft.n_min", integer)),
    O(("--spec-draft-p-min", "--draft-p-min"), "P", "least draft probability (default: 0.00)", attribute("speculative.draft.p_min", number)),
    O(("--draft", "--draft-n", "--draft-max"), "N", "draft length (default: 16)", attribute("speculative.n_max", integer)),
    O(("--draft-min", "--draft-n-min"), "N", "least draft length (default: 0)", attribute("speculative.n_min", integer)),
    O(("--draft-p-min",), "P", "least draft probability (default: 0.75)", attribute("speculative.p_min", number)),
    O(("--spec-ngram-size-n",), "N", "n-gram size (default: 12)", attribute("speculative.ngram_size_n", integer)),
    O(("--spec-ngram-size-m",), "N", "n-gram draft size (default: 48)", attribute("speculative.ngram_size_m", integer)),
    O(("--spec-ngram-min-hits",), "N", "n-gram least hits (default: 1)", attribute("speculative.ngram_min_hits", integer)),
    O(("--spec-ngram-mod-n-match",), "N", "ngram-mod match (default: 24)", attribute("speculative.ngram_mod.n_match", integer)),
    O(("--spec-ngram-mod-n-min",), "N", "ngram-mod least (default: 48)", attribute("speculative.ngram_mod.n_min", integer)),
    O(("--spec-ngram-mod-n-max",), "N", "ngram-mod most (default: 64)", attribute("speculative.ngram_mod.n_max", integer)),
    *(
        O((f"--spec-ngram-{kind}-{flag}",), "N", f"{kind} {flag} (default: {default})", attribute(f"speculative.ngram_{kind.replace('-', '_')}.{attr}", integer))
        for kind in ("simple", "map-k", "map-k4v")
        for flag, attr, default in (("size-n", "size_n", 12), ("size-m", "size_m", 48), ("min-hits", "min_hits", 1))
    ),
    O(("-lcs", "--lookup-cache-static"), "FNAME", "ngram-cache file, read", attribute("speculative.ngram_cache.lookup_cache_static speculative.lookup_cache_static", str)),
    O(("-lcd", "--lookup-cache-dynamic"), "FNAME", "ngram-cache file, kept", attribute("speculative.ngram_cache.lookup_cache_dynamic speculative.lookup_cache_dynamic", str)),
)  # fmt: skip


def options(params: Any) -> tuple[EmbeddedOption, ...]:
    """The options that the installed version has a setting for, by a fresh CommonParams."""
    known = (
        o
        for o in OPTIONS
        if not isinstance(o.apply, Attribute) or o.apply.place(params) is not None
    )
    return tuple(
        replace(o, hint=_known_spec_types()) if "--spec-type" in o.names else o for o in known
    )
