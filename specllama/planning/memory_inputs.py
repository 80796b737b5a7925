"""Converts settings and arguments after -- into memory/'s input: ModelUse, Drafting, devices."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from specllama.engine.capabilities import Capabilities, Tristate
from specllama.engine.embedded_values import DENSE, EXPERTS
from specllama.engine.launch_options import LaunchOptions
from specllama.engine.option_sources import ParsedOption
from specllama.engine.settings import Settings, Speculation
from specllama.gguf import GgufError, ModelInfo, read_model
from specllama.memory.devices import MIB, Machine
from specllama.memory.errors import MemoryInputError
from specllama.memory.estimate import Drafting, MemoryLine
from specllama.memory.overrides import (
    Override,
    first_layers,
    moved_tensors,
    named_device,
    parse_overrides,
)
from specllama.memory.place import RAM
from specllama.memory.use import CACHE_TYPES, ModelUse
from specllama.planning.files import lora_files

_ANY = 2**31  # -ub 0: as many as -b
_UNKNOWN_CONTEXT = 4096  # llama.cpp's minimum, for a model without its own


def model_use(
    target: ModelInfo,
    settings: Settings,
    user: LaunchOptions,
    caps: Capabilities,
    machine: Machine,
) -> ModelUse:
    """How the target is run. Raises MemoryInputError for invalid sizes and tensor patterns."""
    few = caps.fact("few_outputs") is Tristate.YES
    always = caps.fact("loads_mtp_on_demand") is Tristate.NO
    return ModelUse(
        context=context_size(target, settings, user),
        parallel=settings.parallel,
        unified=user.on("--kv-unified"),
        batch=max(1, _number(user, _default(caps, "-b", 2048), "-b", "--batch-size")),
        ubatch=_number(user, _default(caps, "-ub", 512), "-ub", "--ubatch-size") or _ANY,
        cache_k=_cache_type(user, "-ctk"),
        cache_v=_cache_type(user, "-ctv"),
        flash=(user.value("-fa") or "auto") not in ("off", "0", "false", "disabled"),
        swa_full=user.on("--swa-full"),
        outputs=settings.parallel if few else None,
        mtp=always,
        gpu_layers=_layers(user.value("-ngl")),
        moved=moved_tensors(target, overrides(target, user, machine)),
        mapped=is_mapped(user),
        kv_on_gpu=not user.on("--no-kv-offload"),
    )


def overrides(
    m: ModelInfo, user: LaunchOptions, machine: Machine, draft: bool = False
) -> tuple[Override, ...]:
    """Tensors that the user places elsewhere, in the order of the options; with `draft`, from the
    draft's options. Raises MemoryInputError for invalid patterns."""
    out: list[Override] = []
    patterns, all_experts, experts, dense = _OVERRIDES[draft]
    layers = len(m.layout.blocks)
    for flag in user.flags:
        names, value = set(flag.option.names), flag.words[-1]
        if patterns in names:
            out += parse_overrides(value, machine.names)
        elif all_experts in names:
            out.append(Override(EXPERTS, RAM))
        elif experts in names:
            out += first_layers(min(_count(flag), layers), EXPERTS)
        elif dense in names:
            out += first_layers(min(_count(flag), layers), DENSE)
    return tuple(out)


# of the target, of the draft: -ot, --cpu-moe, --n-cpu-moe, --n-cpu-ffn
_OVERRIDES = {
    False: ("--override-tensor", "--cpu-moe", "--n-cpu-moe", "--n-cpu-ffn"),
    True: ("--override-tensor-draft", "--cpu-moe-draft", "--n-cpu-moe-draft", ""),
}


# Options of the target, and the draft's, each with llama-fit-params' name for it.
_SPLIT = ("--rpc", "--tensor-split", "--split-mode", "--main-gpu", "--no-kv-offload")
_TOOL = {
    False: {n: n for n in ("--device", *_SPLIT, *_OVERRIDES[False])},
    True: {
        **{n: n for n in _SPLIT},
        "--device-draft": "--device",
        **dict(zip(_OVERRIDES[True][:3], _OVERRIDES[False], strict=False)),
    },
}


def tool_flags(user: LaunchOptions, draft: bool) -> list[str]:
    """llama-fit-params' arguments from the user's options for the target, or for the draft."""
    out: list[str] = []
    for flag in user.flags:
        for name, tool_name in _TOOL[draft].items():
            if name in flag.option.names:
                out += flag.words if not draft or name in _SPLIT else (tool_name, *flag.words[1:])
    return out


def is_mapped(user: LaunchOptions) -> bool:
    """Whether weights in RAM are mapped pages of the file (llama.cpp's default), which the system
    loads on use and may drop."""
    mode = user.value("--load-mode") or ""
    locked = user.on("--mlock") or user.on("--no-mmap") or user.on("--direct-io")
    return not locked and mode in ("", "auto", "mmap")


def context_size(target: ModelInfo, settings: Settings, user: LaunchOptions) -> int:
    """Requested tokens, or else the model's own context."""
    return _number(user, settings.context, "-c") or target.context_length or _UNKNOWN_CONTEXT


