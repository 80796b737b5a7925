"""Why a llama-server exited, from its exit code and log."""

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

_ANOTHER_BINARY = "Use a binary built for this CPU, or `--llama-server embedded`."
_ANOTHER_WHEEL = "Use another version of xllamacpp (`pip install -U xllamacpp`), or your own binary with --llama-server."
_STOP_SPECLLAMA = (
    "This is not a bug: to stop the server, stop specllama, which otherwise restarts it."
)
_WINDOWS = {
    0xC000001D: "SIGILL",
    0xC0000005: "SIGSEGV",
    0xC0000135: "a missing DLL",
    0xC000013A: "SIGINT",  # STATUS_CONTROL_C_EXIT
}
_FROM_OUTSIDE = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # no program sends itself these

# gguf's own error is more specific; "error loading model: X: Y: Z" ends with it.
_GGUF = re.compile(r"gguf_init_from_\w+: (.+)")
_LOADING = re.compile(
    r"(?:error loading model: (?:error loading model \w+: )?(?:check_tensor_dims: )?"
    r"|(?=unknown model architecture))(.+)"
)
_ADAPTER = re.compile(r"llama_adapter_lora_init\w*: (?:failed to apply lora adapter: )?(.+)")
_FILE = re.compile(r"failed to load (?P<file>draft model|multimodal model|model),? (?:from )?'")
_LORA = re.compile(r"failed to (?:apply|load) lora adapter")
_MAX_QUOTE = 200  # characters quoted from the log
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
# A log line of the level "error", without time and level.
_ERROR = re.compile(r"^[\d.]+ E (?:\w+ +)?\w+: (.+)")
_CONSEQUENCE = re.compile(
    r"fit params to free device memory|exiting due to|failed to create.?context with"
)


# Another start on this machine with these files and arguments fails the same way.
_PERMANENT = frozenset(
    "argument architecture cpu flash-attention gpu library lora mmproj model template tls".split()
)

_OF_SPECULATION = tuple(cause for cause in EARLY if cause.blames_speculation)


@dataclass(frozen=True)
class Exit:
    """`kind` names the cause; `blames_speculation`: one retry without speculation may help."""

    kind: str
    message: str
    hint: str = ""
    blames_speculation: bool = False

    @property
    def lasting(self) -> bool:
        """Whether another start, with or without speculation, would fail the same way."""
        return self.kind in _PERMANENT


def explain(exit_code: int, log: str, embedded: bool = False) -> Exit:
    """The most specific cause found in `log`, else the exit code itself. `embedded`: the embedded
    engine, which needs other advice when it was built for another CPU."""
    name = signal_name(exit_code)
    if name == "SIGILL":
        return _other_cpu(embedded)
    if name in _FROM_OUTSIDE:
        return Exit("stopped", f"another process stopped it ({name})", _STOP_SPECLLAMA)
    end = _after_serving(log)
    if cause := _first(EARLY, end) or _file_fault(end) or _first(LATE, end):
        return cause
    error = _last_error(end)
    if name:
        return _by_signal(name, error)
    if exit_code == 0:
        return Exit("ended", "it exited with code 0, as if it had been stopped")
    error = error or _last_line(log)
    last = f"; last line: {error}" if error else ""
    return Exit("code", f"it exited with code {exit_code}{last}", blames_speculation=True)


def why_not_speculating(log: str) -> str:
    """The error in a running server's log that may have prevented speculation; "" if none."""
    log = RECOVERED.sub("", _COLOURS.sub("", log))
    for found in (_first(_OF_SPECULATION, log), _file_fault(log), _first(LATE, log)):
        if found is not None and found.blames_speculation:
            return found.message
    return ""


def signal_name(exit_code: int) -> str:
    """The signal that ended it, also as reported by a shell (128 + n) or Windows; "" if none."""
    if exit_code in _WINDOWS:
        return _WINDOWS[exit_code]
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {-exit_code}" if exit_code < 0 else ""


def _after_serving(log: str) -> str:
    """The log without anything the server recovered from."""
    log = _COLOURS.sub("", log)
    served = max((m.end() for m in SERVING.finditer(log)), default=0)
    return RECOVERED.sub("", MINOR.sub("", log[served:]))


def _first(causes: tuple[FailurePattern, ...], log: str) -> Exit | None:
    for cause in causes:
        if m := cause.pattern.search(log):
            quote = next((g.strip() for g in m.groups() if g), "")[:_MAX_QUOTE]
            message = cause.message.format(quote)
            if quote and message == cause.message:
                message += f" ({quote})"
            return Exit(cause.kind, message, cause.hint, cause.blames_speculation)
    return None


def _file_fault(log: str) -> Exit | None:
    """A model file that llama.cpp rejects: which one, and its own reason."""
    files = [m["file"] for m in _FILE.finditer(log)]
    lora = bool(_LORA.search(log))
    loading = _LOADING.search(log)
    if not (loading or lora or files):
        return None
    m = _GGUF.search(log) or loading or _ADAPTER.search(log)
    reason = " ".join(m[1].split())[:_MAX_QUOTE] if m else _last_error(log)
    hint = next((h for pattern, h in FILE_FAULTS if pattern.search(reason)), "")
    if lora:
        return Exit("lora", f"the LoRA adapter could not be loaded ({reason})", hint)
    if "draft model" in files:
        return Exit("draft", f"the draft model could not be loaded ({reason})", hint, True)
    if "multimodal model" in files:
        return Exit("mmproj", f"the multimodal projector could not be loaded ({reason})", hint)
    kind = "architecture" if "unknown model architecture" in reason else "model"
    return Exit(kind, f"the model could not be loaded ({reason})", hint)


def _last_error(log: str) -> str:
    """The last line of level "error" that is not just a consequence of another; "" if none."""
    lines = (s for s in log.splitlines() if not _CONSEQUENCE.search(s))
    errors = [m[1] for s in lines if (m := _ERROR.match(s))]
    return errors[-1][:_MAX_QUOTE] if errors else ""


def _last_line(log: str) -> str:
    return next((s.strip() for s in reversed(log.splitlines()) if s.strip()), "")[:_MAX_QUOTE]


def _other_cpu(embedded: bool) -> Exit:
    missing = ", ".join(cpu.missing_features()) or "instructions it uses"
    hint = _ANOTHER_WHEEL if embedded else _ANOTHER_BINARY
    binary = "xllamacpp" if embedded else "llama-server"
    message = f"this {binary} was built for another CPU (SIGILL: this one lacks {missing})"
    return Exit("cpu", message, hint + _amx())


def _amx() -> str:
    return (
        " On a CPU with AMX, `-- --no-repack` avoids a known crash at load."
        if cpu.has_amx()
        else ""
    )


def _by_signal(name: str, error: str) -> Exit:
    if name == "SIGKILL":
        return Exit(
            "signal",
            "it was killed (SIGKILL)",
            "If nobody did that, the system ran out of memory: check `dmesg`.",
        )
    last = f"; last error: {error}" if error else ""
    hint = _amx().strip() if name == "SIGSEGV" else ""
    return Exit("signal", f"it crashed ({name}){last}", hint, blames_speculation=True)
