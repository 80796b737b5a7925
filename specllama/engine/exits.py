"""Why a llama-server ended, read from its exit code and its log."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from specllama.engine import cpu
from specllama.engine.failure_patterns import (
    EARLY,
    FILE_FAULTS,
    LATE,
    MINOR,
    RECOVERED,
    SERVING,
    FailurePattern,
)

_ANOTHER_BINARY = "Use a binary that is built for this CPU, or `--llama-server embedded`."
_ANOTHER_WHEEL = "Use another version of xllamacpp (`pip install -U xllamacpp`), or a binary of your own with --llama-server."
_END_US = "Nothing is wrong with it. To stop it, end specllama, which starts it again."
_WINDOWS = {
    0xC000001D: "SIGILL",
    0xC0000005: "SIGSEGV",
    0xC0000135: "a missing DLL",
    0xC000013A: "SIGINT",  # STATUS_CONTROL_C_EXIT
}
_ASKED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # no program sends itself these

# gguf's own complaint is the more telling one; "error loading model: X: Y: Z" ends in it.
_GGUF = re.compile(r"gguf_init_from_\w+: (.+)")
_LOADING = re.compile(
    r"(?:error loading model: (?:error loading model \w+: )?(?:check_tensor_dims: )?"
    r"|(?=unknown model architecture))(.+)"
)
_ADAPTER = re.compile(r"llama_adapter_lora_init\w*: (?:failed to apply lora adapter: )?(.+)")
_WHOSE = re.compile(r"failed to load (?P<what>draft model|multimodal model|model),? (?:from )?'")
_LORA = re.compile(r"failed to (?:apply|load) lora adapter")
_MOST = 200  # characters of the log's own words
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
# A log line of the level "error", without time and level.
_ERROR = re.compile(r"^[\d.]+ E (?:\w+ +)?\w+: (.+)")
_LOST = re.compile(
    r"fit params to free device memory|exiting due to|failed to create.?context with"
)


# Whatever is tried on this machine with these files and arguments ends the same way.
_LASTING = frozenset(
    "argument architecture cpu flash-attention gpu library lora mmproj model template tls".split()
)

_OF_SPECULATION = tuple(cause for cause in EARLY if cause.blames_speculation)


@dataclass(frozen=True)
class Exit:
    """`kind` names the cause; `blames_speculation`: worth one more start without it."""

    kind: str
    message: str
    hint: str = ""
    blames_speculation: bool = False

    @property
    def lasting(self) -> bool:
        """Whether another start, with speculation or without, would end the same way."""
        return self.kind in _LASTING


def explain(exit_code: int, log: str, embedded: bool = False) -> Exit:
    """The most telling cause found in `log`, else the exit code itself. `embedded`: it was
    the embedded engine, which is other advice for a CPU that it was not built for."""
    name = signal_name(exit_code)
    if name == "SIGILL":
        return _other_cpu(embedded)
    if name in _ASKED:
        return Exit("asked", f"somebody else ended it ({name})", _END_US)
    end = _about_the_end(log)
    if why := _first(EARLY, end) or _file_fault(end) or _first(LATE, end):
        return why
    said = _last_error(end)
    if name:
        return _by_signal(name, said)
    if exit_code == 0:
        return Exit("ended", "it ended in order (exit code 0), as when somebody stops it")
    said = said or _last_line(log)
    last = f"; its last line: {said}" if said else ""
    return Exit("code", f"it ended with exit code {exit_code}{last}", blames_speculation=True)


def why_not_speculating(log: str) -> str:
    """What of a running server's log can have kept it from speculating; "" for nothing."""
    log = RECOVERED.sub("", _COLOURS.sub("", log))
    for found in (_first(_OF_SPECULATION, log), _file_fault(log), _first(LATE, log)):
        if found is not None and found.blames_speculation:
            return found.message
    return ""


def signal_name(exit_code: int) -> str:
    """The signal that ended it, also as a shell (128 + n) or Windows tells it; "" for none."""
    if exit_code in _WINDOWS:
        return _WINDOWS[exit_code]
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {-exit_code}" if exit_code < 0 else ""


def _about_the_end(log: str) -> str:
    """The log less what the server went on after."""
    log = _COLOURS.sub("", log)
    served = max((m.end() for m in SERVING.finditer(log)), default=0)
    return RECOVERED.sub("", MINOR.sub("", log[served:]))


def _first(causes: tuple[FailurePattern, ...], log: str) -> Exit | None:
    for cause in causes:
        if m := cause.pattern.search(log):
            said = next((g.strip() for g in m.groups() if g), "")[:_MOST]
            message = cause.message.format(said)
            if said and message == cause.message:
                message += f" ({said})"
            return Exit(cause.kind, message, cause.hint, cause.blames_speculation)
    return None


def _file_fault(log: str) -> Exit | None:
    """A model file that llama.cpp refuses: which one, and its own words for why."""
    whose = [m["what"] for m in _WHOSE.finditer(log)]
    lora = bool(_LORA.search(log))
    loading = _LOADING.search(log)
    if not (loading or lora or whose):
        return None
    m = _GGUF.search(log) or loading or _ADAPTER.search(log)
    reason = " ".join(m[1].split())[:_MOST] if m else _last_error(log)
    hint = next((h for pattern, h in FILE_FAULTS if pattern.search(reason)), "")
    if lora:
        return Exit("lora", f"the LoRA adapter could not be loaded ({reason})", hint)
    if "draft model" in whose:
        return Exit("draft", f"the draft could not be loaded ({reason})", hint, True)
    if "multimodal model" in whose:
        return Exit("mmproj", f"the multimodal projector could not be loaded ({reason})", hint)
    kind = "architecture" if "unknown model architecture" in reason else "model"
    return Exit(kind, f"the model could not be loaded ({reason})", hint)


def _last_error(log: str) -> str:
    """The last line of the level "error" that is no mere consequence of another; "" for none."""
    errors = (m[1] for s in log.splitlines() if (m := _ERROR.match(s)) and not _LOST.search(s))
    return next(reversed(list(errors)), "")[:_MOST]


def _last_line(log: str) -> str:
    return next((s.strip() for s in reversed(log.splitlines()) if s.strip()), "")[:_MOST]


def _other_cpu(embedded: bool) -> Exit:
    lacking = cpu.lacks()
    what = (
        f"this one lacks {', '.join(lacking)}" if lacking else "it uses instructions this one lacks"
    )
    hint = _ANOTHER_WHEEL if embedded else _ANOTHER_BINARY
    who = "xllamacpp" if embedded else "llama-server"
    return Exit("cpu", f"this {who} was built for another CPU ({what}: SIGILL)", hint + _amx())


def _amx() -> str:
    return (
        " With AMX, `-- --no-repack` avoids one known crash while loading." if cpu.has_amx() else ""
    )


def _by_signal(name: str, said: str) -> Exit:
    if name == "SIGKILL":
        return Exit(
            "signal",
            "it was killed (SIGKILL)",
            "If nobody did that, the system was out of memory: see `dmesg`.",
        )
    last = f"; before that: {said}" if said else ""
    hint = _amx().strip() if name == "SIGSEGV" else ""
    return Exit("signal", f"it crashed ({name}){last}", hint, blames_speculation=True)
