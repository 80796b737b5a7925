"""The CPU's name, and the instruction sets it lacks (Linux's /proc/cpuinfo, x86 only)."""

from __future__ import annotations

import platform
from pathlib import Path

# (display name, name in /proc/cpuinfo): what ggml's CPU code is compiled for
# (ggml-cpu/CMakeLists.txt)
_FEATURES = (
    ("AVX", "avx"),
    ("AVX2", "avx2"),
    ("FMA", "fma"),
    ("F16C", "f16c"),
    ("BMI2", "bmi2"),
    ("AVX-512", "avx512f"),
    ("AVX-512 VNNI", "avx512_vnni"),
    ("AVX-512 BF16", "avx512_bf16"),
    ("AVX-VNNI", "avx_vnni"),
    ("AMX", "amx_tile"),
)
_FIRST_ABOVE_AVX512 = 6  # a CPU without AVX-512 lacks more than a reader needs to know


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first CPU's flags; empty if unknown."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((s for s in text.splitlines() if s.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as reported by the system."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    line = next((s for s in text.splitlines() if s.startswith("model name")), "")
    return line.partition(":")[2].strip() or platform.processor() or platform.machine()


def missing_features() -> tuple[str, ...]:
    """The instruction sets that this CPU lacks, oldest first; () if unknown."""
    present = flags()
    if not present:
        return ()
    known = _FEATURES if "avx512f" in present else _FEATURES[:_FIRST_ABOVE_AVX512]
    return tuple(name for name, flag in known if flag not in present)


def has_amx() -> bool:
    return "amx_tile" in flags()
