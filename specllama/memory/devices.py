"""What the machine has: GPUs as the engine lists them, what else uses them, and RAM.

Every figure has its source. Nothing is cached: free memory changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.capabilities import engine_output
from specllama.engine.errors import EngineError
from specllama.engine.locate import Engine
from specllama.memory.errors import MemoryInputError
from specllama.memory.nvml import Gpu, gpus
from specllama.memory.place import RAM

MIB = 2**20
LIST_TIMEOUT = 20.0  # seconds; a cold CUDA start takes several
# Memory left free: as much as llama.cpp's --fit leaves (common/arg.cpp, --fit-target).
MARGIN = 1024 * MIB
# Windows silently moves excess memory to shared memory, and the desktop's own use varies.
_MORE_ON_WINDOWS = 512 * MIB
_MORE_FOR_A_DESKTOP = 512 * MIB

# "  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23600 MiB free)" (common/arg.cpp,
# --list-devices); names hold parentheses of their own, old builds give one number.
_DEVICE = re.compile(
    r"^\s*([A-Za-z][\w.-]*):\s+(.*?)\s*\((\d+)\s*MiB(?:,\s*(\d+)\s*MiB free)?\)\s*$"
)
_UMA = re.compile(r"ggml_vulkan: (\d+) = .*\| uma: (\d)")
# Vulkan drivers that compute on the CPU. llama.cpp ignores them unless the user selects them
# (GGML_VK_VISIBLE_DEVICES; ggml-vulkan.cpp, ggml_vk_instance_init), and then counts them as GPUs.
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|SwiftShader", re.I)
_UNREACHED = re.compile(r"Failed to connect to (\S+)")  # ggml-rpc.cpp; it continues without it
_LOOPBACK = ("127.", "localhost:", "[::1]:")


@dataclass(frozen=True)
class Device:
    """A GPU, or RAM. Sizes in bytes. `shared`: its memory is the machine's RAM. `margin`: left
    free. `source` of the figures; `others`: other processes that use it; `label`: its product
    name, or the address of a remote device."""

    name: str
    label: str
    total: int
    free: int
    source: str
    shared: bool = False
    margin: int = MARGIN
    others: str = ""

    @property
    def usable(self) -> int:
        return max(0, self.free - self.margin)

    @property
    def remote(self) -> bool:
        """A device of a ggml-rpc-server (--rpc)."""
        return re.fullmatch(r"RPC\d*", self.name) is not None

    @property
    def software(self) -> bool:
        """A CPU that is listed as a GPU."""
        return _SOFTWARE.search(self.label) is not None


@dataclass(frozen=True)
class Machine:
    """GPUs in llama.cpp's order, and RAM. `note`: why GPUs may be missing. `unreached`:
    addresses of --rpc where no server answers."""

    gpus: tuple[Device, ...]
    ram: Device
    note: str = ""
    unreached: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(g.name for g in self.gpus)

    def shares(self, split: Sequence[float] = ()) -> tuple[float, ...]:
        """How models are split over the GPUs: by -ts, else by free memory."""
        if split:
            return tuple(split[i] if i < len(split) else 0.0 for i in range(len(self.gpus)))
        return tuple(float(g.free) for g in self.gpus)

    def device(self, name: str) -> Device | None:
        return self.ram if name == RAM else next((g for g in self.gpus if g.name == name), None)


def find_machine(engine: Engine, vram: Sequence[int] = (), rpc: Sequence[str] = ()) -> Machine:
    """The machine as `engine` sees it; with `vram` (bytes each), GPUs of those sizes. `rpc`: the
    values of --rpc, each with comma-separated server addresses, whose devices count too.

    Raises MemoryInputError if the engine does not support RPC.
    """
    if vram:
        given = tuple(
            Device(f"GPU{i}", "set with --vram", size, size, "--vram", margin=0)
            for i, size in enumerate(vram)
        )
        return Machine(given, main_memory())
    text, problem, unreached = _list(engine, ",".join(rpc))
    ram = main_memory()
    devices = parse_devices(text)
    known = gpus() if any(d.name.startswith("CUDA") for d in devices) else ()
    devices = tuple(_with_nvml(_here(d, ram), known) for d in devices)
    # Remote devices come first (src/llama.cpp, llama_prepare_model_devices).
    ordered = sorted(devices, key=lambda d: not d.remote)
    return Machine(tuple(_with_margin(d, known) for d in ordered), ram, problem, unreached)


def parse_devices(text: str) -> tuple[Device, ...]:
    """The GPUs in the output of --list-devices, in its order, without accelerators that have no
    memory (BLAS)."""
    shared = {f"Vulkan{i}" for i, uma in _UMA.findall(text) if uma == "1"}
    metal = "has unified memory    = true" in text
    out = []
    for line in text.splitlines():
        m = _DEVICE.match(line)
        if m is None or m[1] == "CPU":
            continue
        total = int(m[3]) * MIB
        free = min(total, int(m[4]) * MIB) if m[4] else total
        if total == 0:
            continue
        is_shared = m[1] in shared or (metal and m[1].startswith(("Metal", "MTL")))
        is_shared = is_shared or (m[1].startswith(("MTL", "Metal")) and "Apple" in m[2])
        is_shared = is_shared or _SOFTWARE.search(m[2]) is not None
        out.append(Device(m[1], m[2], total, free, "llama-server --list-devices", is_shared))
    return tuple(out)


def parse_sizes(text: str) -> tuple[int, ...]:
    """`--vram`: comma-separated sizes such as 24GiB, 24576MiB, 24G or 24 (GiB). Raises
    MemoryInputError."""
    out = []
    for word in text.split(","):
        m = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)\s*", word, re.I)
        if m is None or m[3].lower() == "i" or len(m[1]) > 20 or float(m[1]) <= 0:
            raise MemoryInputError(
                f"--vram {word.strip() or text}: not a size",
                "Use 24GiB or 16384MiB; separate several with commas.",
            )
        unit = {"k": 2**10, "m": MIB, "g": 2**30, "t": 2**40, "": 2**30}[m[2].lower()]
        if not m[2] and m[3]:
            unit = 1  # plain bytes
        size = int(float(m[1]) * unit)
        if not MIB <= size <= 2**50:
            raise MemoryInputError(f"--vram {word.strip()}: out of range (1 MiB to 1 PiB)")
        out.append(size)
    if len(out) > 16:
        raise MemoryInputError(f"--vram lists {len(out)} GPUs; llama.cpp supports at most 16")
    return tuple(out)


def _list(engine: Engine, rpc: str) -> tuple[str, str, tuple[str, ...]]:
    """(output of --list-devices, why it is unusable or "", RPC servers that do not answer)."""
    try:
        # It prints and exits as soon as it is parsed: options that add devices must precede it.
        before = ("--rpc", rpc) if rpc else ()
        text, problem = engine_output(engine, "--list-devices", LIST_TIMEOUT, before)
    except EngineError as e:
        text, problem = "", e.message
    if rpc and "RPC not supported" in text:  # common/arg.cpp
        raise MemoryInputError(
            f"--rpc {rpc}: {engine.label} was built without RPC",
            "Use a build with GGML_RPC=ON (the official releases have it), or omit --rpc.",
        )
    if not problem and "Available devices" not in text:
        problem = "could not parse its device list"
    if problem:
        tried = f" (with --rpc {rpc})" if rpc else ""
        return "", f"{problem}{tried}; set GPU sizes with --vram SIZE", ()
    return text, "", tuple(dict.fromkeys(_UNREACHED.findall(text)))


def _here(d: Device, ram: Device) -> Device:
    """Marks an RPC server on this machine that shares the CPU: its memory is the machine's RAM."""
    local = d.remote and d.label.startswith(_LOOPBACK)
    same = abs(d.total - ram.total) < 2 * MIB
    return replace(d, shared=True) if local and same else d