def drafting_of(
    spec: Speculation | None, draft: ModelInfo | None, user: LaunchOptions, machine: Machine
) -> Drafting | None:
    """The speculation as memory/ needs it."""
    if spec is None:
        return None
    longest = spec.n_max if spec.uses_draft else 0
    if spec.ngram is not None and spec.uses_ngram:
        longest = max(longest, spec.ngram.m)
    return Drafting(
        methods=spec.methods,
        model=draft,
        longest=longest,
        cache_k=_cache_type(user, "-ctkd", spec.cache_type),
        cache_v=_cache_type(user, "-ctvd", spec.cache_type),
        gpu_layers=_layers(user.value("-ngld") or spec.draft_layers),
        moved=moved_tensors(draft, overrides(draft, user, machine, draft=True)) if draft else (),
        devices=_devices("-devd", user, machine),
    )


def _cache_type(user: LaunchOptions, option: str, default: str | None = None) -> str:
    """Raises MemoryInputError for a type that llama.cpp lacks."""
    kind = user.value(option) or default or "f16"
    if kind not in CACHE_TYPES:
        raise MemoryInputError(
            f"{option} {kind}: unknown cache type", f"Types: {', '.join(CACHE_TYPES)}."
        )
    return kind


def chosen_devices(machine: Machine, user: LaunchOptions) -> Machine:
    """The GPUs selected by the user's -dev, -sm and -mg."""
    gpus = machine.gpus
    if (names := _devices("-dev", user, machine)) is not None:
        gpus = tuple(g for w in names for g in gpus if g.name == w)
    if user.value("-sm") == "none" and gpus:
        main = _number(user, 0, "-mg")
        gpus = gpus[main : main + 1] or gpus[:1]
    return replace(machine, gpus=gpus)


def _devices(option: str, user: LaunchOptions, machine: Machine) -> tuple[str, ...] | None:
    """The device names of -dev or -devd; None if it is not set. Raises MemoryInputError for a
    device that the engine does not list: llama-server would exit."""
    text = user.value(option)
    if text is None:
        return None
    words = [] if text == "none" else [w.strip() for w in text.split(",") if w.strip()]
    found = {w: named_device(w, machine.names) for w in words}
    for word, device in found.items():
        if device is None:
            known = ", ".join(machine.names) or "none"
            raise MemoryInputError(f"{option} {word}: no such device", f"Available: {known}.")
    return tuple(d for d in found.values() if d is not None)


def tensor_split(user: LaunchOptions) -> tuple[float, ...]:
    """The proportions of -ts; () if it is not set or not a list of numbers."""
    words = re.split(r"[,/]", user.value("-ts") or "")
    try:
        shares = tuple(float(w) for w in words if w.strip())
    except ValueError:
        return ()
    return shares if any(shares) else ()  # all zero: by free memory (llama-model.cpp)


def projector_lines(user: LaunchOptions, machine: Machine) -> tuple[MemoryLine, ...]:
    """The multimodal projector set by the user; nothing if it cannot be read (llama-server
    reports why)."""
    name = user.value("--mmproj")
    if name is None:
        return ()
    try:
        size = read_model(Path(name)).tensor_bytes
    except GgufError:
        return ()
    on_cpu = user.on("--no-mmproj-offload") or not machine.gpus
    return (MemoryLine("projector", "weights", RAM if on_cpu else machine.gpus[0].name, size),)


def lora_lines(user: LaunchOptions, machine: Machine) -> tuple[MemoryLine, ...]:
    """LoRA adapters: each tensor is on the device of the one it changes; as an upper bound, all
    are on the first device."""
    device = machine.gpus[0].name if machine.gpus else RAM
    sizes = [read_model(path).tensor_bytes for path in lora_files(user)]
    return (MemoryLine("LoRA", "weights", device, sum(sizes), upper=True),) if sizes else ()


def with_margins(machine: Machine, user: LaunchOptions) -> Machine:
    """The user's --fit-target in place of the default margin."""
    text = user.value("--fit-target")
    numbers = [w.strip() for w in (text or "").split(",")]
    if text is None or not all(re.fullmatch("[0-9]{1,12}", n) for n in numbers):
        return machine
    margins = [int(n) * MIB for n in numbers]
    margins += [margins[-1]] * (len(machine.gpus) - len(margins))
    gpus = tuple(replace(g, margin=m) for g, m in zip(machine.gpus, margins, strict=False))
    return replace(machine, gpus=gpus)


def _number(user: LaunchOptions, default: int, *names: str) -> int:
    """The user's number; llama-server rejects anything else."""
    for name in names:
        text = user.value(name)
        if text is not None and re.fullmatch(r"[0-9]{1,18}", text):
            return int(text)
    return default


def _default(caps: Capabilities, name: str, usual: int) -> int:
    """This build's default, from its help."""
    option = caps.find(name)
    text = option.default if option is not None and option.default else ""
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else usual


def _count(flag: ParsedOption) -> int:
    text = flag.words[-1]
    if not re.fullmatch(r"\d{1,9}", text):
        raise MemoryInputError(f"{' '.join(flag.words)}: must be a number of layers")
    return int(text)


def _layers(text: str | None) -> int | None:
    """A layer count; None for all of them."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
