"""Versions, the system, its devices, and the user's settings."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping

from specllama import __version__, config, workloads
from specllama.doctor.findings import DeviceReport, UserSettings
from specllama.doctor.redaction import shown_value
from specllama.engine import config_ini, cpu
from specllama.engine.locate import Engine
from specllama.errors import UsageError
from specllama.memory import nvml
from specllama.memory.devices import Device, find_machine, main_memory, on_windows

_PACKAGES = (
    "xllamacpp gguf llama-cpp-python huggingface-hub httpx numpy nvidia-ml-py psutil rich typer"
).split()
# Variables that affect what is found, served or measured.
_PREFIXES = (
    "SPECLLAMA_ LLAMA_ GGML_ CUDA_ HIP_ ROCR_ ZE_ ONEAPI_ OMP_ HF_ OLLAMA_ XDG_ HTTP_PROXY HTTPS_PROXY "
    "ALL_PROXY NO_PROXY SSL_CERT VIRTUAL_ENV"
).split()


def versions() -> dict[str, str]:
    """Of specllama, Python and the packages it uses, or "not installed"."""
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    out = {"specllama": __version__, "python": python}
    for name in _PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def system() -> dict[str, str]:
    """OS, CPU and driver, without the machine's name."""
    kind = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux" and on_windows():
        kind += " (WSL)"
    out = {"system": kind, "cpu": f"{cpu.name()}, {os.cpu_count() or 1} threads"}
    if driver := nvml.driver():
        out["nvidia driver"] = driver
    return out


def devices(engine: Engine | None) -> tuple[tuple[DeviceReport, ...], str]:
    """(GPUs as `engine` lists them, and RAM; why GPUs may be missing)."""
    if engine is None:
        return (_device(main_memory()),), ""
    have = find_machine(engine)
    return tuple(_device(d) for d in (*have.gpus, have.ram)), have.note


def _device(d: Device) -> DeviceReport:
    label = "on another machine" if d.remote else d.label
    return DeviceReport(d.name, label, d.total, d.free, d.software, d.others)


def nvidia() -> tuple[str, ...]:
    """GPUs reported by the driver, whether or not an engine can use them."""
    return tuple(g.name for g in nvml.gpus())


def settings(environ: Mapping[str, str]) -> UserSettings:
    """The config file, llama.cpp's own, profiles and variables."""
    file, problem = config.path(), ""
    try:
        config.load()
    except UsageError as e:
        problem = e.message
    return UserSettings(
        config=str(file),
        config_exists=file.is_file(),
        config_problem=problem,
        llama_config=tuple(str(p) for p in config_ini.paths(environ) if p.is_file()),
        profiles={
            p.stem: _broken(p.stem) for p in sorted(workloads.user_profiles_dir().glob("*.toml"))
        },
        variables={
            k: shown_value(k, v)
            for k, v in sorted(environ.items())
            if k.upper().startswith(tuple(_PREFIXES))
        },
    )


def _broken(profile: str) -> str:
    try:
        workloads.load_workload(profile)
    except UsageError as e:
        return e.message
    return ""
