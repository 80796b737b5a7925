"""Tensor placement by -ot, -cmoe, -ncmoe, -ncffn, and the same for the draft. Patterns are
searched in tensor names; the first match decides
(llama.cpp b11434: src/llama-model-loader.cpp, create_tensor; common/arg.cpp)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specllama.gguf import ModelInfo, Tensor, tensors
from specllama.memory.errors import MemoryInputError
from specllama.memory.place import RAM

_BLOCK = re.compile(r"blk\.(\d{1,9})\.")
EMBEDDING, OUTPUT, REST = -1, -2, -3  # in place of a block's number
_APART = {"token_embd.weight": EMBEDDING, "per_layer_token_embd.weight": EMBEDDING}


@dataclass(frozen=True)
class Override:
    """Tensors whose name matches `pattern` go to `device`: RAM or a GPU's name."""

    pattern: str
    device: str


@dataclass(frozen=True)
class MovedTensors:
    """Bytes of one block (or EMBEDDING, OUTPUT, REST) that go to `device` instead; `experts`: the
    part that is routed experts."""

    block: int
    device: str
    bytes: int
    experts: int


def first_layers(count: int, pattern: str) -> Iterator[Override]:
    """-ncmoe N, -ncffn N: the pattern for the first N layers, to RAM."""
    for i in range(count):
        yield Override(rf"blk\.{i}{pattern}", RAM)


def parse_overrides(text: str, devices: Sequence[str]) -> Iterator[Override]:
    """-ot's `<pattern>=<buffer type>,…`. Raises MemoryInputError for what llama-server would
    reject: a missing `=`, an invalid pattern, an unknown buffer type."""
    for word in text.split(","):
        pattern, equals, buffer = word.partition("=")
        if not equals:
            raise MemoryInputError(
                f"-ot {word!r}: must be <tensor name pattern>=<buffer type>",
                "For example: -ot exps=CPU",
            )
        try:
            _compiled(pattern)
        except re.error as e:
            raise MemoryInputError(
                f"-ot {word!r}: {pattern!r} is not a valid pattern ({e})"
            ) from None
        yield Override(pattern, _buffer(word, buffer, devices))


def _buffer(word: str, buffer: str, devices: Sequence[str]) -> str:
    """The device of a buffer type; for RPC, the type is RPC0[host:port] (ggml-rpc.cpp)."""
    if buffer.startswith("CPU"):
        return RAM
    remote = re.fullmatch(r"(RPC\d+)\[.+\]", buffer)
    plain = remote[1] if remote else "" if buffer.startswith("RPC") else buffer
    if plain and (found := named_device(plain, devices)):
        return found
    known = ", ".join(("CPU", *(f"{d}[HOST:PORT]" if d.startswith("RPC") else d for d in devices)))
    raise MemoryInputError(f"-ot {word!r}: unknown buffer type {buffer!r}", f"Available: {known}.")


def named_device(name: str, devices: Sequence[str]) -> str | None:
    """The device with this name, ignoring case (ggml-backend-reg.cpp); by number if --vram set the
    sizes, and on Metal, whose buffers have other names."""
    for device in devices:
        if device.lower() == name.lower():
            return device
    number = re.search(r"\d+$", name)
    at = int(number[0]) if number else 0
    given = bool(devices) and devices[0].startswith("GPU")
    return devices[at] if (given or name[:3] in ("Met", "MTL")) and at < len(devices) else None


# std::regex has POSIX classes, Python does not.
_CLASSES = {"digit": r"\d", "alpha": "a-zA-Z", "alnum": "a-zA-Z0-9", "space": r"\s", "w": r"\w"}


def _compiled(pattern: str) -> re.Pattern[str]:
    """llama.cpp's (ECMAScript) pattern in Python's syntax. Raises re.error."""
    text = re.sub(r"\[:(\w+):\]", lambda m: _CLASSES.get(m[1], m[0]), pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # "[[" is not a set in either
        return re.compile(text, re.ASCII)


def moved_tensors(m: ModelInfo, overrides: Sequence[Override]) -> tuple[MovedTensors, ...]:
    """The tensors that these overrides move, by block. () without overrides; reads the header again."""
    if not overrides:
        return ()
    rules = [(_compiled(o.pattern), o.device) for o in overrides]
    sums: dict[tuple[int, str], tuple[int, int]] = {}
    for t in tensors(m.shards):
        device = next((d for rule, d in rules if rule.search(t.name)), None)
        if device is None:
            continue
        size, experts = sums.get((_place(t), device), (0, 0))
        n = t.nbytes or 0
        sums[_place(t), device] = (size + n, experts + (n if "exps." in t.name else 0))
    return tuple(MovedTensors(block, device, *sizes) for (block, device), sizes in sums.items())


def _place(t: Tensor) -> int:
    found = _BLOCK.match(t.name)
    if found:
        return int(found[1])
    return OUTPUT if t.name == "output.weight" else _APART.get(t.name, REST)
