"""What NVIDIA's driver tells of GPUs: the driver is played here, its Python names are the real ones."""

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
ME = psutil.Process().name()
GONE = 2**22 + 1  # above the largest process id of Linux


def refused(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two GPUs; the second tells neither its users nor its display. Entries replace functions
    of pynvml, which fails for names that it does not have."""
    calls: list[str] = []
    played: dict[str, Any] = {
        "nvmlInit": lambda: calls.append("init"),
        "nvmlShutdown": lambda: calls.append("shutdown"),
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda h: (b"Old Binding", "NVIDIA H200")[h],
        "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=(8 + h) * GIB, used=h * GIB),
        "nvmlDeviceGetComputeRunningProcesses": lambda h: (
            refused() if h else [process(os.getpid(), 5 * GIB), process(GONE, 6 * GIB)]
        ),
        "nvmlDeviceGetGraphicsRunningProcesses": lambda h: (
            refused() if h else [process(os.getpid(), None)]
        ),
        "nvmlDeviceGetDisplayActive": lambda h: refused() if h else 1,
    }
    for name in played:
        monkeypatch.setattr(pynvml, name, lambda *args, n=name: played[n](*args))
    played["calls"] = calls
    return played


def test_gpus_with_their_users_the_largest_first(driver: dict[str, Any]) -> None:
    assert nvml.gpus() == (
        Gpu(0, "Old Binding", 8 * GIB, 0, True, ((f"process {GONE}", 6 * GIB), (ME, 5 * GIB))),
        Gpu(1, "NVIDIA H200", 9 * GIB, GIB, False, ()),
    )
    assert driver["calls"] == ["init", "shutdown"]


def test_a_driver_that_breaks_off_shows_no_gpus_and_is_let_go(driver: dict[str, Any]) -> None:
    driver["nvmlDeviceGetMemoryInfo"] = refused
    assert nvml.gpus() == ()
    assert driver["calls"] == ["init", "shutdown"]


def test_without_a_driver_there_are_no_gpus(driver: dict[str, Any]) -> None:
    driver["nvmlInit"] = refused
    assert nvml.gpus() == ()
    assert nvml.driver() == ""
    assert driver["calls"] == [], "what did not begin is not ended"


def test_the_drivers_version(driver: dict[str, Any]) -> None:
    assert nvml.driver() == "580.65.06"
    driver["nvmlSystemGetDriverVersion"] = lambda: b"470.1"
    assert nvml.driver() == "470.1"
    driver["nvmlSystemGetDriverVersion"] = refused
    assert nvml.driver() == ""
    assert driver["calls"] == ["init", "shutdown"] * 3