def main_memory() -> Device:
    """RAM."""
    import psutil

    memory = psutil.virtual_memory()
    return Device(RAM, "system memory", memory.total, memory.available, "psutil", True)


def _with_nvml(d: Device, known: Sequence[Gpu]) -> Device:
    """The device with the processes that use it. CUDA and NVML indices may differ, so devices are
    matched by name."""
    gpu = _match(d, known)
    if gpu is None or not gpu.users:
        return d
    users = ", ".join(f"{name} {size // MIB:,} MiB" for name, size in gpu.users[:3])
    more = f" and {len(gpu.users) - 3} more" if len(gpu.users) > 3 else ""
    return replace(d, others=f"{users}{more} (NVML)")


def _match(d: Device, known: Sequence[Gpu]) -> Gpu | None:
    same = [g for g in known if g.name == d.label and abs(g.total - d.total) < 1024 * MIB]
    index = re.search(r"\d+$", d.name)
    at = int(index[0]) if index else 0
    if len(same) > 1:
        return next((g for g in same if g.index == at), same[0])
    return same[0] if same else None


def _with_margin(d: Device, known: Sequence[Gpu]) -> Device:
    gpu = _match(d, known)
    more = _MORE_ON_WINDOWS if on_windows() else 0
    if d.remote or d.software:
        more = 0  # no desktop there
    elif d.shared or (gpu is not None and gpu.has_display):
        more += _MORE_FOR_A_DESKTOP
    return replace(d, margin=min(MARGIN + more, d.total // 4))


def on_windows(release: str | None = None) -> bool:
    """Windows, or WSL."""
    if sys.platform == "win32":
        return True
    if release is None:
        try:
            release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8")
        except OSError:
            return False
    return "microsoft" in release.lower()


def overcommitted(needs: Mapping[str, int], m: Machine) -> list[tuple[Device, int]]:
    """(device, missing bytes) of each device that is short. A GPU that shares the machine's RAM, and
    RAM itself, count together."""
    out = []
    shared = sum(n for d, n in needs.items() if (x := m.device(d)) is not None and x.shared)
    for gpu in m.gpus:
        if (short := needs.get(gpu.name, 0) - gpu.usable) > 0 and needs.get(gpu.name, 0):
            out.append((gpu, short))
    if (short := shared - m.ram.usable) > 0:
        out.append((m.ram, short))
    return out
