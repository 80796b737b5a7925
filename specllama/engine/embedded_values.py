"""Conversion of llama-server's option values to xllamacpp's CommonParams."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.gguf.faults import MAX_LAYERS

Apply = Callable[[Any, str], None]  # (CommonParams, value)

# arg.cpp, is_truthy and is_falsey
_ON, _OFF = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")


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
    """Sets params.<path> to the converted value. `paths`: the first that the installed version
    has is used, since llama.cpp moved many. `adds`: append to the current value."""

    paths: tuple[str, ...]
    convert: Callable[[str], Any]
    adds: bool = False

    def place(self, params: Any) -> tuple[Any, str] | None:
        """(object, attribute name) to set; None if this version has none of the paths."""
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
        new = self.convert(value)
        if self.adds:
            old = getattr(*place)
            new = ",".join(filter(None, (old, new))) if isinstance(new, str) else [*old, *new]
        setattr(*place, new)


def attribute(paths: str, convert: Callable[[str], Any]) -> Attribute:
    """`paths`: dotted, newest first, separated by spaces."""
    return Attribute(tuple(paths.split()), convert)


def added(paths: str, convert: Callable[[str], Any]) -> Attribute:
    """The same for an option that can be repeated."""
    return Attribute(tuple(paths.split()), convert, adds=True)


def switch(path: str, on: bool = True) -> Attribute:
    return attribute(path, lambda value: on if value != "0" else not on)


def integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise BadValue(f"{value!r} is not an integer") from None


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadValue(f"{value!r} is not a number") from None


def layers(value: str) -> int:
    """`auto` is -1 and `all` is -2 inside llama.cpp (common.h, n_gpu_layers)."""
    return {"auto": -1, "all": -2}.get(value) or integer(value)


def enum(prefix: str, of: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Looks a value up in an xllamacpp enum by name."""

    def convert(value: str) -> Any:
        import xllamacpp

        if value.lower() not in names:
            raise BadValue(f"{value!r} must be one of {', '.join(names)}")
        member = getattr(getattr(xllamacpp, of), prefix + names[value.lower()], None)
        if member is None:
            raise BadValue(f"this version does not support {value!r}")
        return member

    return convert


SPEC_TYPES = {
    name: name.upper().replace("-", "_")
    for name in (
        "none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark "
        "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
    ).split()
}
_spec_type = enum("COMMON_SPECULATIVE_TYPE_", "common_speculative_type", SPEC_TYPES)
cache_type = enum(
    "GGML_TYPE_",
    "ggml_type",
    {t: t.upper() for t in "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1".split()},
)
flash_attention = enum(
    "LLAMA_FLASH_ATTN_TYPE_",
    "llama_flash_attn_type",
    {
        **dict.fromkeys(_ON, "ENABLED"),
        **dict.fromkeys(_OFF, "DISABLED"),
        **dict.fromkeys(("auto", "-1"), "AUTO"),
    },
)
load_mode = enum(
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

split_mode = enum(
    "LLAMA_SPLIT_MODE_",
    "llama_split_mode",
    {m: m.upper() for m in ("none", "layer", "row", "tensor")},
)


def add_spec_types(params: Any, value: str) -> None:
    """As in llama.cpp, a repeated --spec-type adds to the earlier ones."""
    types = [_spec_type(v.strip()) for v in value.split(",") if v.strip()]
    if hasattr(params.speculative, "types"):
        params.speculative.types = [*params.speculative.types, *types]
    elif len(types) == 1:  # a single type before b9180
        params.speculative.type = types[0]
    else:
        raise BadValue(f"{value!r}: this version supports only one type")


def known_spec_types() -> str:
    """The --spec-type values of the installed version."""
    import xllamacpp

    of = xllamacpp.common_speculative_type
    return ",".join(
        name
        for name, member in SPEC_TYPES.items()
        if hasattr(of, f"COMMON_SPECULATIVE_TYPE_{member}")
    )


def on_off(value: str) -> bool:
    if value.lower() not in _ON + _OFF:
        raise BadValue(f"{value!r} is neither on nor off")
    return value.lower() in _ON


def key_list(value: str) -> list[str]:
    """--api-key KEY,...: without surrounding spaces, as they arrive in a header."""
    return [key.strip() for key in value.split(",") if key.strip()]


def key_file(value: str) -> list[str]:
    """--api-key-file: one key per line; lines that start with a hash are comments."""
    lines = text_file(value).splitlines()
    return [line.strip() for line in lines if line.strip() and line[:1] != "#"]


def text_file(value: str) -> str:
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as e:
        raise BadValue(f"{value}: {e.strerror}") from None
    except ValueError:
        raise BadValue(f"{value} is not a text file") from None


def comma_list(value: str) -> list[str]:
    return [v for v in value.split(",") if v]


# common/common.h: LLM_FFN_EXPS_REGEX, LLM_FFN_DENSE_REGEX
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
DENSE = r"\.ffn_(up|down|gate)\."


def experts_on_cpu(value: str) -> str:
    """--cpu-moe as --override-tensor has it."""
    return f"{EXPERTS}=CPU"


def first_experts_on_cpu(value: str) -> str:
    """--n-cpu-moe N."""
    return _first_on_cpu(value, EXPERTS)


def first_dense_on_cpu(value: str) -> str:
    """--n-cpu-ffn N."""
    return _first_on_cpu(value, DENSE)


def _first_on_cpu(value: str, names: str) -> str:
    if (count := integer(value)) < 0:
        raise BadValue(f"{value!r} is negative")
    if count >= 2**31:
        raise BadValue(f"{value!r} is too large")
    return ",".join(rf"blk\.{i}{names}=CPU" for i in range(min(count, MAX_LAYERS)))


def adapters(value: str) -> list[Any]:
    """--lora FILE,..."""
    return [_adapter(path, 1.0) for path in comma_list(value)]


def scaled_adapters(value: str) -> list[Any]:
    """--lora-scaled FILE:SCALE,..."""
    pairs = [word.rpartition(":") for word in comma_list(value)]
    return [_adapter(path, number(scale)) for path, _, scale in pairs]


def _adapter(path: str, scale: float) -> Any:
    import xllamacpp

    if not Path(path).is_file():
        raise BadValue(f"{path!r}: file not found")
    return xllamacpp.CommonAdapterLoraInfo(path, scale)


def idle_seconds(value: str) -> int:
    seconds = integer(value)
    if seconds == 0 or seconds < -1:
        raise BadValue("cannot be 0 or less than -1")
    return seconds


def split_tensors(params: Any, value: str) -> None:
    """--tensor-split, for as many devices as llama.cpp can have."""
    shares = [number(v) for v in re.split("[,/]+", value)]
    most = len(params.tensor_split)
    if len(shares) >= most:
        raise BadValue(f"{len(shares)} shares, but at most {most} devices")
    params.tensor_split = [*shares, *(0.0 for _ in range(most - len(shares)))]


def rerank(params: Any, value: str) -> None:
    import xllamacpp

    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def timeout(params: Any, value: str) -> None:
    params.timeout_read = params.timeout_write = integer(value)
