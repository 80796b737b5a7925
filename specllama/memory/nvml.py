"""GPUs from NVIDIA's driver: the processes that use them, and whether a desktop does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """Sizes in bytes. `users`: (program, bytes) of local processes, largest first."""

    index: int
    name: str
    total: int
    used: int
    has_display: bool
    users: tuple[tuple[str, int], ...]


def gpus() -> tuple[Gpu, ...]:
    """All NVIDIA GPUs; () without the driver or the library."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def driver() -> str:
    """The driver version; "" without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library or no driver
        return ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    users: dict[str, int] = {}
    for ask in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            for p in ask(handle):
                program = _program(p.pid)
                users[program] = max(users.get(program, 0), int(p.usedGpuMemory or 0))
        except nvml.NVMLError:
            continue  # not always available (containers, old drivers)
    try:
        display = bool(nvml.nvmlDeviceGetDisplayActive(handle))
    except nvml.NVMLError:
        display = False
    return Gpu(
        index,
        name.decode() if isinstance(name, bytes) else str(name),
        int(memory.total),
        int(memory.used),
        display,
        tuple(sorted(users.items(), key=lambda u: -u[1])),
    )


def _program(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return f"process {pid}"
