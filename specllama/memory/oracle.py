"""llama.cpp's own figures: `llama-fit-params` next to the engine, instead of the formulas.

It reads only the header and prints whole MiB per device (tools/fit-params). It does not know drafts
or --spec-*, so it runs once for the target and once for the draft, and rollback copies are
estimated. It allocates the logits of a whole ubatch, which a server does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.engine.locate import Engine
from specllama.gguf import ModelInfo
from specllama.memory.devices import MIB
from specllama.memory.estimate import LLAMA_CPP, MemoryLine
from specllama.memory.place import RAM
from specllama.memory.use import ModelUse
from specllama.storage import cache_dir, read_stored, write_stored

TIMEOUT = 20.0  # seconds; it takes well under one, a cold CUDA start several
_NAME = "llama-fit-params"
_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.M)


@dataclass(frozen=True)
class OracleFigures:
    """Device → (weights, context, compute) in bytes, rounded up to a MiB."""

    by_device: dict[str, tuple[int, int, int]]


def find_oracle(engine: Engine) -> Path | None:
    """The tool next to this engine, else on PATH; None if there is none."""
    if not engine.embedded:
        next_to_engine = shutil.which(_NAME, path=str(engine.identity.parent))
        if next_to_engine:
            return Path(next_to_engine)
    found = shutil.which(_NAME)
    return Path(found) if found and not engine.embedded else None


def ask_oracle(
    tool: Path, m: ModelInfo, use: ModelUse, flags: Sequence[str] = ()
) -> OracleFigures | None:
    """The figures for one model without rollback copies; None if there are none (another build, an
    unknown architecture). Cached by tool, file and settings."""
    argv = [
        str(tool),
        "-m",
        str(m.path),
        "-fitp",
        "on",
        "-fit",
        "off",
        "--no-repack",
        *_flags(use),
        *flags,
    ]
    cached = _cache_file(tool, m, argv)
    text = read_stored(cached)
    if text is None:
        text = _run(argv)
        if text:
            write_stored(cached, text)
    rows = parse(text)
    return OracleFigures(rows) if rows else None


def parse(text: str) -> dict[str, tuple[int, int, int]]:
    """Rows of `DEVICE model context compute` in MiB, as bytes; "Host" is RAM."""
    out = {}
    for name, *numbers in _ROW.findall(text):
        a, b, c = (min(int(n), 2**30) * MIB + MIB if int(n) else 0 for n in numbers)
        out[RAM if name == "Host" else name] = (a, b, c)
    return out


def corrected(
    who: str, lines: Sequence[MemoryLine], figures: OracleFigures, use: ModelUse
) -> tuple[MemoryLine, ...]:
    """`lines` with llama.cpp's figures for `who`, where available. A formula that agrees within a MiB
    is kept, because it is more precise."""
    return tuple(
        _corrected(line, lines, figures.by_device[line.device], use)
        if line.who == who and line.device in figures.by_device
        else line
        for line in lines
    )


def _corrected(
    line: MemoryLine, lines: Sequence[MemoryLine], known: tuple[int, int, int], use: ModelUse
) -> MemoryLine:
    weights, context, compute = known
    if line.what == "weights":
        return _settled(line, weights)
    if line.what == "compute":
        # It allocates more logits than a server that limits them: an upper bound.
        if use.outputs is not None:
            return replace(line, bytes=min(line.bytes, compute)) if compute else line
        return _settled(line, compute)
    if use.rollback:
        return line
    # One figure for cache and state together: the other one is our estimate.
    both = ("KV cache", "recurrent state")
    rest = sum(
        x.bytes
        for x in lines
        if (x.who, x.device) == (line.who, line.device) and x.what in both and x.what != line.what
    )
    if line.what == "recurrent state" and rest:
        agrees = 0 <= context - rest - line.bytes <= MIB
        return replace(line, upper=False, source=LLAMA_CPP) if agrees else line
    return _settled(line, context - rest)


def _settled(line: MemoryLine, theirs: int) -> MemoryLine:
    agrees = 0 <= (theirs or MIB) - line.bytes <= MIB  # 0 stands for less than a MiB
    size = line.bytes if agrees else max(0, theirs)
    return replace(line, bytes=size, upper=False, source=LLAMA_CPP)


def _flags(use: ModelUse) -> list[str]:
    out = ["-c", str(use.context), "-np", str(use.parallel)]
    out += ["-b", str(use.batch), "-ub", str(use.ubatch), "-fa", "on" if use.flash else "off"]
    out += ["-ctk", use.cache_k, "-ctv", use.cache_v]
    if use.gpu_layers is not None:
        out += ["-ngl", str(use.gpu_layers)]
    if use.unified:
        out.append("-kvu")
    return out + (["--swa-full"] if use.swa_full else [])


def _run(argv: Sequence[str]) -> str:
    # argv already has the server's values; for a draft, the variables would set the target's
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _cache_file(tool: Path, m: ModelInfo, argv: Sequence[str]) -> Path:
    stamps = [(p.stat().st_size, p.stat().st_mtime_ns) for p in (tool, *m.shards) if p.exists()]
    digest = hashlib.sha256(json.dumps([argv, stamps]).encode()).hexdigest()[:24]
    return cache_dir() / "memory" / f"{digest}.json"
