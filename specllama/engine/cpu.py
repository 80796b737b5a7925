"""The CPU's name, and what it lacks that binaries built for another one use (Linux's
/proc/cpuinfo, x86 only)."""

from __future__ import annotations

import platform
from pathlib import Path

# (as said, as /proc/cpuinfo has it): what ggml's CPU code is compiled for (ggml-cpu/CMakeLists.txt)
_FEATURES = (
    ("AVX", "avx"),
    ("AVX2", "avx2"),
    ("FMA", "fma"),
    ("F16C", "f16c"),
    ("BMI2", "bmi2"),
    ("AVX-512", "avx512f"),
    ("AVX-512 VNNI", "avx512_vnni"),
    ("AVX-512 BF16", "avx512_bf16"),
    ("AMX", "amx_tile"),
)
_FIRST_ABOVE_AVX512 = 6  # without AVX-512 the ones from here on go without saying


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first CPU's flags; empty where they are not known."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((s for s in text.splitlines() if s.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the system gives it."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    line = next((s for s in text.splitlines() if s.startswith("model name")), "")
    return line.partition(":")[2].strip() or platform.processor() or platform.machine()


def lacks() -> tuple[str, ...]:
    """The instruction sets that this CPU has not, the oldest first; () where not known."""
    have = flags()
    if not have:
        return ()
    known = _FEATURES if "avx512f" in have else _FEATURES[:_FIRST_ABOVE_AVX512]
    return tuple(name for name, flag in known if flag not in have)


def has_amx() -> bool:
    return "amx_tile" in flags()
