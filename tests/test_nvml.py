"""GPUs as NVIDIA's driver reports them: a fake driver behind the real names of pynvml."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pynvml
import pytest

from specllama.memory import nvml
from specllama.memory.nvml import Gpu

GIB = 2**30
OWN_NAME = psutil.Process().name()
UNUSED_PID = 2**22 + 1  # above the largest process id of Linux


def raise_not_supported(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two GPUs; the second reports neither its processes nor its display. The entries replace
    functions of pynvml; a name that pynvml lacks is an error."""
    calls: list[str] = []
    functions: dict[str, Any] = {
        "nvmlInit": lambda: calls.append("init"),
        "nvmlShutdown": lambda: calls.append("shutdown"),
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda h: (b"Old Binding", "NVIDIA H200")[h],
        "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=(8 + h) * GIB, used=h * GIB),
        "nvmlDeviceGetComputeRunningProcesses": lambda h: (
            raise_not_supported()
            if h
            else [process(os.getpid(), 5 * GIB), process(UNUSED_PID, 6 * GIB)]
        ),
        "nvmlDeviceGetGraphicsRunningProcesses": lambda h: (
            raise_not_supported() if h else [process(os.getpid(), None)]
        ),
        "nvmlDeviceGetDisplayActive": lambda h: raise_not_supported() if h else 1,
    }
    for name in functions:
        monkeypatch.setattr(pynvml, name, lambda *args, n=name: functions[n](*args))
    functions["calls"] = calls
    return functions


def test_processes_on_a_gpu_are_sorted_by_memory(driver: dict[str, Any]) -> None:
    assert nvml.gpus() == (
        Gpu(
            0,
            "Old Binding",
            8 * GIB,
            0,
            True,
            ((f"process {UNUSED_PID}", 6 * GIB), (OWN_NAME, 5 * GIB)),
        ),
        Gpu(1, "NVIDIA H200", 9 * GIB, GIB, False, ()),
    )
    assert driver["calls"] == ["init", "shutdown"]


def test_a_failing_driver_gives_no_gpus_and_is_shut_down(driver: dict[str, Any]) -> None:
    driver["nvmlDeviceGetMemoryInfo"] = raise_not_supported
    assert nvml.gpus() == ()
    assert driver["calls"] == ["init", "shutdown"]


def test_a_missing_driver_gives_no_gpus(driver: dict[str, Any]) -> None:
    driver["nvmlInit"] = raise_not_supported
    assert nvml.gpus() == ()
    assert nvml.driver() == ""
    assert driver["calls"] == [], "what did not begin is not ended"


def test_the_driver_version_or_nothing_if_it_fails(driver: dict[str, Any]) -> None:
    assert nvml.driver() == "580.65.06"
    driver["nvmlSystemGetDriverVersion"] = lambda: b"470.1"
    assert nvml.driver() == "470.1"
    driver["nvmlSystemGetDriverVersion"] = raise_not_supported
    assert nvml.driver() == ""
    assert driver["calls"] == ["init", "shutdown"] * 3
