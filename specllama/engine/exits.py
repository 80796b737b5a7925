"""Why a llama-server ended, read from its exit code and its log."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """`kind` names the cause; `blames_speculation`: worth one more start without it."""

    kind: str
    message: str
    hint: str = ""
    blames_speculation: bool = False


@dataclass(frozen=True)
class _Cause:
    kind: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    blames_speculation: bool


def _cause(
    kind: str, pattern: str, message: str, hint: str = "", blames_speculation: bool = False
) -> _Cause:
    return _Cause(kind, re.compile(pattern, re.I), message, hint, blames_speculation)


# First match wins. Patterns are llama.cpp's own log lines (b9093…b11434); `{0}` is
# the pattern's first group.
_CAUSES = (
    _cause(
        "port",
        r"couldn'?t bind|bind.*(?:failed|error)|address already in use|failed to initialize HTTP server",
        "the port is taken or cannot be bound",
        "Give another --port, or --port 0 for a free one.",
    ),
    _cause(
        "argument",
        r"error: (invalid argument: \S+|unknown argument: \S+|.*argument has been removed.*|expected value for argument.*|error while handling argument.*)",
        "llama-server does not take its arguments ({0})",
    ),
    _cause(
        "architecture",
        r"unknown model architecture: '([^']+)'",
        "this llama-server does not know the architecture {0!r}",
        "It is newer than the build: use a newer llama.cpp.",
    ),
    _cause(
        "memory",
        r"out of memory|failed to allocate|cudaMalloc failed|unable to allocate|ErrorOutOfDeviceMemory"
        r"|insufficient memory|cannot allocate|bad_alloc",
        "it ran out of memory",
        "Use a smaller context (-c N), a smaller quantisation, or fewer GPU layers (-- -ngl N).",
        blames_speculation=True,
    ),
    _cause(
        "mtp",
        r"failed to create MTP context|MTP requires|model has no MTP|nextn.*(?:missing|not found)",
        "the file has no MTP head this build can run",
        blames_speculation=True,
    ),
    _cause(
        "vocabulary",
        r"vocabs? (?:are not compatible|type must match)|vocab mismatch",
        "the draft's vocabulary does not match the target's",
        blames_speculation=True,
    ),
    _cause(
        "draft",
        r"failed to (?:load|create|open).*draft|draft.*failed to load",
        "the draft could not be loaded",
        blames_speculation=True,
    ),
    _cause(
        "assert",
        r"GGML_ASSERT\((.+?)\) failed",
        "llama.cpp stopped at its own check {0!r}",
        blames_speculation=True,
    ),
    _cause(
        "model",
        r"(?:error loading model|failed to load model)[^\n]*?:? ([^\n]+)",
        "the model could not be loaded ({0})",
        "Check the file with a newer llama.cpp, or download it again.",
    ),
)


def explain(exit_code: int, log: str) -> Exit:
    """The most telling cause found in `log`, else the exit code itself."""
    for cause in _CAUSES:
        m = cause.pattern.search(log)
        if m:
            groups = [g.strip() for g in m.groups() if g]
            return Exit(
                cause.kind,
                cause.message.format(*groups) if groups else cause.message,
                cause.hint,
                cause.blames_speculation,
            )
    if exit_code < 0:
        return _by_signal(-exit_code)
    if exit_code == 0:
        return Exit("ended", "it ended by itself (exit code 0)")
    last = next((s.strip() for s in reversed(log.splitlines()) if s.strip()), "")
    said = f"; its last line: {last[:160]}" if last else ""
    return Exit("code", f"it ended with exit code {exit_code}{said}", blames_speculation=True)


def _by_signal(signum: int) -> Exit:
    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = f"signal {signum}"
    if name == "SIGKILL":
        return Exit(
            "signal",
            "it was killed (SIGKILL)",
            "If nobody did that, the system was out of memory: see `dmesg`.",
        )
    hint = ""
    if name in ("SIGSEGV", "SIGILL"):
        hint = "On x86 with AMX, `-- --no-repack` avoids one known crash while loading."
    return Exit("signal", f"it crashed ({name})", hint, blames_speculation=True)
