"""From settings and the user's own arguments to what memory/ asks: Use, Drafting, devices."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from specllama.engine.capabilities import Answer, Capabilities
from specllama.engine.settings import Settings, Speculation
from specllama.engine.user_args import UserArgs
from specllama.gguf import GgufError, ModelInfo, inspect
from specllama.memory.devices import MIB, Machine
from specllama.memory.estimate import Drafting, Line
from specllama.memory.place import RAM
from specllama.memory.use import Use

_UNKNOWN_CONTEXT = 4096  # llama.cpp's least, for a model that does not say its own


def use_of(target: ModelInfo, settings: Settings, user: UserArgs, caps: Capabilities) -> Use:
    """The target's context. Raises MemoryInputError for sizes that cannot be."""
    few = caps.fact("few_outputs") is Answer.YES
    always = caps.fact("loads_mtp_on_demand") is Answer.NO
    cpu_experts = _number(user, 0, "-ncmoe", "--n-cpu-moe")
    if user.spelled("-cmoe", "--cpu-moe"):
        cpu_experts = len(target.layout.blocks)
    return Use(
        context=context_of(target, settings, user),
        parallel=settings.parallel,
        unified=user.spelled("-kvu", "--kv-unified"),
        batch=max(1, _number(user, 2048, "-b", "--batch-size")),
        ubatch=max(1, _number(user, 512, "-ub", "--ubatch-size")),
        cache_k=user.value("-ctk") or "f16",
        cache_v=user.value("-ctv") or "f16",
        flash=(user.value("-fa") or "auto") not in ("off", "0", "false", "disabled"),
        swa_full=user.spelled("--swa-full"),
        outputs=settings.parallel if few else None,
        mtp=always,
        gpu_layers=_layers(user.value("-ngl")),
        cpu_experts=cpu_experts,
        kv_on_gpu=not user.spelled("-nkvo", "--no-kv-offload"),
    )


def context_of(target: ModelInfo, settings: Settings, user: UserArgs) -> int:
    """Tokens asked for; the model's own where nothing is."""
    return _number(user, settings.context, "-c") or target.context_length or _UNKNOWN_CONTEXT


def drafting_of(
    spec: Speculation | None, draft: ModelInfo | None, user: UserArgs
) -> Drafting | None:
    """How tokens are drafted, as memory/ takes it."""
    if spec is None:
        return None
    longest = spec.n_max if spec.uses_draft else 0
    if spec.ngram is not None and spec.uses_ngram:
        longest = max(longest, spec.ngram.m)
    return Drafting(
        methods=spec.methods,
        model=draft,
        longest=longest,
        cache_k=user.value("-ctkd") or spec.cache_type or "f16",
        cache_v=user.value("-ctvd") or spec.cache_type or "f16",
        gpu_layers=_layers(user.value("-ngld") or spec.draft_layers),
    )


def chosen_devices(machine: Machine, user: UserArgs) -> Machine:
    """The GPUs the user's -dev, -sm and -mg leave."""
    gpus = machine.gpus
    if (names := user.value("-dev")) is not None:
        wanted = [] if names == "none" else [w.strip() for w in names.split(",")]
        gpus = tuple(g for w in wanted for g in gpus if g.name == w)
    if user.value("-sm") == "none" and gpus:
        main = _number(user, 0, "-mg")
        gpus = gpus[main : main + 1] or gpus[:1]
    return replace(machine, gpus=gpus)


def split_of(user: UserArgs) -> tuple[float, ...]:
    """-ts's proportions; () when it is not given or is no list of numbers."""
    words = re.split(r"[,/]", user.value("-ts") or "")
    try:
        return tuple(float(w) for w in words if w.strip())
    except ValueError:
        return ()


def projector(user: UserArgs, machine: Machine) -> tuple[Line, ...]:
    """The multimodal projector the user names; nothing where it cannot be read (llama-server
    will say why)."""
    name = user.value("--mmproj")
    if name is None:
        return ()
    try:
        size = inspect(Path(name)).tensor_bytes
    except GgufError:
        return ()
    on_cpu = user.spelled("--no-mmproj-offload") or not machine.gpus
    return (Line("projector", "weights", RAM if on_cpu else machine.gpus[0].name, size),)


def with_margins(machine: Machine, user: UserArgs) -> Machine:
    """The user's own --fit-target in place of our margin."""
    text = user.value("--fit-target")
    numbers = [w.strip() for w in (text or "").split(",")]
    if text is None or not all(n.isdigit() for n in numbers):
        return machine
    margins = [int(n) * MIB for n in numbers]
    margins += [margins[-1]] * (len(machine.gpus) - len(margins))
    gpus = tuple(replace(g, margin=m) for g, m in zip(machine.gpus, margins, strict=False))
    return replace(machine, gpus=gpus)


def _number(user: UserArgs, default: int, *names: str) -> int:
    """The user's number; what is no number is for llama-server to refuse."""
    for name in names:
        text = user.value(name)
        if text is not None and re.fullmatch(r"\d{1,18}", text):
            return int(text)
    return default


def _layers(text: str | None) -> int | None:
    """A layer count; None for all of them."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None
